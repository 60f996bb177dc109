"""Why this PNode is as it is: its newest events, its worker as last reported, and the reasons that follow from both. Reads state, changes nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dcnr import __version__
from dcnr.ports import Clock
from dcnr.v1 import common_pb2, local_pb2, membership_pb2, orchestrator_pb2
from pnode.load import WorkerLoad

MAX_EVENTS = 256
EVENTS_PER_BEAT = 64
NOT_STARTED = "the worker has not started yet"


class Journal:
    """The newest events of this PNode, numbered; each orchestrator is sent those it has not seen."""

    def __init__(self, clock: Clock, reporter: str, listen: Callable[[common_pb2.Event], None]) -> None:
        self._clock, self._reporter, self._listen = clock, reporter, listen
        self._events: deque[common_pb2.Event] = deque(maxlen=MAX_EVENTS)
        self._sequence = 0

    def say(self, kind: str, subject: str, reason: str) -> None:
        """Records an event. The same one again within the newest few is not repeated."""
        newest = list(self._events)[-8:]
        if any((event.kind, event.subject, event.reason) == (kind, subject, reason) for event in newest):
            return
        self.add(common_pb2.Event(kind=kind, subject=subject, reason=reason[:500]))

    def add(self, event: common_pb2.Event) -> None:
        """Records an event of the worker."""
        self._sequence += 1
        event.sequence, event.reporter = self._sequence, self._reporter
        event.time_unix_ms = event.time_unix_ms or int(self._clock.wall() * 1000)
        self._events.append(event)
        self._listen(event)

    def since(self, sequence: int, limit: int = EVENTS_PER_BEAT) -> list[common_pb2.Event]:
        """Events after ``sequence``, oldest first."""
        return [event for event in self._events if event.sequence > sequence][-limit:]


@dataclass(slots=True)
class WorkerFacts:
    """The worker as last reported."""

    pid: int = 0
    incarnation: int = 0
    device: str = ""
    device_name: str = ""
    device_gflops: float = 0.0
    """Of an accelerator; 0: a processor computes."""
    reason: str = NOT_STARTED
    last_words: str = ""
    """Of one that ended by an error; for its owner alone."""
    rss_bytes: int = 0
    cpu_s: float = 0.0
    load: WorkerLoad = field(default_factory=WorkerLoad)
    num_questions: int = 0
    num_learned: int = 0
    has_reported: bool = False
    """Whether it said anything since its hello: it serves then."""
    listens_at: Sequence[str] = ()
    """Relays at which connections to it may come in."""
    replicas: dict[str, orchestrator_pb2.ReplicaReport] = field(default_factory=dict)

    @staticmethod
    def of(pid: int, incarnation: int, hello: local_pb2.WorkerHello) -> WorkerFacts:
        """One that has just said hello."""
        return WorkerFacts(pid, incarnation, hello.device, hello.device_name, hello.gflops, reason="")

    @property
    def alive(self) -> bool:
        """Whether a worker runs and has said hello."""
        return self.pid != 0


def news_of(report: orchestrator_pb2.ReplicaReport, *, has_learned_all: bool) -> tuple[object, ...]:
    """What of a report cannot wait for the next beat: its state, what is durable, its evaluations, and that nothing is left to learn."""
    exits = tuple((item.split, item.round, item.count, item.complete) for item in report.exits)
    return report.state, report.durable.ByteSize(), exits, has_learned_all


Line = Callable[[str, str, str], None]
"""Adds a reason: its code, what it is, what would change it."""


def why(
    *, draining: bool, paused: str, attached: int, known_orchestrators: int, membership_trouble: str, worker: WorkerFacts,
    hosted: list[orchestrator_pb2.ReplicaReport], upload_trouble: str, capability: membership_pb2.Capability,
    contacts: Sequence[local_pb2.Contact] = (), num_seats: int = 0, store_is_away: bool = False, num_done: int = 0,
) -> list[local_pb2.WhyLine]:  # fmt: skip
    """Reasons for the present state, most important first; codes are stable. ``num_done``: of those hosted, replicas for which nothing is left to do."""
    lines: list[local_pb2.WhyLine] = []

    def line(code: str, reason: str, change: str) -> None:
        lines.append(local_pb2.WhyLine(code=code, reason=reason, change=change))

    if draining:
        line("draining", "this PNode hands its work over and stops", "start it again with `pnode start`")
    if paused:
        line("paused", paused, "`pnode resume`")
    elif not worker.alive and worker.reason == NOT_STARTED:
        line("no_worker", worker.reason, "nothing: it is being started, which takes some seconds")
    elif not worker.alive:
        said = f" ({worker.last_words})" if worker.last_words else ""
        line(
            "no_worker", worker.reason + said,
            "it is started by itself; where a setting is named, change that and start this PNode anew; log/worker.log in the home directory says more",
        )  # fmt: skip
    if not known_orchestrators:
        line("nobody_found", membership_trouble or "no orchestrator is known yet", "check --bootstrap and the network")
    elif not attached:
        line(
            "not_attached",
            "no orchestrator holds a control stream to this PNode",
            "it is tried again by itself; training goes on without",
        )
    _held_against(contacts, line)
    for report in hosted:
        if report.state == orchestrator_pb2.ASSIGNMENT_STATE_FAILED:
            if worker.alive and not paused:  # else it ended with the worker, whose reason is told above
                line("assignment_failed", f"{report.replica}: {report.reason}", "see limits and components in `pnode config show`")
        elif report.reason.startswith("waiting_for_audit"):
            line("waiting_for_audit", f"{report.replica}: {report.reason}", "nothing: it goes on when its work was checked")
        elif report.reason.startswith("job_paused"):
            line("job_paused", f"{report.replica}: {report.reason}", "nothing: it goes on when its maintainers resume it")
        elif report.held_back_by:
            line("held_back", f"{report.replica} waits for {report.held_back_by}, which is behind", "nothing: it goes on by itself")
    if upload_trouble:
        until = ", until the store is back" if store_is_away else ""
        line("upload_waits", upload_trouble, f"the newest snapshot waits on disk, and its upload is tried again by itself{until}")
    is_done = num_done == len(hosted)  # so it is where nothing is hosted
    if not lines and is_done:
        _done(num_done, num_seats, line)
    has_room = not hosted and all(found.code == "serving" for found in lines)
    lacking = next((contact for contact in contacts if contact.attached and contact.lacks), None)
    if has_room and lacking is not None:
        line(
            "component_lacking", f"orchestrator {lacking.node_id[:8]} has nothing for this machine: {lacking.lacks}",
            "get the file or module from its maintainers, and add it to the setting components (or --components) at the next start",
        )  # fmt: skip
    elif has_room:
        _unplaced(capability, contacts, line)
    if not lines:
        line("working", f"{_vnodes(len(hosted))} hosted", "")
    return lines


def _done(num_done: int, num_seats: int, line: Line) -> None:
    if num_seats:
        line("serving", f"{_vnodes(num_seats)} of a model answer{'s' * (num_seats == 1)} questions here", "")
    elif num_done:
        line(
            "all_learned",
            f"all that {_vnodes(num_done)} had to learn is learned and durable",
            "nothing: work comes with the next job",
        )


def _vnodes(count: int) -> str:
    return f"{count} VNode{'s' * (count != 1)}"


def _unplaced(capability: membership_pb2.Capability, contacts: Sequence[local_pb2.Contact], line: Line) -> None:
    """Nothing fits where nothing is lent, whatever jobs come."""
    if not capability.memory_bytes:
        line(
            "no_assignment", "nothing can be placed here: no memory is lent",
            "lend more than the daemon itself needs (`pnode status`): --memory-mb at the next start",
        )  # fmt: skip
    elif not capability.disk_bytes:
        line(
            "no_assignment", "nothing can be placed here: no disk is lent",
            "free disk space, or lend more of it: --disk-mb, or less in limits.disk_min_free_mb of config.toml, at the next start",
        )  # fmt: skip
    elif small := next((contact for contact in contacts if contact.attached and contact.too_small), None):
        line(
            "too_small", f"orchestrator {small.node_id[:8]} has nothing that fits here: {small.too_small}",
            "lend so much more, if you can, by --memory-mb or --disk-mb at the next start; else work comes when a job has smaller VNodes",
        )  # fmt: skip
    else:
        line(
            "no_assignment", "no plan places a VNode here at the moment", f"work comes when a job needs {capability.cores:g} cores"
        )


def _held_against(contacts: Sequence[local_pb2.Contact], line: Line) -> None:
    for contact in contacts:
        if contact.attached and contact.state == orchestrator_pb2.NODE_STATE_QUARANTINED:
            line("quarantined", _judged(contact), "it ends by itself; the evidence says what was wrong")
        elif contact.attached and contact.state == orchestrator_pb2.NODE_STATE_REHAB:
            line("rehab", _judged(contact), "nothing: what it computes is compared, and counts again after a while")


def _judged(contact: local_pb2.Contact) -> str:
    proof = f" (evidence {contact.evidence})" if contact.evidence else ""
    return f"orchestrator {contact.node_id[:8]}: {contact.state_reason}{proof}"


def state_of(lines: list[local_pb2.WhyLine]) -> str:
    """One word for the status screen."""
    words = {
        "draining": "draining", "paused": "paused", "no_worker": "starting", "nobody_found": "joining", "not_attached": "alone",
        "assignment_failed": "refusing",
        "quarantined": "quarantined", "rehab": "rehab", "waiting_for_audit": "waiting", "job_paused": "waiting",
        "held_back": "working", "upload_waits": "working", "no_assignment": "idle", "working": "working",
        "serving": "serving", "component_lacking": "idle", "too_small": "idle", "all_learned": "idle",
    }  # fmt: skip
    return words[lines[0].code]


SOFTWARE = f"dcnr {__version__}"


def state_name(state: orchestrator_pb2.NodeState.ValueType) -> str:
    """A node's state as people read it."""
    return orchestrator_pb2.NodeState.Name(state).removeprefix("NODE_STATE_").lower()
