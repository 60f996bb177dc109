"""What must hold at every step and at the end, each under a name of its own, judged from outside the core."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcnr.ids import vnode_of
from dcnr.intervals import IntervalSet
from simulation import arithmetic
from simulation.arithmetic import State
from vnode import events as ev
from vnode import merge_events as mev
from vnode.events import Event, Instruction
from vnode.replica_view import ReplicaView
from vnode.vocabulary import TRAIN_LANE, Lane, Mode

if TYPE_CHECKING:
    from dcnr.ids import ReplicaId
    from simulation.merge_calls import BetweenSteps
    from simulation.replica_shell import ReplicaShell
    from simulation.world import Simulation

SETTLED_S = 5.0
"""So long after the last change of incarnations or disturbance of the network, floors must be right."""
AGAIN = 0.25
"""Of all that is learned in a world, what one lost state may have others compute again. A checkpoint bounds it: honest worlds stay below 0.1."""


class Checkers:
    """Every rule of the data plane that can be seen from outside."""

    def __init__(self, world: Simulation) -> None:
        self._world = world
        self._floors: dict[tuple[str, int], tuple[float, int]] = {}
        self.num_learned = 0
        self.num_forwarded = 0
        self._around: set[tuple[str, int]] = set()
        """What was computed in the place of an owner to which an asker had no open way: each by one replica, once."""
        self.num_merged = 0
        self.num_successions = 0
        self.num_floors = 0
        """How many stated floors were compared with the truth."""

    def before(self, shell: ReplicaShell, event: Event) -> None:
        """Before a core hears an event."""

    def takes(self, shell: ReplicaShell, lane: Lane, batch: int, mode: int) -> bool:
        """Whether a receiver takes a frame; always, except where a test breaks the rule that modes belong to Needs."""
        return True

    def after(self, shell: ReplicaShell, event: Event, instructions: list[Instruction]) -> None:
        """After an event and its instructions."""
        kept = sum(1 for lane, _ in shell.spool if lane.is_train)
        self._world.require(kept <= shell.config.spool_batches, "spool_bound", f"{shell.replica}: {kept} frames are kept")
        others = len(shell.spool) - kept
        self._world.require(others <= shell.config.window_batches, "spool_bound", f"{shell.replica}: {others} evaluated")
        for instruction in instructions:
            if isinstance(instruction, ev.SendAck):
                self._floor(shell, instruction)
            elif isinstance(instruction, ev.Learn | ev.Forward) and self._is_first(shell, instruction):
                self._due(shell, instruction.batch)
        if any(isinstance(instruction, mev.Lead) for instruction in instructions):
            captures = any(isinstance(instruction, ev.TakeSnapshot) for instruction in instructions)
            self._world.require(captures, "first_checkpoint", f"{shell.replica}: becomes primary and does not checkpoint")

    @staticmethod
    def _is_first(shell: ReplicaShell, computed: ev.Learn | ev.Forward) -> bool:
        """Whether it computes a batch of training that it has not learned before."""
        is_training = isinstance(computed, ev.Learn) or computed.lane.is_train
        return is_training and computed.batch not in shell.state.lineage

    def _due(self, shell: ReplicaShell, batch: int) -> None:
        """A source begins no batch before it is due, for itself or for others, by the network's time as its machine knows it."""
        tempo = self._world.tempo
        if tempo is not None and shell.config.is_source:
            early_s = tempo.due_s(batch) - (shell.now_s + shell.ahead_s)
            self._world.require(
                early_s < 1e-6, "tempo", f"{shell.replica}: batch {batch} is begun {early_s:.3f} s before it is due"
            )

    def _floor(self, shell: ReplicaShell, ack: ev.SendAck) -> None:
        """While the incarnations stay the same, floors only rise and are never above the truth."""
        world = self._world
        key = (shell.replica, shell.incarnation)
        since_s, before = self._floors.get(key, (0.0, 0))
        self._floors[key] = (world.kernel.now_s, ack.floor)
        settled_from_s = world.authority.changed_s + SETTLED_S
        if min(since_s, world.kernel.now_s) < settled_from_s or world.has_zombies():
            return
        self.num_floors += 1
        world.require(ack.floor >= before, "floor_monotone", f"{shell.replica}: floor {before} then {ack.floor}")
        true = min(self._lowest(other) for other in world.behind(shell))
        world.require(ack.floor <= true, "floor_true", f"{shell.replica}: states {ack.floor}, it is {true}")

    def _lowest(self, shell: ReplicaShell) -> int:
        lowest = (self._world.owned(shell) - shell.state.lineage).lowest()
        return self._world.knobs.num_batches if lowest is None else lowest

    def learning(self, shell: ReplicaShell, learn: ev.Learn) -> None:
        """Before a step: the state must not hold that batch yet."""
        self.num_learned += 1
        twice = learn.batch in shell.state.lineage
        apart = len(shell.maths.open) if shell.config.audited else 0
        self._world.require(not twice, "exactly_once", f"{shell.replica}: batch {learn.batch} is learned twice")
        self._world.require(
            learn.num_learned == len(shell.state.lineage) - apart, "num_learned", f"{shell.replica}: step {learn.num_learned}"
        )

    def forwarding(self, shell: ReplicaShell, forward: ev.Forward) -> None:
        """As a forward pass begins: what is to be learned here is never only forwarded, and tests see only final weights. A plan that comes while
        it is under way may well have the batch learned here after all.
        """
        state, where = shell.state, f"{shell.replica}: batch {forward.batch}"
        if forward.mode is Mode.FORWARD_ONLY:
            self.num_forwarded += 1
            if self._goes_around(shell, forward.batch):
                self._around.add((shell.vnode, forward.batch))
            is_own = forward.batch in shell.owned - state.lineage
            self._world.require(not is_own, "learn_first", f"{where} is recomputed and was still to be learned")
        elif forward.lane.split == "test":
            is_final = state.lineage.is_exactly(0, self._world.knobs.num_batches)
            self._world.require(is_final, "final_weights", f"{where} is tested with unfinished weights")

    def _goes_around(self, shell: ReplicaShell, batch: int) -> bool:
        """Whether it computes what a sibling owes to whom no way is open somewhere behind."""
        edges = (edge for other in self._world.members() for edge in other.edges.values() if not edge.is_up)
        away = {edge.asked for edge in edges if vnode_of(edge.asked) == shell.vnode}
        return batch not in shell.owned and self._world.owner(shell.vnode, batch) in away

    def snapshot(self, shell: ReplicaShell, snapshot: ev.TakeSnapshot) -> None:
        """The lineage that goes into the file is the state's, and the state is the sum of its lineage."""
        state = shell.state
        self._world.require(state.is_sum, "exactly_once", f"{shell.replica}: the state is not the sum of its lineage")
        self._world.require(snapshot.lineage == state.lineage, "snapshot_lineage", f"{shell.replica}: {snapshot.lineage}")

    def changed(self, shell: ReplicaShell, work: BetweenSteps) -> None:
        """After a delta, an anchor or a merge: what is in the state is in it once, and is what the core says."""
        state = shell.state
        self.num_merged += len(work.requests) if isinstance(work, mev.MergeDeltas) else 0
        self._world.require(state.is_sum, "exactly_once", f"{shell.replica}: {sorted(state.learned)} after {work!r:.200}")
        kept = shell.maths.open + shell.maths.after if isinstance(work, mev.Rebase) and shell.config.audited else ()
        self._world.require(not kept, "interval", f"{shell.replica}: {kept} are kept over an anchor")
        lineage = work.lineage | work.batches if isinstance(work, mev.MakeDelta) else work.lineage
        if shell.core.view().lineage - lineage:
            self._world.authority.disturbed(0.0)  # what was dropped is needed again: floors may fall
        is_true = lineage == state.lineage
        self._world.require(is_true, "true_lineage", f"{shell.replica}: says {lineage}, holds {state.lineage}")

    def leads(self, shell: ReplicaShell, lead: mev.Lead) -> None:
        """A replica becomes primary: with what it holds."""
        self.num_successions += 1
        self._world.require(lead.lineage == shell.state.lineage, "true_lineage", f"{shell.replica}: leads with {lead.lineage}")

    def succeeds(self, successor: State, siblings: list[State], named: State) -> None:
        """The plan names a new primary: neither a live sibling nor the newest checkpoint holds more."""
        most = max(len(state.lineage) for state in (*siblings, named))
        holds = len(successor.lineage)
        self._world.require(holds >= most, "succession", f"{successor.vnode}: {holds} batches follow, {most} are at hand")

    def named(self, shell: ReplicaShell, old: State, new: State, named_by: tuple[ReplicaId, int] | None) -> None:
        """A manifest takes over ``new`` for ``old``."""
        is_primary = self._world.is_primary(shell)
        self._world.require(is_primary, "foreign_record", f"{shell.replica} is not the primary and has a checkpoint named")
        goes_back = named_by == (shell.replica, shell.incarnation) and bool(old.lineage - new.lineage)
        self._world.require(not goes_back, "manifest_back", f"{shell.vnode}: {old.lineage} replaced by {new.lineage}")

    def explain(self) -> None:
        """For any batch that a living primary lacks, its report names over which edge it is asked for, from whom and why."""
        for shell in self._world.members():
            view = shell.core.view()
            is_true = view.lineage == shell.state.lineage
            self._world.require(is_true, "true_lineage", f"{shell.replica}: says {view.lineage}, holds {shell.state.lineage}")
            missing = view.owned - view.lineage
            explained = IntervalSet.empty()
            for need in view.needs:
                if need.lane == TRAIN_LANE:
                    explained |= need.wanted
                    self._world.require(bool(need.why), "explain", f"{shell.replica}: no reason")
            unexplained = len(missing - explained)
            is_allowed = unexplained <= shell.config.window_batches + 1
            self._world.require(is_allowed, "explain", f"{shell.replica}: {unexplained} batches are missing without a word")
            is_idle = _is_idle(view) and not view.failing
            self._world.require(unexplained == 0 or not is_idle, "explain", f"{shell.replica}: idle, nothing asked for")

    def at_end(self) -> None:
        """Storms and recomputation stay in proportion to what went wrong; tests are complete and follow from the final states."""
        world = self._world
        views = [shell.core.view() for shell in world.members()]
        sent = sum(view.counters.frames_sent for view in views)
        again = sum(view.counters.frames_resent for view in views)
        allowed = world.num_corrupt + 0.05 * sent + 4 * world.knobs.window_batches * world.num_faults
        world.require(again <= allowed, "storm", f"{again} of {sent} frames were sent again, {allowed:.0f} allowed")
        if world.num_lost_states == 0:
            beside = self.num_forwarded - len(self._around)
            few = 0.02 * self.num_learned
            world.require(beside <= few, "recompute", f"{beside} computed again, nothing was lost")
            wasted = self.num_learned - world.knobs.num_batches * len(world.topology.inputs)
            is_allowed = wasted == 0 or world.knobs.compute_failure_probability > 0
            world.require(is_allowed, "wasted", f"{wasted} batches were learned in vain, nothing was lost")
        else:
            most = AGAIN * world.num_lost_states * world.knobs.num_batches * len(world.topology.inputs)
            world.require(self.num_forwarded <= most, "recompute", f"{self.num_forwarded} computed again of at most {most:.0f}")
        for shell in world.primaries():
            state = shell.state
            is_whole = state.lineage.is_exactly(0, world.knobs.num_batches) and sorted(state.learned) == list(state.lineage)
            world.require(is_whole, "exactly_once", f"{shell.replica}: {state.lineage}")
        self._tests()

    def _tests(self) -> None:
        """What the test round must have given, computed from the final states alone."""
        world = self._world
        outputs: dict[tuple[str, int], bytes] = {}
        lane = Lane("test", 0)
        for vnode, inputs in world.topology.inputs.items():
            total = 0.0
            shell = world.primary(vnode)
            for batch in range(world.knobs.test_batches):
                tensors = tuple(
                    outputs[name, batch] if name in world.topology.inputs else arithmetic.data(lane, batch) for name in inputs
                )
                outputs[vnode, batch], loss = arithmetic.evaluate(shell.state, lane, batch, tensors)
                total += loss
            found = next(item for item in shell.core.view().evaluations if item.lane == lane)
            same = found.complete and abs(found.sum_loss - total) < 1e-6 and found.count == 2 * world.knobs.test_batches
            world.require(same, "test_result", f"{shell.replica}: {found} instead of {total}")


def _is_idle(view: ReplicaView) -> bool:
    return not view.computing and not view.held_back_by and not view.paused_why
