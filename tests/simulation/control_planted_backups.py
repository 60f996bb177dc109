"""Bugs in how a store that went back is followed, one for each rule of its checkers (`simulation/control_backup_checkers.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from dcnr.ids import NodeId
from dcnr.v1 import model_pb2
from orchestrator import board as board_module
from orchestrator import decider as decider_module
from orchestrator import succession as succession_module
from orchestrator.changes import Change, Decide
from orchestrator.decider import Decider
from orchestrator.head import HeadCore
from orchestrator.head_events import Get, HeadEvent, HeadInstruction, PutUnknown
from orchestrator.jobbook import JobBook
from orchestrator.jobs import JobRecord
from orchestrator.naming import Naming
from orchestrator.offers import PlanRequest
from orchestrator.seen_heads import Place, SeenHeads
from orchestrator.view import ModelView
from pnode.authority import Authority, Source, Verdict
from pnode.told_heads import ToldHeads


def terms_follow_the_store(patch: pytest.MonkeyPatch) -> None:
    """Rule 10: a takeover is above the head that the store has, whatever was seen before it went back."""
    takeover = HeadCore._takeover

    def next_one(self: HeadCore) -> model_pb2.Head:
        head = takeover(self)
        if self._known is not None:
            head.epoch, head.sequence = self._known.head.epoch + 1, self._known.head.sequence + 1
        return head

    patch.setattr(HeadCore, "_takeover", next_one)


def what_has_ended_runs_again(patch: pytest.MonkeyPatch) -> None:
    """Rule 10: the head is believed that a job runs whose `end` is in the store."""
    decided = decider_module.next_change

    def credulous(head: model_pb2.Head, jobs: Mapping[str, JobRecord], *rest: Any) -> Change | None:
        active = jobs.get(head.active.job_id)
        return decided(head, {**jobs, active.job_id: replace(active, end=None)} if active is not None else jobs, *rest)

    patch.setattr(decider_module, "next_change", credulous)


def older_heads_are_never_followed(patch: pytest.MonkeyPatch) -> None:
    """Rule 10: who has seen a newer head waits for it for ever."""
    late = SeenHeads.is_late

    def stubborn(self: SeenHeads, place: Place, sent_at: float, now: float) -> bool:
        return place < self.floor or late(self, place, sent_at, now)

    patch.setattr(SeenHeads, "is_late", stubborn)


def pnodes_go_back_with_the_store(patch: pytest.MonkeyPatch) -> None:
    """Rule 10: a PNode that is told of an older head takes it for the store's, and forgets what it had confirmed."""
    read = Authority.head_read

    def down(self: Authority, head: model_pb2.Head, signer: NodeId, source: Source) -> list[Verdict]:
        if self.term is not None and head.epoch < self.term.epoch:
            self.term, self.newest, source = None, (0, 0), Source.OWN_GET
        return read(self, head, signer, source)

    patch.setattr(Authority, "head_read", down)


def strays_stay_while_no_job_runs(patch: pytest.MonkeyPatch) -> None:
    """Rule 10: what a lost plan gave a PNode is let go of only while a job runs."""
    astray = Decider._astray
    patch.setattr(Decider, "_astray", lambda self, view: astray(self, view) if view.head.active.job_id else [])


def what_was_lost_is_remembered(patch: pytest.MonkeyPatch) -> None:
    """Rule 10: only who has read the older head forgets what the store has lost of jobs."""

    def credulous(_self: JobBook, _kinds: Mapping[str, Mapping[str, float]], _counts: bool) -> None:
        return

    patch.setattr(JobBook, "_doubt", credulous)


def numbers_are_given_twice(patch: pytest.MonkeyPatch) -> None:
    """Rule 10: a plan goes on counting where the one before ended, as if none had been lost."""

    def as_counted(request: PlanRequest) -> int:
        return int(request.previous.next_replica) if request.previous is not None else board_module.first_replica(request.model)

    patch.setattr(board_module, "next_replica", as_counted)
    patch.setattr(succession_module, "next_replica", as_counted)


def plans_come_before_fences(patch: pytest.MonkeyPatch) -> None:
    """A replica of which the state leads nowhere is replaced by one that stands on the same, and no fence is raised for that."""

    def at_once(_self: Naming, _view: ModelView, _now: float) -> bool:
        return False

    patch.setattr(Naming, "fences", at_once)


def what_was_judged_before_is_named(patch: pytest.MonkeyPatch) -> None:
    """Rule 10: what a checkpoint was found to be in one term counts in the next, though the store may have lost its state."""
    begin, recorded = Naming.begin, Naming.recorded
    judged: dict[int, dict[Any, Any]] = {}

    def noting(self: Naming, one: Any) -> None:
        recorded(self, one)
        judged.setdefault(id(self), {}).update(self._pending)

    def remembering(self: Naming, now: float) -> None:
        begin(self, now)
        self._pending |= judged.get(id(self), {})

    patch.setattr(Naming, "recorded", noting)
    patch.setattr(Naming, "begin", remembering)


def heads_are_shown_once(patch: pytest.MonkeyPatch) -> None:
    """PNodes show the term that they obey when they attach, and never again."""
    patch.setattr(ToldHeads, "told", lambda self, told, now_s: False)


def who_is_behind_decides_on(patch: pytest.MonkeyPatch) -> None:
    """A holder that reads an older head takes itself for the holder until it would have to renew."""
    patch.setattr(HeadCore, "_is_behind", property(lambda self: False, lambda self, value: None), raising=False)


def who_holds_hears_nothing(patch: pytest.MonkeyPatch) -> None:
    """A holder does not look at the store again where that took nothing, and goes by no clock."""
    step = HeadCore.step

    def deaf(self: HeadCore, event: HeadEvent) -> list[HeadInstruction]:
        out = step(self, event)
        if not isinstance(event, PutUnknown) or self._epoch is None:
            return out
        self._must_read, self._busy = False, None
        return [item for item in out if not isinstance(item, Get)]

    patch.setattr(HeadCore, "step", deaf)
    patch.setattr(HeadCore, "is_holder", lambda self, now: self._epoch is not None)


def what_is_newest_goes_by_sequence_alone(patch: pytest.MonkeyPatch) -> None:
    """PNodes hold the sequences of different terms against each other."""
    patch.setattr("pnode.authority.place_of", lambda one: (0, int(one.sequence)))


def ends_wait_for_what_they_name(patch: pytest.MonkeyPatch) -> None:
    """An `end` that is there is repeated only once all that the manifest under the head names is in the store."""
    patch.setattr(
        decider_module,
        "ends_as",
        lambda change: model_pb2.Outcome.FromString(change.outcome).state if isinstance(change, Decide) else 0,
    )
