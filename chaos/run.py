"""A schedule of faults on a network of real processes: applied, undone, supervised, watched and measured, from the first process to the last.

Four things go on side by side in one event loop: views of the network are taken in, faults happen at their time and end at theirs, a supervisor
starts again what was killed, and the load of the computer is sampled. Whatever ends a run, also Ctrl-C, ends every process and removes every namespace.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks import machine
from benchmarks.meter import Meter
from benchmarks.namespaces import Machines
from benchmarks.wan import PROFILES
from chaos import watched, ways
from chaos.figures import conclude
from chaos.pulse import POLL_S as PULSE_S
from chaos.pulse import Pulse
from chaos.schedule import AT_ONCE, Fault, Kind, Schedule
from chaos.stand import Stand
from chaos.track import Struck, Tracker
from chaos.work import Work
from dcnr.errors import DcnrError, TimedOut, Unavailable
from dcnr.groups import first_cause
from dcnr.sdk.client import AsyncClient, connect_async
from dcnr.testing import LocalNetwork, LocalPNode, Process
from dcnr.v1 import model_pb2, orchestrator_pb2

FORMAT: Final = "dcnr-chaos-1"
VIEW_S: Final = 0.25
POLL_S: Final = 0.05
LOAD_S: Final = 5.0
SAMPLE_S: Final = 0.5
TRAINING_S: Final = 300.0
"""From submission until every VNode learns."""
FINISH_S: Final = 2400.0
"""From the end of the schedule until the job has ended."""
PROBE_BATCHES: Final = 4_000
"""No more than the measured job may have: what a batch costs grows with the number of them, so a longer job before it would tell too low a rate."""
PROBE_S: Final = 40.0
SETTLING_S: Final = 10.0
"""A job's rate is taken for so long, and so long after every VNode has learned something."""
WORKER_S: Final = 30.0
"""Until a daemon has said that its worker was killed, and has started another one."""
MIN_BATCHES: Final = 200
UNIT_BATCHES: Final = 2
"""Small shares: each of several replicas has one within the lead, so that each learns all the time."""
LEAD_BATCHES: Final = 64
"""Machines with less to do run ahead of the others for so long only: then the rate is that of the network, from the first window on."""
BEFORE_S: Final = 60.0
"""A job with a tempo is made so much longer than the schedule: so long it may take from its plan until every VNode learns."""
SPARE: Final = 1.5
"""A job is made so much longer than the schedule: machines just begun are slower than later. One that ends before all the same is followed by another."""
Row = dict[str, Any]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Setup:
    """What runs. ``schedule`` counts PNodes as victims."""

    schedule: Schedule
    work: Work
    num_orchestrators: int = 2
    cpu_percent: float = 100.0
    """Of one core, per PNode: the volunteer's own limit."""
    batches_per_s: float = 0.0
    """The tempo of the job, of each VNode; 0: none."""
    unit_batches: int = UNIT_BATCHES
    """Batches in a row that are one replica's."""
    memory_mb: int = 768
    checkpoint_s: float = 15.0
    own_machines: bool = False
    """Each PNode in a network namespace; needed for partitions."""
    link: str = ""
    """The profile of every PNode's link, if any; needs machines of their own."""
    fit: bool = True
    """Jobs that are made as long as the schedule by the rate of a short one before them; else as they are. One follows the other until it is over."""

    def check(self) -> None:
        """Raises Unavailable (``no_partitions``, ``no_links``) for partitions without machines of their own, and impaired links where none are emulated."""
        if not self.own_machines and any(fault.kind is Kind.PARTITION for fault in self.schedule.faults):
            raise Unavailable(
                "partitions need every PNode in a namespace of its own", code="no_partitions",
                remedy="run as root, or use --no-partitions",
            )  # fmt: skip
        if self.link in ("", ways.IMPAIRED) and any(fault.kind is Kind.IMPAIR for fault in self.schedule.faults):
            raise Unavailable(
                "impaired links need emulated ones that are better before", code="no_links", remedy="--link home, as root; or --no-partitions"
            )  # fmt: skip

    def settings(self) -> Row:
        """For the file."""
        recipe = self.schedule.recipe
        return {
            **asdict(recipe), "num_pnodes": recipe.num_victims, "num_vnodes": self.work.num_vnodes, "replicas_per_vnode": self.work.replicas,
            "num_batches": self.work.num_batches, "batch_size": self.work.batch_size, "width": self.work.width, "model_seed": self.work.seed,
            "work": type(self.work).__name__.lower(), "num_orchestrators": self.num_orchestrators, "cpu_percent_per_pnode": self.cpu_percent,
            "batches_per_s": self.batches_per_s, "unit_batches": self.unit_batches,
            "memory_mb_per_pnode": self.memory_mb, "checkpoint_s": self.checkpoint_s, "own_machines": self.own_machines, "link": self.link,
            "profile": asdict(PROFILES[self.link]) if self.link else None,
        }  # fmt: skip


def run(setup: Setup, *, say: Say = lambda text: None) -> Row:
    """The whole document of a run. Raises DcnrError where the network did not come up, or the job was lost."""
    setup.check()
    facts = machine.describe()
    with contextlib.ExitStack() as stack:
        machines = (
            stack.enter_context(Machines(setup.schedule.recipe.num_victims, profile=setup.link)) if setup.own_machines else None
        )
        round_trips_ms = trips(machines) if machines and setup.link else []
        directory = Path(tempfile.mkdtemp(prefix="dcnr-chaos-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        say(f"starting {setup.num_orchestrators} orchestrators and {setup.schedule.recipe.num_victims} PNodes")
        stand = Stand(stack.enter_context(network_of(setup, directory / "n", machines)))
        say(f"all attached after {stand.attached():.1f} s")
        setup = (scheduled(setup) if setup.batches_per_s else fitted(setup, stand, say)) if setup.fit else setup
        stand.stage(setup.work)
        try:
            measured = asyncio.run(_Measured(setup, stand, machines, say).run())
        except ExceptionGroup as group:
            raise first_cause(group) from None
        links = linked(machines, round_trips_ms) if machines and setup.link else {}
        document = {"format": FORMAT, "machine": facts, "settings": setup.settings(), **measured, **links}
    return {**document, "figures": conclude(document)}


def trips(machines: Machines) -> list[float]:
    """Milliseconds from each machine to the next one and back, the last one's to orchestrators and store: before any of them has something else to do."""
    ways = [machines.address(index) for index in range(1, machines.count)] + [machines.host]
    return [round(machines.round_trip_ms(index, address), 1) for index, address in enumerate(ways)]


def linked(machines: Machines, round_trips_ms: Sequence[float]) -> Row:
    """What the links did: each machine's, and last that of orchestrators and store. Raises Unavailable where they are gone."""
    return {"links": {"round_trips_ms": round_trips_ms, "carried": [asdict(one) for one in machines.links.carried()]}}


def network_of(setup: Setup, directory: Path, machines: Machines | None) -> LocalNetwork:
    """The network of a setup, not yet started."""
    moments = watched.moments_of(directory)
    moments.mkdir(parents=True, exist_ok=True)
    flags = ("--cpu-percent", f"{setup.cpu_percent:g}", watched.FLAG, str(moments))
    pnodes = [
        LocalPNode(
            f"p{number + 1}", 1.0, setup.memory_mb, flags, machines.address(number) if machines else "127.0.0.1",
            machines.prefix(number) if machines else (), watched.PROGRAM,
        )
        for number in range(setup.schedule.recipe.num_victims)
    ]  # fmt: skip
    host = machines.host if machines else "127.0.0.1"
    return LocalNetwork(directory, num_orchestrators=setup.num_orchestrators, pnodes=pnodes, name="chaos", host=host)


def scheduled(setup: Setup) -> Setup:
    """The setup with a job whose tempo makes it as long as the schedule, and a bit longer: its first batch is due before the first window begins."""
    num_batches = max(MIN_BATCHES, round(setup.batches_per_s * (setup.schedule.recipe.length_s + BEFORE_S)))
    return replace(setup, work=replace(setup.work, samples=num_batches * setup.work.batch_size, passes=1))


def fitted(setup: Setup, stand: Stand, say: Say) -> Setup:
    """The setup with a job that takes about as long as the schedule, at the rate that another one has here. That one is called off: a completed
    model would stay where it is, beside the one that is measured.
    """
    probe = replace(setup.work, name="probe", samples=PROBE_BATCHES * setup.work.batch_size, passes=1)
    stand.stage(probe)
    job_id = stand.submit(
        probe, "probe", checkpoint_s=setup.checkpoint_s, lead_batches=LEAD_BATCHES, unit_batches=setup.unit_batches
    )
    meter, began_s, rate = Meter(probe.num_batches, probe.vnodes), time.monotonic(), None
    with stand.client() as client:
        for view in client.watch(job_id, model=probe.name, interval_s=VIEW_S):
            now_s = time.monotonic()
            meter.seen(now_s, view.job.vnodes)
            if meter.began_s is not None and now_s >= meter.began_s + SETTLING_S + PROBE_S:
                rate = meter.rate(meter.began_s + SETTLING_S, now_s)
                break
            if now_s - began_s > TRAINING_S:
                break
    if not rate:
        raise Unavailable("the job before the run was not seen to learn", code="no_probe")
    stand.ask(lambda client: client.cancel(job_id, [stand.key], model=probe.name), 60.0, "the job before the run is called off")
    stand.ended(job_id, probe.name, TRAINING_S)
    num_batches = max(MIN_BATCHES, round(SPARE * rate * setup.schedule.recipe.length_s))
    say(f"another job ran at {rate:.1f} batches per second: the job gets {num_batches} batches")
    return replace(setup, work=replace(setup.work, samples=num_batches * setup.work.batch_size, passes=1))


@dataclass(slots=True)
class _Measured:
    """One job under faults."""

    setup: Setup
    stand: Stand
    machines: Machines | None
    say: Say
    zero_s: float = 0.0
    job: orchestrator_pb2.JobView = field(default_factory=orchestrator_pb2.JobView)
    job_ids: list[str] = field(default_factory=list)
    learned: list[list[float]] = field(default_factory=list)
    load: list[list[float]] = field(default_factory=list)
    tracker: Tracker = field(default_factory=Tracker)
    pulse: Pulse = field(default_factory=Pulse)
    meter: Meter = field(init=False)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """The schedule is."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """The last job has."""
    began: asyncio.Event = field(default_factory=asyncio.Event)
    killed: dict[int, Struck] = field(default_factory=dict)

    async def run(self) -> Row:
        """Submits, disturbs, waits for the end, audits."""
        work, stand = self.setup.work, self.stand
        await self._submit()
        submitted_s = time.monotonic()
        client = await connect_async(stand.network.bootstrap, network=stand.network.network_file, key=stand.key)
        async with client, asyncio.TaskGroup() as group:
            tasks = [group.create_task(task) for task in (self._watch(client), self._tend(), self._sample(), self._listen())]
            await self._within(self.began, TRAINING_S, "every VNode learns")
            self.zero_s = time.monotonic()
            self.say(
                f"every VNode learns after {self.zero_s - submitted_s:.1f} s; {len(self.setup.schedule.faults)} faults are to come"
            )
            await self._disturb()
            self.over.set()
            await self._within(self.ended, FINISH_S, "the job has ended")
            for task in tasks:
                task.cancel()
        lineages = [await asyncio.to_thread(stand.completed, job_id, work.name, FINISH_S) for job_id in self.job_ids]
        outcome = {
            "state": model_pb2.JobState.Name(self.job.state).removeprefix("JOB_STATE_").lower(), "jobs": len(lineages),
            "lineages_exact": min(sum(lineage.exact for lineage in one) for one in lineages), "num_vnodes": work.num_vnodes,
            "loss": self._losses(), "commits": sum(lineage.num_commits for one in lineages for lineage in one),
            "merged_from": {lineage.vnode: len(lineage.pnodes) for lineage in lineages[-1]},
        }  # fmt: skip
        return {
            "outcome": outcome,
            "faults": [struck.row(self.zero_s) | {"gap_s": self._gap_s(struck)} for struck in self.tracker.struck],
            "learned": [[round(at_s - self.zero_s, 2), count] for at_s, count in self.learned],
            "shares": [
                [round(at_s - self.zero_s, 2), *counts] for at_s, *counts in self.tracker.shares[::4] if at_s >= self.zero_s
            ],
            "load": [[round(at_s - self.zero_s, 1), *rest] for at_s, *rest in self.load],
        }

    async def _submit(self) -> None:
        """The next job."""
        work = self.setup.work
        key = f"chaos-{len(self.job_ids) + 1}"
        self.job_ids.append(
            await asyncio.to_thread(
                self.stand.submit,
                work,
                key,
                checkpoint_s=self.setup.checkpoint_s,
                lead_batches=LEAD_BATCHES,
                unit_batches=self.setup.unit_batches,
                batches_per_s=self.setup.batches_per_s,
            )
        )
        self.meter = Meter(work.num_batches, work.vnodes)

    async def _within(self, event: asyncio.Event, limit_s: float, what: str) -> None:
        try:
            async with asyncio.timeout(limit_s):
                await event.wait()
        except TimeoutError:
            raise TimedOut(
                f"not within {limit_s:.0f} s: {what}: {self.job}; {self.stand.network.trouble()}", code="chaos_timeout"
            ) from None

    async def _watch(self, client: AsyncClient) -> None:
        while not self.ended.is_set():
            with contextlib.suppress(DcnrError):
                async for view in client.watch(self.job_ids[-1], model=self.setup.work.name, interval_s=VIEW_S):
                    self._seen(view)
            if self.job.job_id == self.job_ids[-1] and self.job.HasField("outcome") and self.job.outcome.job_id:
                if self.over.is_set() or self.job.state != model_pb2.JOB_STATE_COMPLETED:
                    self.ended.set()
                else:
                    await self._submit()
            await asyncio.sleep(VIEW_S)

    def _seen(self, view: orchestrator_pb2.WatchJobResponse) -> None:
        now = time.monotonic()
        self.job = view.job
        self.meter.seen(now, view.job.vnodes)
        self.tracker.seen(now, view)
        if self.meter.began_s is not None:
            self.began.set()
        if self.began.is_set() and (not self.learned or now - self.learned[-1][0] >= SAMPLE_S):
            before = (len(self.job_ids) - 1) * self.setup.work.num_batches * self.setup.work.num_vnodes
            self.learned.append([now, before + sum(self.meter.learned(vnode) for vnode in self.meter.vnodes)])

    async def _tend(self) -> None:
        """Keeps processes alive; a kill is over when its process is started again."""
        while True:
            self.stand.supervisor.tend()
            up = {end.pid: end.restarted_s for end in self.stand.supervisor.ends if end.restarted_s is not None}
            for pid, struck in list(self.killed.items()):
                if pid in up:
                    struck.over_s = up[pid]
                    del self.killed[pid]
            await asyncio.sleep(POLL_S)

    async def _sample(self) -> None:
        psutil.cpu_percent()
        while True:
            await asyncio.sleep(LOAD_S)
            free_gib = psutil.virtual_memory().available / 2**30
            self.load.append([time.monotonic(), psutil.cpu_percent(), round(free_gib, 2), round(os.getloadavg()[0], 2)])

    async def _listen(self) -> None:
        moments = watched.moments_of(self.stand.network.directory)
        while True:
            await asyncio.to_thread(self.pulse.look, moments)
            await asyncio.sleep(PULSE_S)

    def _gap_s(self, struck: Struck) -> float | None:
        gap_s = self.pulse.gap_s(struck.hosted, struck.at_s + time.time() - time.monotonic())
        return None if gap_s is None else round(gap_s, 2)

    async def _disturb(self) -> None:
        """Every fault at its time, until the schedule or the job is over."""
        async with asyncio.TaskGroup() as group:
            for fault in self.setup.schedule.faults:
                if not await self._wait_until(fault.at_s):
                    return
                group.create_task(self._strike(fault))
            await self._wait_until(self.setup.schedule.recipe.length_s)

    async def _wait_until(self, moment_s: float) -> bool:
        """False if the job ended before."""
        left_s = self.zero_s + moment_s - time.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, left_s)):
                await self.ended.wait()
        return not self.ended.is_set()

    async def _strike(self, fault: Fault) -> None:
        network = self.stand.network
        process = ways.deciding(network, self.job.holder) if fault.kind is Kind.HOLDER else network.pnodes[fault.victim]
        struck = self.tracker.strikes(fault, process.node_id, time.monotonic())
        self.say(f"{fault.at_s:7.1f} s {fault.kind} {process.name} (hosting {', '.join(struck.hosted) or 'nothing'})")
        if fault.kind is Kind.WORKER:
            await self._kill_worker(process, struck)
        elif fault.kind in AT_ONCE:
            if process.alive:
                self.killed[process.pid] = struck
                process.send(signal.SIGKILL)
        else:
            end = ways.lasting(fault, process, self.machines, self.setup.link)
            try:
                await self._wait_over(fault)
            finally:
                end()
                struck.over_s = time.monotonic()

    async def _kill_worker(self, process: Process, struck: Struck) -> None:
        """It is over when the daemon has started another one; and the daemon must have said that the first one was killed."""
        struck.told = await ways.told_and_replaced(process, ways.kill_worker(process), WORKER_S)
        struck.over_s = time.monotonic()

    async def _wait_over(self, fault: Fault) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(fault.duration_s):
                await self.ended.wait()

    def _losses(self) -> Row:
        """Test loss by exit, as the job's curves tell it; training loss where there is none."""
        return {item.vnode: _loss(item) for item in self.job.vnodes}


def _loss(item: orchestrator_pb2.VNodeView) -> float | None:
    found = [result for result in item.curve if result.count and result.split == "test"]
    if found:
        return round(found[-1].sum_loss / found[-1].count, 4)
    return round(item.report.loss, 4) if item.report.loss else None
