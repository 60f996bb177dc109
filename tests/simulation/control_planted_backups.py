"""Bugs in how a store that went back is followed, one for each rule of its checkers (`simulation/control_backup_checkers.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from dcnr.ids import NodeId
from dcnr.v1 import model_pb2
from orchestrator import decider as decider_module
from orchestrator.changes import Change
from orchestrator.head import HeadCore
from orchestrator.jobs import JobRecord
from orchestrator.seen_heads import Place, SeenHeads
from pnode.authority import Authority, Source, Verdict


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
            self.term, self.desired_sequence, source = None, 0, Source.OWN_GET
        return read(self, head, signer, source)

    patch.setattr(Authority, "head_read", down)
