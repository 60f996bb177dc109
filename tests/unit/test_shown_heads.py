"""Heads that PNodes show: which of them say that the store went back."""

from __future__ import annotations

import pytest

from dcnr.v1 import model_pb2
from orchestrator.shown_heads import SHOWN_S, ShownHeads


def head(epoch: int, sequence: int, holder: str = "b") -> model_pb2.Head:
    return model_pb2.Head(epoch=epoch, sequence=sequence, holder=holder)


@pytest.mark.parametrize("newer", [(9, 100), (7, 101), (5, 101)])
def test_what_stays_above_the_stores_head_is_evidence_once(newer: tuple[int, int]) -> None:
    shown = ShownHeads()
    shown.shown(head(*newer), 0.0)
    assert shown.evidence(head(7, 100), SHOWN_S, is_read=True) is None
    assert shown.evidence(head(7, 100), SHOWN_S + 0.1, is_read=True) == head(*newer)
    assert shown.evidence(head(7, 100), SHOWN_S + 0.2, is_read=True) is None


def test_an_epoch_that_has_another_holder_is_evidence_however_far_its_head_is() -> None:
    """Whoever never saw the term that the store has lost gives its number away again, and PNodes obey only the first holder."""
    shown = ShownHeads()
    shown.shown(head(7, 100, "a"), 0.0)
    assert shown.evidence(head(7, 100), 1.0, is_read=True) is None
    assert shown.evidence(head(7, 104), SHOWN_S + 0.1, is_read=True) == head(7, 100, "a")
    shown.shown(head(7, 100, "a"), 60.0)
    assert shown.evidence(head(8, 105), 60.0 + 2 * SHOWN_S, is_read=True) is None


def test_who_shows_the_stores_own_head_hides_no_other_holder_of_its_epoch() -> None:
    """Half of the PNodes may obey the one, half the other; they attach all the time."""
    shown = ShownHeads()
    shown.shown(head(7, 100, "a"), 0.0)
    for second in range(1, 9):
        shown.shown(head(7, 100 + second), float(second))
        assert shown.evidence(head(7, 100 + second), float(second), is_read=True) is None
    assert shown.evidence(head(7, 109), SHOWN_S + 0.1, is_read=True) == head(7, 100, "a")


def test_of_several_holders_heads_the_newest_is_told() -> None:
    """The next term is above it, and so above all of them."""
    shown = ShownHeads()
    for one in (head(8, 90, "a"), head(9, 80, "c"), head(8, 95, "d")):
        shown.shown(one, 0.0)
    assert shown.evidence(head(7, 100), SHOWN_S + 0.1, is_read=True) == head(9, 80, "c")
    assert shown.evidence(head(7, 100), 2 * SHOWN_S, is_read=True) is None


def test_what_the_store_reaches_in_time_is_none() -> None:
    shown = ShownHeads()
    shown.shown(head(7, 101), 0.0)
    assert shown.evidence(head(7, 101), 1.0, is_read=True) is None
    assert shown.evidence(head(7, 100), 60.0, is_read=True) is None


def test_while_the_store_is_not_read_nothing_follows() -> None:
    """Somebody else wrote on meanwhile: the PNode has seen that, and this orchestrator could not."""
    shown = ShownHeads()
    shown.shown(head(8, 120), 0.0)
    assert shown.evidence(head(7, 100), 60.0, is_read=False) is None
    assert shown.evidence(head(7, 100), 60.0 + SHOWN_S / 2, is_read=True) is None
    assert shown.evidence(head(8, 121), 60.0 + 2 * SHOWN_S, is_read=True) is None
