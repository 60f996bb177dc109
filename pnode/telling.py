"""What the daemon says of itself: greetings and beats to orchestrators, status and reasons to its owner. Reads the parts, changes nothing; who asks what is
lent has the speed of the machine measured again where that is due.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dcnr.client import Known
from dcnr.ids import NodeId
from dcnr.ports import Clock
from dcnr.specs import Registry
from dcnr.v1 import common_pb2, local_pb2, membership_pb2, orchestrator_pb2
from membership.node import Membership
from pnode.budget import Budget
from pnode.control import ControlStreams
from pnode.diary import Diary, Seen
from pnode.duties import Duties
from pnode.lent import capability_of
from pnode.line import Line
from pnode.neighbours import Neighbours
from pnode.pausing import Pausing
from pnode.probe import Machine
from pnode.reach import Look
from pnode.reasons import SOFTWARE, Journal, WorkerFacts, state_of, why
from pnode.seat_duties import SeatDuties
from pnode.speed import MeasuredSpeed
from pnode.uploads import Uploads
from trust.network import NetworkPolicy

MEASURE_DISK_S: Final = 10.0


@dataclass(slots=True)
class Condition:
    """How the daemon is now; the daemon writes it, everybody reads it."""

    started_s: float
    outbound_only: bool = False
    worker: WorkerFacts = field(default_factory=WorkerFacts)
    draining: bool = False
    """It hands over and ends."""
    halting: bool = False
    """It hands over and pauses."""
    reachable: str = "unknown"
    """What the last orchestrator that welcomed this machine found."""
    is_data_told: bool = True
    """Whether others are told an address of the worker; they are not where tests said that nobody can dial it."""
    looks: tuple[Look, ...] = ()
    """What the last test from outside found."""
    reach_note: str = ""
    relay_mbit: float = 0.0
    """What it passes on for others now; 0: nothing."""
    num_passed_on: int = 0
    control_address: str = ""
    disk_bytes: int = 0
    num_learned: int = 0
    """Batches that VNodes here learned themselves since the daemon began, whichever worker it was."""
    num_questions: int = 0
    """Likewise, of which they computed a part."""

    def counted(self, report: local_pb2.WorkerReport) -> None:
        """The worker says what it has done since it began."""
        self.num_learned += max(0, int(report.num_learned) - self.worker.num_learned)
        self.num_questions += max(0, int(report.num_questions) - self.worker.num_questions)
        self.worker.num_learned, self.worker.num_questions = int(report.num_learned), int(report.num_questions)

    @property
    def is_leaving(self) -> bool:
        """Whether this machine hands over, or a replica does by the worker's word."""
        releasing = orchestrator_pb2.ASSIGNMENT_STATE_RELEASING
        return self.draining or self.halting or any(report.state == releasing for report in self.worker.replicas.values())

    @property
    def reached(self) -> str:
        """How others reach this machine: direct, relayed, not, or unknown, as long as no relay takes one that tells no address to try."""
        if self.outbound_only or not self.is_data_told:
            return "relayed" if self.worker.listens_at else "unknown" if self.outbound_only else "not"
        if any(look.data == membership_pb2.REACH_RESULT_REACHED for look in self.looks):
            return "direct"
        return self.reachable


@dataclass(frozen=True, slots=True)
class Telling:
    """See the module."""

    node_id: NodeId
    policy: Callable[[], NetworkPolicy]
    machine: Machine
    clock: Clock
    now: Condition
    orchestrators: Known
    membership: Membership
    budget: Budget
    duties: Duties
    neighbours: Neighbours
    streams: ControlStreams
    uploads: Uploads
    pausing: Pausing
    journal: Journal
    seats: SeatDuties
    line: Line
    public_name: str
    registry: Registry
    speed: MeasuredSpeed = field(default_factory=MeasuredSpeed)

    def hello(self) -> orchestrator_pb2.Hello:
        """The first message of a control stream."""
        _, _, desired = self.duties.term()
        registry = self.registry
        return orchestrator_pb2.Hello(
            advert=self.membership.own_advert, heads=self.duties.heads_seen(), protocol=common_pb2.ProtocolRange(min=1, max=1),
            desired_sequence=desired.sequence if desired is not None else 0,
            builds=orchestrator_pb2.Builds(
                components=sorted(registry.components), objectives=sorted(registry.objectives), optimizers=sorted(registry.optimizers),
            ),
        )  # fmt: skip

    def beat(self, sequence: int) -> orchestrator_pb2.Beat:
        """A heartbeat."""
        _, _, desired = self.duties.term()
        worker = self.now.worker
        return orchestrator_pb2.Beat(
            sequence=sequence, desired_sequence=desired.sequence if desired is not None else 0,
            plan_digest=desired.plan_digest if desired is not None else "", replicas=self.reports(), evidence=self.neighbours.evidence(),
            capability=self.capability(), free_memory_bytes=max(0, self.budget.free_memory_bytes),
            draining=self.now.draining or self.now.halting, worker_alive=worker.alive,
            worker_reason=self.pausing.reason if self.pausing.is_paused else worker.reason, incarnation=worker.incarnation,
            events=self.journal.since(0)[-16:], advert=self.membership.own_advert, seats=self.seats.reports(), load=self.load(),
        )  # fmt: skip

    def capability(self) -> membership_pb2.Capability:
        """What is lent now."""
        return capability_of(
            self.budget.allowed,
            self.budget,
            self.speed.of(self.machine, is_idle=not self.duties.hosted, now_s=self.clock.monotonic()),
            device=self.now.worker.device,
            accepts_work=not self.resting(),
            device_name=self.now.worker.device_name,
            device_gflops=self.now.worker.device_gflops,
            relay_mbit=self.now.relay_mbit,
            uplink_mbit=self.line.uplink_mbit,
        )

    def load(self) -> membership_pb2.Load | None:
        """What VNodes use of what is lent: nothing where no worker runs, None where it is not known yet."""
        worker = self.now.worker
        cores = worker.load.cores(self.clock.monotonic()) if worker.alive else 0.0
        return None if cores is None else membership_pb2.Load(cores=cores)

    def resting(self) -> str:
        """Why this machine is to begin nothing, whatever its worker does; empty where it may."""
        if self.pausing.is_paused:
            return self.pausing.reason
        return "this machine hands its work over and stops" if self.now.draining else ""

    def takes_no_work(self) -> str:
        """Why this machine takes nothing new now; empty where it does."""
        if not (self.capability().accepts_work and self.now.worker.alive):
            return "this machine takes no work at the moment"
        return "a replica waits for memory here" if self.duties.awaits_room else ""

    def reports(self) -> list[orchestrator_pb2.ReplicaReport]:
        """One of each replica that is hosted, or should be."""
        reports = []
        for item in self.duties.hosted:
            known = self.now.worker.replicas.get(item.assignment.replica)
            report = orchestrator_pb2.ReplicaReport()
            if known is not None:
                report.CopyFrom(known)
            if known is None or item.task is not None or item.state == orchestrator_pb2.ASSIGNMENT_STATE_FAILED:
                report.replica, report.vnode, report.role = item.assignment.replica, item.assignment.vnode, item.assignment.role
                report.state, report.reason, report.incarnation = item.state, item.reason, self.now.worker.incarnation
            reports.append(report)
        return reports

    def why(self) -> list[local_pb2.WhyLine]:
        """Reasons for the present state."""
        return why(
            draining=self.now.draining, paused=self.pausing.reason if self.pausing.is_paused else "", attached=len(self.streams.attached),
            known_orchestrators=len(self.orchestrators()), membership_trouble=self.membership.trouble, worker=self.now.worker,
            hosted=(hosted := self.reports()), num_done=sum(map(self.duties.is_done, hosted)), upload_trouble=self.uploads.trouble,
            store_is_away=self.uploads.store_is_away, capability=self.capability(), contacts=self.streams.contacts(),
            num_seats=sum(seat.ready for seat in self.seats.reports()),
        )  # fmt: skip

    def tested(self) -> list[local_pb2.Tested]:
        """What the last test from outside found."""
        now_s = self.clock.monotonic()
        return [
            local_pb2.Tested(tester=look.tester, host=look.host, control=look.control, data=look.data, age_s=max(0.0, now_s - look.at_s))
            for look in self.now.looks
        ]  # fmt: skip

    async def disk(self, measured_bytes: Callable[[], int]) -> None:
        """Keeps what the home takes of the disk up to date, until cancelled; beside all else, since the disk may stand still."""
        while True:
            self.now.disk_bytes = await asyncio.to_thread(measured_bytes)
            await asyncio.sleep(MEASURE_DISK_S)

    def diary(self, path: Path) -> Diary:
        """The diary in that file, which hears of the same states as the owner."""
        return Diary(path, self.clock, lambda: Seen(state_of(self.why()), self.now.num_learned, self.now.num_questions))

    def status(self) -> local_pb2.StatusResponse:
        """One screen that tells all."""
        lines, worker, now = self.why(), self.now.worker, self.now
        _, term, _ = self.duties.term()
        return local_pb2.StatusResponse(
            node_id=self.node_id, network_id=self.policy().network_id, network_name=self.policy().document.name, software=SOFTWARE,
            uptime_s=self.clock.monotonic() - now.started_s, state=state_of(lines), reason=lines[0].reason, next_action=lines[0].change,
            orchestrators=self.streams.contacts(), num_known=len(self.membership.members()), reachable=now.reached,
            capability=self.capability(), replicas=self.reports(), memory_bytes=worker.rss_bytes, disk_bytes=now.disk_bytes,
            epoch=term.epoch if term else 0, holder=term.holder if term else "", control_address=now.control_address,
            dht_address=self.membership.dht_address, incarnation=worker.incarnation, locality=self.policy().document.locality,
            pid=os.getpid(), worker_pid=worker.pid, dht_lookups=self.membership.dht_lookups, events=self.journal.since(0, 64), seats=self.seats.reports(),
            cpu_s=time.process_time() + worker.cpu_s, uploaded_bytes=self.line.up.num_bytes, downloaded_bytes=self.line.down.num_bytes,
            upload_limit_bytes_s=self.line.up.limit_bytes_s, download_limit_bytes_s=self.line.down.limit_bytes_s, num_questions=worker.num_questions,
            num_batches={item.assignment.replica: item.num_batches for item in self.duties.hosted if item.num_batches},
            public_name=self.public_name, load=self.load(), tested=self.tested(), reach_note=now.reach_note,
            relays=worker.listens_at, num_passed_on=now.num_passed_on,
            disk_limit_bytes=self.budget.allowed.disk_bytes + self.budget.allowed.cache_bytes,
        )  # fmt: skip
