"""What must hold though the store went back: whoever had seen a newer head decides above it, a job whose end is in the store is placed by nobody, and no
replica's name is given twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dataservice import keys
from dcnr.ids import NodeId
from dcnr.v1 import model_pb2
from simulation.control_identity import MODEL

if TYPE_CHECKING:
    from simulation.control_orchestrator import OrchestratorShell
    from simulation.control_world import ControlWorld
    from simulation.kernel import Process


class BackupCheckers:
    """Remembers what a store held before it went back, and who had seen its head."""

    def __init__(self, world: ControlWorld) -> None:
        self._world = world
        self._lost: dict[str, bytes] = {}
        self._knew: dict[str, tuple[Process, int, int]] = {}
        """By orchestrator that knew a newer head than the store has again: its life, and epoch and sequence of that. Whoever knows just the head that is
        there lost nothing, and writes on from it in its term.
        """
        self._given: dict[str, tuple[str, str]] = {}
        """By replica that a plan has ever placed, also one that was lost: where, and for which job."""
        self.undone: dict[str, model_pb2.Outcome] = {}
        """What heads had decided that are in the store no more; who read one acknowledged may still write the end."""
        self._lost_heads: dict[bytes, float] = {}
        """With when the store went back before them."""
        self.highest_epoch = 0
        """Of all heads before the store went back; 0: it never did."""
        self.num_back = self.num_repeated = 0

    def restored(self, before: Mapping[str, bytes], decided: Mapping[str, model_pb2.Outcome], highest_epoch: int) -> None:
        """The store went back; it held that before, and its heads had decided that."""
        store = self._world.store.store
        self.num_back += 1
        self._lost_heads[before[keys.head(MODEL)]] = self._world.kernel.now_s
        self._lost |= {key: data for key, data in before.items() if store.peek(key) is None}
        self.undone |= decided
        self.highest_epoch = highest_epoch
        there = self._world.head()
        assert there is not None
        self._knew = {  # a second copy may have brought back what the first one lacked
            node_id: known for node_id, known in self._knew.items() if known[1] > there.epoch or known[2] > there.sequence
        }
        for shell in self._world.honest():
            head = shell.runtime.head if shell.is_alive else None
            if head is not None and (head.epoch > there.epoch or head.sequence > there.sequence):
                self._knew[shell.node_id] = shell.process, int(head.epoch), int(head.sequence)

    def may_hold_on(self, shell: OrchestratorShell) -> bool:
        """Whether an orchestrator takes itself for the holder by a renewal that the store has lost, and that nothing has told it yet. It does so until it
        would have to renew again, and nothing that it decides lands.
        """
        core = shell.runtime.loop.core
        lost_s = self._lost_heads.get(core.known.data) if core.known is not None else None
        within_s = core._times.stop_s / (1.0 - self._world.knobs.drift)  # by the slowest of clocks
        return lost_s is not None and core._seen._older is None and self._world.kernel.now_s <= lost_s + within_s

    def has_held(self, key: str, data: bytes) -> bool:
        """Whether that is what the store has there, or had before it went back: whoever has not noticed may tell what was lost, and store another."""
        return data in (self._world.store.store.peek(key), self._lost.get(key))

    def landed(self, head: model_pb2.Head) -> None:
        """A head was written. Whoever knew a newer one than the store has again is above it by epoch and by sequence: so nobody takes it for older."""
        process, epoch, sequence = self._knew.get(head.holder, (None, 0, 0))
        knows = process is not None and process is self._world.orchestrator(NodeId(head.holder)).process
        above = head.epoch > epoch and head.sequence > sequence
        self._world.require(
            not knows or above, "above_seen", f"epoch {head.epoch}, sequence {head.sequence} of who had seen {epoch}, {sequence}"
        )

    def planned(self, head: model_pb2.Head, plan: model_pb2.Plan, before: model_pb2.Plan | None) -> None:
        """The head names a plan after ``before``: it is for no job that has ended. Where none is active it may leave a completed model where it is."""
        has_end = bool(plan.job_id) and self._world.store.store.peek(keys.job_end(MODEL, plan.job_id)) is not None
        placed = {(item.replica, item.pnode_id) for item in before.assignments} if before is not None else set()
        is_at_rest = head.active.job_id != plan.job_id and all((item.replica, item.pnode_id) in placed for item in plan.assignments)
        self._world.require(
            not has_end or is_at_rest, "ended_again", f"plan {plan.number} places {plan.job_id}, whose end is in the store"
        )

    def given(self, plan: model_pb2.Plan) -> None:
        """The head names a plan: no replica of it has the name of another, also not of one in a plan that the store has lost."""
        for item in plan.assignments:
            place = item.pnode_id, plan.job_id
            first = self._given.setdefault(item.replica, place)
            self._world.require(
                first == place,
                "number_again",
                f"{item.replica} is on {place[0][:8]} for {place[1]}, and was on {first[0][:8]} for {first[1]}",
            )

    def may_repeat(self, job_id: str) -> bool:
        """Whether a head may decide about a job what was decided already: the one before went back, and the job's end is there still."""
        may = self.num_back > 0 and self._world.store.store.peek(keys.job_end(MODEL, job_id)) is not None
        self.num_repeated += may
        return may
