"""A small network under test: its processes are kept alive as a supervisor would, and its maintainer asks until an answer comes.

Everything is asked of the network through its own calls; every wait has a deadline and says what it waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import psutil

import dcnr.sdk
from chaos.work import Work
from dcnr.audit_lineage import VNodeLineage, audit_lineage
from dcnr.errors import DcnrError, TimedOut, Unavailable
from dcnr.sdk.client import connect_async
from dcnr.sdk.staging import Source
from dcnr.sdk.submission import JobOptions
from dcnr.testing import LocalNetwork, Process
from dcnr.v1 import model_pb2, orchestrator_pb2
from trust.identity import NodeKey

POLL_S: Final = 0.1
RESTART_S: Final = 0.5
"""A process that has ended is started again after so long."""
ATTACH_S: Final = 120.0
T = TypeVar("T")


@dataclass(slots=True)
class End:
    """One process that ended, and whether it is up again."""

    name: str
    pid: int
    code: int
    at_s: float
    restarted_s: float | None = None


@dataclass(slots=True)
class Supervisor:
    """Starts again what has ended. `tend` is called often; it never waits."""

    processes: Sequence[Process]
    ends: list[End] = field(default_factory=list)
    held: set[str] = field(default_factory=set)
    """Names of processes that stay down for now."""
    _down: dict[str, End] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def tend(self) -> None:
        """Notices ends; starts what has been down for `RESTART_S`. From any thread."""
        with self._lock:
            self._tend()

    def _tend(self) -> None:
        now = time.monotonic()
        for process in self.processes:
            if process.popen is None or process.name in self.held:
                continue
            end = self._down.get(process.name)
            if end is None:
                code = process.popen.poll()
                if code is not None:
                    self._down[process.name] = end = End(process.name, process.pid, code, now)
                    self.ends.append(end)
            elif now - end.at_s >= RESTART_S:
                if process.popen.stdin is not None:
                    process.popen.stdin.close()
                process.start()
                end.restarted_s = time.monotonic()
                del self._down[process.name]


class Stand:
    """A running `LocalNetwork` with its maintainer."""

    def __init__(self, network: LocalNetwork) -> None:
        self.network = network
        self.key = NodeKey.load(network.maintainer_key)
        self.supervisor = Supervisor([*network.orchestrators, *network.pnodes])

    @contextlib.contextmanager
    def client(self) -> Iterator[dcnr.sdk.Client]:
        """A maintainer's client."""
        with dcnr.sdk.connect(self.network.bootstrap, network=self.network.network_file, key=self.key) as client:
            yield client

    def until(self, holds: Callable[[], bool], within_s: float, what: str) -> float:
        """Waits, keeping every process alive; the seconds that it took. Raises TimedOut with the ends of all logs."""
        began = time.monotonic()
        while not holds():
            self.supervisor.tend()
            if time.monotonic() - began > within_s:
                tails = "\n".join(f"-- {p.name}\n{p.tail(8)}" for p in (*self.network.orchestrators, *self.network.pnodes))
                raise TimedOut(f"not within {within_s:.0f} s: {what}\n{tails}", code="chaos_timeout")
            time.sleep(POLL_S)
        return time.monotonic() - began

    def ask(self, question: Callable[[dcnr.sdk.Client], T], within_s: float, what: str) -> T:
        """The answer, asked for until it comes: processes may die meanwhile. Raises TimedOut."""
        found: list[T] = []

        def asked() -> bool:
            with contextlib.suppress(DcnrError), self.client() as client:
                found.append(question(client))
            return bool(found)

        self.until(asked, within_s, what)
        return found[0]

    def attached(self, within_s: float = ATTACH_S) -> float:
        """Until every PNode works for an orchestrator."""
        wanted = {process.node_id for process in self.network.pnodes}

        def attached() -> bool:
            with contextlib.suppress(DcnrError), self.client() as client:
                return wanted <= {n.node_id for n in client.nodes() if n.attached and n.capability.gflops > 0}
            return False

        return self.until(attached, within_s, "every PNode is attached")

    def stage(self, work: Work) -> None:
        """Brings the data into the network."""
        path = self.network.directory / f"{work.name}.npz"
        work.write(path)
        self.ask(lambda client: client.stage(Source(str(path), work.name, "CC0-1.0", "made here")), 60.0, "the data is staged")

    def submit(
        self, work: Work, key: str, *, checkpoint_s: float = 1.0, lead_batches: int = 512, unit_batches: int = 8, batches_per_s: float = 0.0
    ) -> str:  # fmt: skip
        """A job that is in the store when this returns; repeated with one key it is one job."""
        options = JobOptions(
            idempotency_key=key, checkpoint_s=checkpoint_s, unit_batches=unit_batches, lead_batches=lead_batches, batches_per_s=batches_per_s
        )  # fmt: skip
        return self.ask(lambda client: client.submit(work.graph(), [self.key], options).job_id, 60.0, f"{key} is accepted")

    def job(self, job_id: str, model: str) -> orchestrator_pb2.JobView | None:
        """As an orchestrator sees it; None while none answers."""
        with contextlib.suppress(DcnrError), self.client() as client:
            return client.job(job_id, model)
        return None

    def ended(self, job_id: str, model: str, within_s: float) -> orchestrator_pb2.JobView:
        """The job once it has ended."""
        found: list[orchestrator_pb2.JobView] = []

        def ended() -> bool:
            view = self.job(job_id, model)
            if view is not None:
                found[:] = [view]
            return bool(found) and found[0].HasField("outcome") and bool(found[0].outcome.job_id)

        try:
            self.until(ended, within_s, f"{job_id} has ended")
        except TimedOut as error:
            raise TimedOut(f"{error.message}\n{found[0] if found else 'no view'}", code="chaos_timeout") from None
        return found[0]

    def completed(self, job_id: str, model: str, within_s: float) -> list[VNodeLineage]:
        """The lineages of a job that must complete, by an independent audit. Raises Unavailable if it ends otherwise, or a lineage is not exact."""
        view = self.ended(job_id, model, within_s)
        if view.state != model_pb2.JOB_STATE_COMPLETED:
            raise Unavailable(f"{job_id} ended as {model_pb2.JobState.Name(view.state)}: {view.outcome.reason}", code="job_lost")
        lineages: list[VNodeLineage] = []

        def read() -> bool:
            with contextlib.suppress(Unavailable, TimedOut):
                lineages[:] = asyncio.run(self._audited(model, view.outcome.manifest_digest))
            return bool(lineages)

        self.until(read, 60.0, "the lineages are read")
        for lineage in lineages:
            if not lineage.exact:
                raise Unavailable(f"{lineage.vnode}: {lineage.reason}", code="lineage_not_exact")
        return lineages

    async def _audited(self, model: str, manifest: str) -> list[VNodeLineage]:
        async with await connect_async(self.network.bootstrap, network=self.network.network_file, key=self.key) as client:
            return await audit_lineage(client, model, manifest=manifest)

    def again(self, processes: Sequence[Process], environment: Mapping[str, str]) -> None:
        """Kills processes and starts them with this added to what they were first given."""
        for process in processes:
            self.network.kill(process)
            process.environment = {**process.environment, **environment}
            process.start()


def died_at(note: Path, name: str) -> int | None:
    """The process that died at a crash point, by its note; None if none has. It is gone when this returns."""
    try:
        point, pid = note.read_text().split()
    except (OSError, ValueError):
        return None
    if point != name:
        raise Unavailable(f"the note is of {point}", code="wrong_note")
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(int(pid))
        if process.status() != psutil.STATUS_ZOMBIE:
            return None
    return int(pid)


def died_by_kill(stand: Stand, pid: int, codes: Mapping[int, int]) -> bool:
    """Whether a process of the network ended by SIGKILL: its own exit code, or its daemon's word for a worker."""
    if pid in codes:
        return codes[pid] == -signal.SIGKILL
    return any("SIGKILL" in process.log.read_text(errors="replace") for process in stand.network.pnodes)
