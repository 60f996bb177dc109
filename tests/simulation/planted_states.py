"""Bugs in what replicas say, keep and begin: one for each checker of the data world that no other bug turns red alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dcnr.intervals import IntervalSet
from simulation.arithmetic import initial_state
from simulation.authority import Authority
from vnode import core as core_module
from vnode.contributing import Contributing
from vnode.core import ReplicaCore
from vnode.evaluation import _Round
from vnode.events import ComputeFailed, DropFrames, Forwarded, Instruction, PlanChanged, TakeSnapshot
from vnode.holding import Holding
from vnode.intake import Intake
from vnode.merge_events import AnswerMerge, MakeDelta
from vnode.merging import Merging
from vnode.replica_view import Computation
from vnode.spool import Spool
from vnode.vocabulary import Lane


def floors_fall_with_every_delta(patch: pytest.MonkeyPatch) -> None:
    """Rule 3: what a contributor has just handed in counts as unlearned until it has learned more, what it has just learned does not."""

    def floor(self: Holding) -> int:
        lowest = (self.missing if self.after else self.missing | self.open).lowest()
        return len(self.everything) if lowest is None else lowest

    patch.setattr(Holding, "floor", property(floor))


def the_window_lies_beside_the_spool(patch: pytest.MonkeyPatch) -> None:
    """The spool has room for a window more than it was given."""
    patch.setattr(core_module, "Spool", lambda train_batches, eval_batches: Spool(train_batches + eval_batches, eval_batches))


def what_is_removed_is_removed_again(patch: pytest.MonkeyPatch) -> None:
    """What all behind have kept is taken out of the spool whether it is in it or not."""
    remove = Spool.remove

    def every(self: Spool, lane: Lane, batches: IntervalSet, pinned: Any) -> list[DropFrames]:
        dropped = remove(self, lane, batches, pinned)
        return [*dropped, *dropped[:1]]

    patch.setattr(Spool, "remove", every)


def tests_begin_before_the_last_batch(patch: pytest.MonkeyPatch) -> None:
    """Tests begin when the last batch is on its way, not when what is durable holds it."""
    patch.setattr(ReplicaCore, "_is_final", lambda self: len(self._holding.missing) <= 1)


def evaluations_count_by_their_place(patch: pytest.MonkeyPatch) -> None:
    """A test result adds to each batch what the one before it gave."""
    count = _Round.count

    def add(self: _Round, result: Forwarded, step: int) -> None:
        before = sum(known[0] for known in self._results.values())
        count(self, replace(result, sum_loss=result.sum_loss + before), step)

    patch.setattr(_Round, "count", add)


def snapshots_say_what_the_last_one_held(patch: pytest.MonkeyPatch) -> None:
    """A snapshot is said to hold what was learned until the one before it."""
    between = ReplicaCore._next_between_steps

    def late(self: ReplicaCore) -> Computation | None:
        found = between(self)
        return replace(found, lineage=self._snapshots._lineage) if isinstance(found, TakeSnapshot) else found

    patch.setattr(ReplicaCore, "_next_between_steps", late)


def what_an_anchor_holds_is_not_said(patch: pytest.MonkeyPatch) -> None:
    """Rule 7: a contributor that goes on from an anchor is said to hold what it has handed in alone."""
    computation = Contributing.computation

    def alone(self: Contributing, now_s: float, num_learning: int) -> Any:
        found = computation(self, now_s, num_learning)
        return replace(found, lineage=IntervalSet.empty()) if isinstance(found, MakeDelta) else found

    patch.setattr(Contributing, "computation", alone)


def needs_have_no_reason(patch: pytest.MonkeyPatch) -> None:
    """Invariant 11: a report names what is lacking, and not why."""
    patch.setattr(Intake, "_why", lambda self, *need: "")


def questions_are_answered_again(patch: pytest.MonkeyPatch) -> None:
    """Who was answered waits on, and is answered with every event."""
    answers = Merging.answers

    def again(self: Merging, lineage: IntervalSet) -> list[AnswerMerge]:
        waiting = dict(self._waiting)
        found = answers(self, lineage)
        self._waiting.update(waiting)
        return found

    patch.setattr(Merging, "answers", again)


def deltas_have_no_number(patch: pytest.MonkeyPatch) -> None:
    """A contributor asks about the delta that it will make next."""
    made = Contributing.made

    def ahead(self: Contributing, delta: MakeDelta, now_s: float) -> None:
        made(self, delta, now_s)
        self._sequence += 1

    patch.setattr(Contributing, "made", ahead)


def plans_forget_what_is_under_way(patch: pytest.MonkeyPatch) -> None:
    """With a new plan everything begins anew, whatever is being computed."""
    planned = ReplicaCore._planned

    def anew(self: ReplicaCore, event: PlanChanged, out: list[Instruction]) -> None:
        self._busy = None
        planned(self, event, out)

    patch.setattr(ReplicaCore, "_planned", anew)


def every_failure_is_fatal(patch: pytest.MonkeyPatch) -> None:
    """A computation that failed once ends its replica."""
    failed = ReplicaCore._failed

    def fatal(self: ReplicaCore, event: ComputeFailed, *rest: Any) -> None:
        failed(self, replace(event, fatal=True), *rest)

    patch.setattr(ReplicaCore, "_failed", fatal)


def half_a_join_is_whole(patch: pytest.MonkeyPatch) -> None:
    """A batch may begin as soon as one of its inputs is here."""

    def ready(self: Intake, lane: Lane) -> list[int]:
        return sorted(self._held.get(lane, {}))

    patch.setattr(Intake, "ready", ready)


def who_follows_the_dead_begins_anew(patch: pytest.MonkeyPatch) -> None:
    """What takes the place of a lost replica is restored from checkpoint 0, whatever has been named since."""
    place = Authority._place

    def anew(self: Authority, vnode: str, replica: Any, weight: float) -> None:
        named, self.named[vnode] = self.named[vnode], initial_state(vnode)
        place(self, vnode, replica, weight)
        self.named[vnode] = named

    patch.setattr(Authority, "_place", anew)
