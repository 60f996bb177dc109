"""The demo's order of events: network, data, plan, submission, training with kills, verdict. Everything is asked of the network through its own calls."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

from rich.console import Console

from dataservice.borrowed import borrowed_bucket
from dataservice.embedded import read_store_file, write_store_file
from dcnr.crashpoints import reached
from dcnr.demo.examples import Example, example, prepare_data
from dcnr.demo.facts import WHOLE_LIMIT_S, Facts
from dcnr.demo.gathering import ask_lookups, gather, machine, reference_of
from dcnr.demo.questions import ask
from dcnr.demo.record import NAME, write
from dcnr.demo.screen import Screen
from dcnr.demo.story import ACTIVE, Kill, Story
from dcnr.demo.verdict import verdict_of
from dcnr.errors import DcnrError, InvalidInput, NotRunning, Refused, TimedOut, Unavailable
from dcnr.graph import graph_from_toml, stages_of_graph
from dcnr.home_lock import LOCK_FILE, HomeLock
from dcnr.ports import Clock
from dcnr.sdk.client import AsyncClient, connect_async
from dcnr.sdk.staging import Source
from dcnr.sdk.submission import JobOptions, unit_batches
from dcnr.system import SystemClock
from dcnr.testing import LocalNetwork, LocalPNode, Process
from dcnr.v1 import model_pb2
from trust.identity import NodeKey

CHEAT = ("-m", "examples.byzantine", "pnode")
"""A PNode that multiplies its gradients by ten and says that it did not."""
PNODES = (
    LocalPNode("p1", 1.75, 2048), LocalPNode("p2", 1.5, 1536), LocalPNode("p3", 1.0, 1280), LocalPNode("p4", 1.0, 1024), LocalPNode("p5", 1.0, 896),
    LocalPNode("p6", 2.0, 2048, program=CHEAT, flags=("--behaviour", "tenfold")),
)  # fmt: skip
VIEW_S = 0.2
LOOK_S = 0.5
"""Between looks at the clock."""
CHECKPOINT_S = 10.0
MAX_PATH = 60
MARK = ".dcnr-demo"
"""A directory with this file in it was made by a demo and may be emptied by the next one."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Options:
    """What `dcnr demo` was asked for."""

    model: str = "mnist"
    directory: Path | None = None
    keep: bool = False
    kills: bool = True
    reference: bool = True
    store_url: str = ""
    """Of a store that others run; empty: the embedded one."""
    store_file: Path | None = None
    """With the keys for it."""


def run_demo(
    options: Options, *, environment: Mapping[str, str], chosen: Example | None = None, pnodes: Sequence[LocalPNode] = PNODES,
    num_orchestrators: int = 3,
) -> int:  # fmt: skip
    """Runs it and returns the exit code: 0 only if everything held. ``chosen``: another example than the one that the options name.

    Raises what `borrowed_bucket` and `read_store_file` raise, before anything is started, and Refused for a directory with other things in it, or
    in which a demo runs.
    """
    screen = Screen(Console(no_color="NO_COLOR" in environment, soft_wrap=True))
    chosen = chosen or example(options.model)
    directory = options.directory or _directory(Path.cwd() / ".demo")
    _check_ours(directory)
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(HomeLock(directory, "a demo", "wait until it ends, or choose another --directory")))
        _make_empty(directory)
        store_file = _borrowed(options, directory / "store.json", stack, screen) if options.store_url else None
        network = _network(directory, pnodes, num_orchestrators, screen, environment, store_file)
        return _run(options, chosen, directory, network, screen, SystemClock())


def _run(options: Options, chosen: Example, directory: Path, network: LocalNetwork, screen: Screen, clock: Clock) -> int:
    """From a network that is not started to the exit code; afterwards nothing of it runs."""
    try:
        facts = asyncio.run(_Demo(options, chosen, directory, network, screen, clock).run())
        if options.reference:
            facts = replace(facts, reference=asyncio.run(reference_of(chosen, directory / f"{chosen.name}.npz", screen.say)))
        verdict = verdict_of(facts)
        for line in verdict.lines():
            screen.say(line)
        screen.say(f"all figures: {write(directory, facts, verdict)}")
        if options.keep:
            _keep(network, screen)
        return verdict.exit_code
    except DcnrError as error:
        screen.say(f"the demo failed: {error}")
        screen.say(network.trouble())
        screen.say(f"logs: {directory / 'log'}")
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        screen.say("interrupted: ending every process of the demo")
        return 130
    finally:
        network.stop(hand_over=False)
        if directory != options.directory:
            _tidy(directory)


def _borrowed(options: Options, path: Path, stack: contextlib.ExitStack, screen: Screen) -> Path:
    """``path``, with the way into a bucket in the store of others; ``stack`` then holds both."""
    if options.store_file is None:
        raise InvalidInput(
            "no keys for that store are given", code="no_store_keys",
            remedy='--store-file FILE or DCNR_STORE_FILE: {"access_key": "...", "secret_key": "..."}, mode 0600',
        )  # fmt: skip
    file = stack.enter_context(borrowed_bucket(options.store_url, read_store_file(options.store_file), screen.say))
    stack.callback(path.unlink, missing_ok=True)
    write_store_file(path, file)
    return path


def _network(
    directory: Path, pnodes: Sequence[LocalPNode], num_orchestrators: int, screen: Screen, environment: Mapping[str, str],
    store_file: Path | None,
) -> LocalNetwork:  # fmt: skip
    """Where somebody cheats, work is audited, and the network trusts the others."""
    honest = [spec.name for spec in pnodes if spec.program != CHEAT]
    is_audited = len(honest) < len(pnodes)
    return LocalNetwork(
        directory, num_orchestrators=num_orchestrators, pnodes=pnodes, name="demo", say=screen.say, environment=environment,
        audits="drawn" if is_audited else "none", trusted=honest if is_audited else (), orchestrator_flags=("--verifier",) if is_audited else (),
        store_file=store_file, start_limit_s=WHOLE_LIMIT_S,
    )  # fmt: skip


async def in_time(work: Coroutine[Any, Any, T], clock: Clock, limit_s: float) -> T:
    """The result of ``work``, which is cancelled where it is not there ``limit_s`` seconds of ``clock`` later: then raises TimedOut (``demo_timeout``)."""
    deadline_s = clock.monotonic() + limit_s
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            left_s = deadline_s - clock.monotonic()
            if left_s <= 0:
                raise TimedOut(f"the demo did not end within {limit_s:.0f} s", code="demo_timeout")
            await asyncio.wait({task}, timeout=min(left_s, LOOK_S))
        return task.result()
    finally:
        task.cancel()
        await asyncio.wait({task})


class _Demo:
    """One run."""

    def __init__(
        self, options: Options, chosen: Example, directory: Path, network: LocalNetwork, screen: Screen, clock: Clock
    ) -> None:
        self._options, self._example, self._directory = options, chosen, directory
        self._network, self._screen = network, screen
        self._clock = clock
        self._began = self._clock.monotonic()
        self._story = Story()
        self._killing: set[str] = set()

    async def run(self) -> Facts:
        """From nothing to the facts. Raises DcnrError, and CancelledError at Ctrl-C, which the loop itself takes: between two steps, never inside one."""
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
        return await in_time(self._whole(), self._clock, WHOLE_LIMIT_S)

    async def _whole(self) -> Facts:
        screen, network = self._screen, self._network
        on = await machine()
        npz = await prepare_data(self._example, self._directory, screen.say)
        try:
            await _thread(network.start)
        except asyncio.CancelledError:
            network.interrupt()
            raise
        screen.name_nodes({process.node_id: process.name for process in (*network.orchestrators, *network.pnodes)})
        self._story.cheats = frozenset(process.node_id for process in network.pnodes if CHEAT[1] in process.command)
        for process in network.pnodes:
            if process.node_id in self._story.cheats:
                screen.say(f"{process.name} cheats; nobody in the network knows that")
        key = NodeKey.load(network.maintainer_key)
        async with await connect_async(network.bootstrap, network=network.network_file, key=key) as client:
            await self._attached(client)
            graph = graph_from_toml(self._example.graph.read_text())
            source = Source(
                str(npz), self._example.dataset, self._example.licence, self._example.source, as_bytes=self._example.as_bytes
            )
            screen.say(f"staging {self._example.dataset} into the data service")
            manifest = await client.stage(source)
            screen.say("staged: " + ", ".join(f"{split} {count}" for split, count in sorted(manifest.splits.items())))
            preview = await client.plan(graph)
            screen.say(f"plan (no effect): {preview.estimate_s:.0f} s expected, {preview.seconds_per_batch * 1e3:.1f} ms per batch")
            for assignment in preview.plan.assignments:
                hosted = f" with {', '.join(assignment.hosted)}" if assignment.hosted else ""
                screen.say(f"  {assignment.vnode}{hosted} -> {self._name(assignment.pnode_id)}: {assignment.reason}")
            self._story.unit_batches = unit_batches(preview.seconds_per_batch)
            options = JobOptions(idempotency_key="demo", checkpoint_s=CHECKPOINT_S, unit_batches=self._story.unit_batches)
            answer = await client.submit(graph, [key], options)
            screen.say(f"job {answer.job_id} is accepted: signed by its maintainer and in the store")
            with screen:
                await self._train(client, answer.job_id, graph.name)
            await ask(client, graph, npz, screen.say)
            facts = await gather(
                self._example, self._story, client, network, model=graph.name, job_id=answer.job_id,
                order=[stage.id for stage in stages_of_graph(graph, client.registry)], npz=npz, directory=self._directory,
                are_kills_wanted=self._options.kills, elapsed_s=self._now, say=screen.say,
            )  # fmt: skip
            return replace(facts, machine=on)

    async def _attached(self, client: AsyncClient) -> None:
        """Waits until every PNode is attached and lends something; ended by whoever bounds the whole. Raises NotRunning where a process has ended."""
        wanted = {process.node_id for process in self._network.pnodes}
        while True:
            with contextlib.suppress(Unavailable):
                usable = {node.node_id for node in await client.nodes() if node.attached and node.capability.gflops > 0}
                if wanted <= usable:
                    self._screen.say(f"{len(wanted)} PNodes are attached after {self._now():.1f} s")
                    return
            if ended := self._network.trouble():
                raise NotRunning(f"a process ended: {ended}", code="process_ended")
            await asyncio.sleep(0.2)

    async def _train(self, client: AsyncClient, job_id: str, model: str) -> None:
        """Watches to the end and kills on the way."""
        async for view in client.watch(job_id, model=model, interval_s=VIEW_S):
            now = self._now()
            self._story.seen(now, view)
            for event in view.events:
                self._screen.event(event)
            self._screen.show(now, self._story, list(view.nodes))
            if self._options.kills:
                await self._maybe_kill()
        if self._story.job.state != model_pb2.JOB_STATE_COMPLETED:
            reason = self._story.job.outcome.reason
            raise Unavailable(
                f"the job ended as {model_pb2.JobState.Name(self._story.job.state)}: {reason}", code="job_not_completed"
            )

    async def _maybe_kill(self) -> None:
        """A middle VNode's PNode at 15 % of the work, the deciding orchestrator at 40 %, another PNode at 65 %."""
        story, job = self._story, self._story.job
        if job.state != model_pb2.JOB_STATE_RUNNING or any(not kill.settled for kill in story.kills):
            return
        honest = [item for item in job.vnodes if item.assignment.pnode_id not in story.cheats]
        busy = [item for item in honest if item.report.state == ACTIVE and 0 < item.report.num_learned < job.num_batches]
        if story.progress() > 0.15 and "first" not in self._killing and len(job.vnodes) > 2:
            middle = next((item for item in job.vnodes[1:-1] if item in busy), None)
            if middle is not None:
                self._killing.add("first")
                await self._kill_pnode(middle.assignment.pnode_id)
        elif story.progress() > 0.40 and "holder" not in self._killing:
            process = self._network.process_of(job.holder)
            if process is not None and process.alive:
                self._killing.add("holder")
                await self._kill("orchestrator", process, ())
        elif story.progress() > 0.65 and "second" not in self._killing and busy:
            self._killing.add("second")
            await self._kill_pnode(busy[-1].assignment.pnode_id)

    async def _kill_pnode(self, node_id: str) -> None:
        process = self._network.process_of(node_id)
        hosted = tuple(item.vnode for item in self._story.job.vnodes if item.assignment.pnode_id == node_id)
        if process is not None and process.alive:
            await ask_lookups(self._story, [process])
            await self._kill("PNode", process, hosted)

    async def _kill(self, kind: str, process: Process, vnodes: tuple[str, ...]) -> None:
        job = self._story.job
        self._story.kills.append(
            Kill(
                kind, process.name, process.node_id, self._now(), vnodes, epoch=int(job.epoch), plan_number=int(job.plan_number),
                learned_before=sum(self._story.learned.values()), durable={vnode: self._story.durable.get(vnode, 0) for vnode in vnodes},
            )
        )  # fmt: skip
        what = f"hosting {', '.join(vnodes)}" if vnodes else "which decides"
        self._screen.say(f"{self._now():6.1f} s KILL -9 {kind} {process.name} ({what})")
        await _thread(lambda: self._network.kill(process))

    def _now(self) -> float:
        return self._clock.monotonic() - self._began

    def _name(self, node_id: str) -> str:
        process = self._network.process_of(node_id)
        return process.name if process else node_id[:8]


async def _thread(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)


def _directory(wanted: Path) -> Path:
    """``wanted``, or a short one in the system's temporary directory where local sockets would not fit below it."""
    return wanted if len(str(wanted)) <= MAX_PATH else Path(tempfile.mkdtemp(prefix="dcnr-demo-"))


def _check_ours(directory: Path) -> None:
    """Raises Refused for a directory with other things in it than what a demo left."""
    if directory.is_dir() and not (directory / MARK).exists() and any(path.name != LOCK_FILE for path in directory.iterdir()):
        raise Refused(
            f"{directory} holds other things than an earlier demo",
            code="directory_in_use",
            remedy="choose an empty --directory",
        )


def _make_empty(directory: Path) -> None:
    """Removes what an earlier demo left there; whoever calls holds its lock."""
    for path in directory.iterdir():
        if path.name not in (MARK, LOCK_FILE):  # half emptied, the directory is still known as ours
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    reached("demo.emptied")
    (directory / MARK).touch()
    reached("demo.marked")


def _tidy(directory: Path) -> None:
    """Keeps logs, the export and the figures, removes the rest."""
    for path in directory.iterdir():
        if path.name not in ("log", "export", NAME, MARK, LOCK_FILE):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def ways_in(network: LocalNetwork) -> list[str]:
    """Commands that look into a network that goes on: those that were killed are not asked."""
    pairs = zip(network.orchestrators, network.bootstrap, strict=True)
    entries = [f"--bootstrap {entry}" for process, entry in pairs if process.alive]
    homes = [process.home for process in network.pnodes if process.alive]
    return [
        f"dcnr job list --network {quote(str(network.network_file))} {' '.join(entries)}",
        *(f"pnode status --home {quote(str(home))}" for home in homes[:1]),
    ]


def _keep(network: LocalNetwork, screen: Screen) -> None:
    screen.say("")
    screen.say("the network goes on; Ctrl-C ends it. Try, in another terminal:")
    for line in ways_in(network):
        screen.say(f"  {line}")
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(1)
    sys.stdout.flush()
