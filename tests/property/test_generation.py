"""Drafts change how many passes a text takes, and never the text; what is said ends where it should."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcnr.errors import InvalidInput, RemoteFault
from dcnr.limits import MAX_DRAFT
from orchestrator.generation import Generation, Pass, Wanted, window_start

CONTEXT = 16


def told(window: bytes, sharpness: float = 3.0) -> np.ndarray:
    """A model: logits over four letters and a line's end, a function of the whole window."""
    rng = Random(window)
    logits = np.full(256, -50.0, np.float32)
    for token in b"abcd\n":
        logits[token] = rng.gauss(0.0, sharpness)
    return logits


def answer(asked: Pass, drafter: Random | None) -> tuple[bytes, np.ndarray]:
    """As a pipeline answers: drafts are right, or those of a poor first stage."""
    text = asked.window
    for number in range(asked.draft):
        best = asked.drawing.token(told(text), number)
        text += bytes([best if drafter is None or drafter.random() < 0.6 else drafter.choice(b"abcd\n")])
    places = range(len(asked.window), len(text) + 1)
    return text[len(asked.window) :], np.stack([told(text[:place]) for place in places])


def written(wanted: Wanted, drafter: Random | None = None) -> tuple[bytes, Generation]:
    generation, said = Generation(wanted, CONTEXT), b""
    while not generation.finish_reason:
        asked = generation.ask()
        assert len(asked.window) + asked.draft <= CONTEXT
        said += generation.take(*answer(asked, drafter))
    return said, generation


@given(
    st.binary(min_size=1, max_size=40), st.integers(1, 60), st.sampled_from([0.0, 0.7, 2.0]), st.sampled_from([0.3, 0.9, 1.0]),
    st.integers(0, 2**64 - 1), st.integers(1, MAX_DRAFT), st.randoms(use_true_random=False),
)  # fmt: skip
def test_drafts_never_change_the_text(
    prompt: bytes, max_tokens: int, temperature: float, top_p: float, seed: int, draft: int, drafter: Random
) -> None:
    wanted = Wanted(prompt, max_tokens, temperature, top_p, seed, (b"\n\n", b"ab\n"), 0)
    plain, slow = written(wanted)
    drafted, fast = written(Wanted(prompt, max_tokens, temperature, top_p, seed, wanted.stop, draft), drafter)
    assert drafted == plain
    assert fast.finish_reason == slow.finish_reason
    assert fast.num_tokens == slow.num_tokens == slow.num_passes
    assert fast.num_passes <= slow.num_passes
    assert b"\n\n" not in plain
    assert b"ab\n" not in plain


@pytest.mark.parametrize(("temperature", "top_p"), [(0.0, 1.0), (2.0, 1.0), (2.0, 0.5)])
def test_right_drafts_save_most_passes(temperature: float, top_p: float) -> None:
    said, generation = written(Wanted(b"a", 15, temperature, top_p, seed=11))
    assert len(said) == 15
    assert generation.num_accepted == generation.num_drafted
    assert generation.num_passes <= 4


def test_what_a_stop_may_begin_with_is_held_back_until_it_is_known() -> None:
    generation = Generation(Wanted(b"x", 8, stop=(b"END",), draft=0), CONTEXT)

    def take(token: int) -> bytes:
        generation.ask()
        logits = np.zeros((1, 256), np.float32)
        logits[0, token] = 9.0
        return generation.take(b"", logits)

    assert [take(token) for token in b"aENENDb"[:6]] == [b"a", b"", b"", b"EN", b"", b""]
    assert generation.finish_reason == "stop"


@given(st.integers(1, 500), st.integers(2, 64))
def test_the_window_holds_half_a_context_at_least_and_never_more_than_one(num_tokens: int, context: int) -> None:
    start = window_start(num_tokens, context)
    assert start == 0 or context // 2 <= num_tokens - start
    assert 0 < num_tokens - start <= context
    assert window_start(num_tokens + 1, context) >= start


def test_the_temperature_is_that_of_the_distribution() -> None:
    """Frequencies over seeds are the softmax of the logits divided by the temperature."""
    logits = np.full((1, 256), -100.0, np.float32)
    logits[0, :3] = [0.0, 1.0, 2.0]
    counts = np.zeros(3)
    for seed in range(3000):
        generation = Generation(Wanted(b"x", 1, temperature=2.0, seed=seed), CONTEXT)
        generation.ask()
        counts[generation.take(b"", logits)[0]] += 1
    expected = np.exp(np.array([0.0, 0.5, 1.0]))
    assert np.abs(counts / 3000 - expected / expected.sum()).max() < 0.03


def test_only_the_nucleus_is_drawn_from() -> None:
    logits = np.full((1, 256), -100.0, np.float32)
    logits[0, :3] = [0.0, 1.0, 2.0]
    drawn = set()
    for seed in range(200):
        generation = Generation(Wanted(b"x", 1, temperature=1.0, top_p=0.7, seed=seed), CONTEXT)
        generation.ask()
        drawn.add(generation.take(b"", logits)[0])
    assert drawn == {1, 2}


def test_close_calls_of_greedy_choices_are_counted() -> None:
    generation = Generation(Wanted(b"x", 2, draft=0), CONTEXT)
    for gap in (1e-5, 1e-2):
        generation.ask()
        logits = np.zeros((1, 256), np.float32)
        logits[0, 7], logits[0, 9] = 5.0 + gap, 5.0
        generation.take(b"", logits)
    assert generation.num_close == 1


@pytest.mark.parametrize(
    "wanted",
    [
        Wanted(b"", 1), Wanted(b"x", 0), Wanted(b"x", 1 << 20), Wanted(b"x", 1, temperature=-1.0), Wanted(b"x", 1, temperature=float("nan")),
        Wanted(b"x", 1, top_p=0.0), Wanted(b"x", 1, stop=(b"",)), Wanted(b"x", 1, stop=(b"x",) * 9), Wanted(b"x", 1, draft=99),
        Wanted(b"x", 1, seed=-1),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_refused(wanted: Wanted) -> None:
    with pytest.raises(InvalidInput):
        Generation(wanted, CONTEXT)


def test_an_answer_of_another_shape_is_not_taken() -> None:
    generation = Generation(Wanted(b"x", 4), CONTEXT)
    generation.ask()
    with pytest.raises(RemoteFault):
        generation.take(b"abc", np.zeros((2, 256), np.float32))
