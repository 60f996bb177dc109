"""Goal: the loss of a run with faults is held beside the spread of runs without, and what cannot be compared is refused with its reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chaos.noise import Ended, compared, named, noise_of
from dcnr.errors import InvalidInput

FAULTY = Ended("a", 31, ("text",), 1, 2.21)
CALM = [Ended(f"b{seed}", 0, ("text",), seed, loss) for seed, loss in ((1, 2.19), (2, 2.2), (3, 2.21))]


def test_a_difference_is_told_beside_the_spread() -> None:
    found = noise_of(FAULTY, CALM)
    assert (found.difference, found.mean, found.spread) == (pytest.approx(0.01), pytest.approx(2.2), pytest.approx(0.01))
    assert found.is_within
    assert not noise_of(replace(FAULTY, loss=2.23), CALM).is_within
    assert "+0.0100, within what chance does" in compared(FAULTY, *CALM)
    assert "beyond" in compared(replace(FAULTY, loss=2.23), *CALM)


@pytest.mark.parametrize(
    ("faulty", "calm", "why"),
    [
        (FAULTY, CALM[:1], "no spread"),
        (FAULTY, [CALM[0], CALM[0]], "one seed"),
        (replace(FAULTY, num_faults=0), CALM, "had no faults"),
        (FAULTY, [*CALM, replace(CALM[0], seed=9, num_faults=1)], "had faults"),
        (FAULTY, [*CALM, replace(CALM[0], seed=9, settings=("clouds",))], "different settings"),
    ],
)
def test_what_says_nothing_is_refused(faulty: Ended, calm: list[Ended], why: str) -> None:
    with pytest.raises(InvalidInput, match=why) as caught:
        noise_of(faulty, calm)
    assert caught.value.code == "not_comparable"


def test_the_last_exit_counts() -> None:
    document: dict[str, Any] = {"settings": {"work": "text"}, "faults": [], "outcome": {"loss": {"a": 3.0, "b": 2.5}}}
    assert (named("x", document).loss, named("x", document).seed) == (2.5, 1)
    for losses in ({}, {"a": None}):
        with pytest.raises(InvalidInput) as caught:
            named("x", {**document, "outcome": {"loss": losses}})
        assert caught.value.code == "no_loss"
