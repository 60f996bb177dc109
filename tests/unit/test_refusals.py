"""Goal: a replica whose checkpoints are refused for good asks for new snapshots ever more rarely, and at once again after one was named."""

from __future__ import annotations

import math

from pnode.refusals import ANEW_LONGEST_S, Refusals


def test_each_refusal_makes_one_snapshot_due_after_a_doubled_pause() -> None:
    refusals, now, pauses = Refusals(), 0.0, []
    for _ in range(12):
        refusals.refused("a.0", "wrong_job", now)
        pauses.append(refusals.next_in_s(now))
        assert refusals.due(now) == []
        now += pauses[-1]
        assert refusals.due(now) == [("a.0", "wrong_job")]
        assert refusals.due(now) == []
    assert pauses[:4] == [1.0, 2.0, 4.0, 8.0]
    assert pauses[-1] == ANEW_LONGEST_S


def test_a_named_checkpoint_begins_anew() -> None:
    refusals = Refusals()
    refusals.refused("a.0", "condemned", 0.0)
    refusals.refused("a.0", "condemned", 1.0)
    refusals.named("a.0")
    assert refusals.next_in_s(2.0) == math.inf
    refusals.refused("a.0", "condemned", 2.0)
    assert refusals.next_in_s(2.0) == 1.0
