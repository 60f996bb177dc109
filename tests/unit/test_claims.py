"""Goal: a claim whose form does not hold is refused before any value in it is looked at."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dcnr.errors import Corrupt
from dcnr.intervals import IntervalSet
from vnode.checks.claims import MAX_STEPS, Anchored, Claim, ClaimedStep, Displacement, Sent, Taken
from vnode.vocabulary import Mode

NOTHING = np.zeros((1,), np.float32)
MOVED = Displacement(b"d", "raw")
TWO = Anchored((Taken(b"d", "raw", IntervalSet.span(7, 9), 2),), b"anchor")


def step(num_learned: int, mode: Mode = Mode.TRAIN) -> ClaimedStep:
    return ClaimedStep(num_learned, mode, (), NOTHING, num_learned, None, "raw", 0.0, 0.0)


LINE = (step(0), step(1), step(2, Mode.FORWARD_ONLY), step(2))
GOOD = Claim(LINE, {0: b"first", 4: b"last"})


@pytest.mark.parametrize(
    "claim",
    [
        GOOD,
        replace(GOOD, states={0: b"first", 2: b"between", 4: b"last"}),
        replace(GOOD, states={0: b"first"}, displacement=MOVED),
        replace(GOOD, states={0: b"first"}, anchored={4: (TWO,)}),
        Claim((), {0: b"first"}, anchored={0: (TWO,)}),
        Claim((step(0), step(3)), {0: b"first", 2: b"last"}, anchored={1: (TWO,)}),
        Claim(tuple(step(number) for number in range(MAX_STEPS)), {0: b"first", MAX_STEPS: b"last"}),
    ],
    ids=["plain", "with a state between", "of a contributor", "ends with an anchor", "merges alone", "a merge between", "longest"],
)
def test_a_claim_that_holds(claim: Claim) -> None:
    claim.check()


@pytest.mark.parametrize(
    "claim",
    [
        Claim((), {0: b"first"}),
        Claim((), {0: b"first"}, displacement=MOVED),
        Claim(tuple(step(number) for number in range(MAX_STEPS + 1)), {0: b"first", MAX_STEPS + 1: b"last"}),
        replace(GOOD, states={4: b"last"}),
        replace(GOOD, states={0: b"first"}),
        replace(GOOD, states={0: b"first", 4: b"last", 5: b"behind"}),
        replace(GOOD, states={0: b"first", 4: b"last", -1: b"before"}),
        replace(GOOD, anchored={5: (TWO,)}),
        replace(GOOD, anchored={-1: (TWO,)}),
        replace(GOOD, steps=(*LINE[:3], replace(LINE[3], mode=Mode.EVAL))),
        replace(GOOD, steps=(*LINE[:3], replace(LINE[3], mode=Mode.INFER))),
        replace(GOOD, steps=(*LINE[:3], step(3))),
        replace(GOOD, steps=(step(0), step(0), *LINE[2:])),
        Claim((step(0), step(2)), {0: b"first", 2: b"last"}, anchored={1: (TWO,)}),
        Claim((step(0), step(3)), {0: b"first", 2: b"last"}, anchored={2: (TWO,)}),
    ],
    ids=[
        "nothing", "nothing but a displacement", "too long", "no first state", "no end", "a state behind", "a state before", "an anchor behind",
        "an anchor before", "an evaluation", "a question", "a batch left out", "one batch twice", "a merge that adds less", "a merge elsewhere",
    ],
)  # fmt: skip
def test_a_claim_that_does_not_hold(claim: Claim) -> None:
    with pytest.raises(Corrupt) as caught:
        claim.check()
    assert caught.value.code == "bad_claim"


def test_only_a_replay_sees_what_merges_do() -> None:
    GOOD.check_is_alone()
    for claim in (replace(GOOD, anchored={4: (TWO,)}), replace(GOOD, displacement=MOVED)):
        with pytest.raises(Corrupt):
            claim.check_is_alone()


def test_what_was_sent_is_what_anybody_received() -> None:
    sent = replace(LINE[0], output=NOTHING, codec="int8", also_sent=(Sent(None, "raw"), Sent(NOTHING, "fp16"))).sent
    assert [codec for _, codec in sent] == ["int8", "fp16"]
    assert LINE[0].sent == ()
