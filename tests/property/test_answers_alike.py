"""Goal: honest answers are alike whatever codec lies between their hops, one wrong sample is not, and less codec means less room to lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcnr.codecs import CODECS
from dcnr.tensor import decode, encode
from dcnr.v1 import identity_pb2
from orchestrator.answered import Answered, alike, tolerance
from orchestrator.routing import Candidate, Table, Way
from orchestrator.trying import Answer

SAMPLES, WIDTH, CLASSES, STAGES = 4, 128, 10, 5
NOISE = 2e-6
"""Of another order of additions, relative."""


def answered(output: Any, exit_: str = "s5") -> Answered:
    hops = tuple(Candidate("p", f"s{number + 1}", identity_pb2.Envelope()) for number in range(STAGES - 1))
    way = Way(Table("", (), {}), (*hops, Candidate("p", exit_, identity_pb2.Envelope())))
    return Answered(way, Answer(output, "d", "", 0, {}), 1)


def computed(seed: int, codec: str, noise: np.random.Generator) -> Any:
    """A chain with residuals, as one machine computes it."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((SAMPLES, WIDTH)).astype(np.float32)
    for _ in range(STAGES):
        weights = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / np.sqrt(WIDTH)
        values = values + np.tanh(values @ weights)
        values = (values * (1 + NOISE * noise.standard_normal(values.shape))).astype(np.float32)
        encoded = encode(values, codec)
        values = decode(encoded.header, encoded.payload)
    return values @ (rng.standard_normal((WIDTH, CLASSES)).astype(np.float32) / np.sqrt(WIDTH))


@given(st.integers(0, 1000), st.sampled_from(CODECS))
def test_honest_machines_are_alike(seed: int, codec: str) -> None:
    one, other = (computed(seed, codec, np.random.default_rng(machine)) for machine in (seed + 1, seed + 2))
    assert alike(answered(one), answered(other), codec)


@pytest.mark.parametrize("codec", CODECS)
def test_one_wrong_sample_is_seen(codec: str) -> None:
    output = computed(1, codec, np.random.default_rng(2))
    wrong = output.copy()
    wrong[-1] = np.roll(wrong[-1], 1)
    assert alike(answered(output), answered(output.copy()), codec)
    assert not alike(answered(output), answered(wrong), codec)
    assert not alike(answered(output), answered(output, "s4"), codec)
    assert not alike(answered(output), answered(output[:-1]), codec)


def test_what_travels_as_it_is_leaves_less_room_than_a_thousandth() -> None:
    assert tolerance(STAGES, "raw") < 1e-3
    rooms = [tolerance(STAGES, codec) for codec in ("raw", "fp16", "bf16", "int8")]
    assert rooms == sorted(rooms)
    output = computed(1, "raw", np.random.default_rng(2))
    assert not alike(answered(output), answered(output * np.float32(1.001)), "raw")
