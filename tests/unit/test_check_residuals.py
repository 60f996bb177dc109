"""Goal: residuals see a lie of one percent through every codec, do not see what a codec or float32 makes of the truth, and are infinite for
what cannot be compared."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dcnr.codecs import CODECS
from dcnr.tensor import decode, encode
from vnode.checks import residuals
from vnode.state import Array


def values(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def sent(array: Array, codec: str) -> Array:
    encoded = encode(array, codec)
    return decode(encoded.header, encoded.payload)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("factor", [1e-12, 1.0, 1e12])
def test_an_honest_output_is_explained_by_its_codec(codec: str, factor: float) -> None:
    if codec == "fp16" and factor != 1.0:
        factor = math.copysign(min(factor, 1e3), 1) if factor > 1 else 1e-3
    found = values(1, 37, 130) * np.float32(factor)
    elsewhere = found * (1 + 1e-7 * values(2, 37, 130))  # another machine's rounding
    assert residuals.output_residual(sent(elsewhere.astype(np.float32), codec), found, codec) < 1e-6


@pytest.mark.parametrize("codec", CODECS)
def test_one_percent_is_seen_through_every_codec(codec: str) -> None:
    found = values(1, 37, 130)
    assert residuals.output_residual(sent(found * np.float32(1.01), codec), found, codec) > 1e-4


def test_a_quantum_that_is_claimed_too_large_is_no_excuse() -> None:
    found = values(1, 4, 128)
    coarse = np.round(found / 2) * 2
    assert residuals.output_residual(coarse, found, "int8") > 0.1


@pytest.mark.parametrize("where", [0, 70_000, 700 * 130 - 1])
def test_one_wrong_value_counts_in_full_in_whichever_block_it_lies(where: int) -> None:
    found = values(1, 700, 130)
    claimed = sent(found, "int8")
    claimed.reshape(-1)[where] += 1
    beyond = np.maximum(np.abs(claimed.astype(np.float64) - found) - residuals.half_quantum(claimed, "int8"), 0.0)
    assert residuals.output_residual(claimed, found, "int8") == pytest.approx(
        residuals.rms(beyond) / residuals.rms(found), rel=1e-5
    )


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("wrong", [np.inf, np.nan])
def test_an_output_that_is_not_finite_is_infinitely_far(wrong: float, codec: str) -> None:
    found = values(1, 3, 130)
    claimed = found.copy()
    claimed[2, 129] = wrong
    assert residuals.output_residual(claimed, found, codec) == math.inf
    assert not residuals.output_residual(found, claimed, codec) < 1e6


def test_zeros_are_a_lie_unless_they_are_the_truth() -> None:
    zeros = np.zeros((3, 4), np.float32)
    assert residuals.output_residual(zeros, zeros, "raw") == 0.0
    assert residuals.output_residual(zeros, values(1, 3, 4), "raw") == pytest.approx(1.0)
    assert residuals.value_residual(zeros, values(1, 3, 4), 0.0) == math.inf


@pytest.mark.parametrize("factor", [1e-30, 1e-18, 1.0, 1e17, 1e30])
@pytest.mark.parametrize("shape", [(1,), (37, 130), (5, 1024), (3, 0)])
def test_a_norm_is_that_of_float64_whatever_float32_has_room_for(factor: float, shape: tuple[int, ...]) -> None:
    found = values(1, *shape) * np.float32(factor)
    assert residuals.norm(found) == pytest.approx(math.sqrt(float(np.square(found.astype(np.float64)).sum())), rel=1e-6, abs=0.0)


@pytest.mark.parametrize("wrong", [np.inf, np.nan])
def test_a_norm_of_what_is_not_finite_is_not_finite(wrong: float) -> None:
    found = values(1, 2, 1024)
    found[1, 5] = wrong
    assert not math.isfinite(residuals.norm(found))


@pytest.mark.parametrize("wrong", [np.zeros((3, 5), np.float32), np.zeros((3, 4), np.int64), np.full((3, 4), np.nan, np.float32)])
def test_other_shapes_kinds_and_no_numbers_are_infinitely_far(wrong: Array) -> None:
    found = values(1, 3, 4)
    assert residuals.output_residual(wrong, found, "raw") == math.inf
    assert residuals.value_residual(wrong, found, 1.0) == math.inf
    assert [item.residual for item in residuals.state_residuals({"w/a": found}, {"w/a": wrong}, {"w/a": found}, 1)] == [math.inf]


def test_losses_and_rates_that_are_no_numbers_are_infinitely_far() -> None:
    assert residuals.loss_residual(math.nan, 1.0) == math.inf
    assert residuals.rate_residual(math.inf, 1.0) == math.inf
    assert residuals.loss_residual(2.3, 2.3) == 0.0


def test_a_state_is_measured_by_what_it_should_have_moved() -> None:
    first, move = values(1, 50, 50), values(2, 50, 50) * np.float32(1e-3)
    found = {"w/a": first + move, "o/a/momentum": move, "b/a": np.array(5)}
    lie = {"w/a": first + move * np.float32(1.01), "o/a/momentum": move * np.float32(1.01), "b/a": np.array(5)}
    start = {"w/a": first, "o/a/momentum": move, "b/a": np.array(4)}
    seen = {item.name: item.residual for item in residuals.state_residuals(start, lie, found, 1)}
    assert seen["w/a"] == pytest.approx(0.01, rel=0.05)
    assert seen["o/a/momentum"] == pytest.approx(0.01, rel=0.05)
    assert seen["b/a"] == 0.0
    assert [item.residual for item in residuals.state_residuals(start, found, found, 1)] == [0.0, 0.0, 0.0]


def test_the_last_place_of_float32_is_no_lie_where_little_moves() -> None:
    first = values(1, 50, 50)
    found = {"w/a": first + np.float32(1e-9)}
    claimed = {"w/a": np.nextafter(found["w/a"], np.float32(9))}
    assert [item.residual for item in residuals.state_residuals({"w/a": first}, claimed, found, 1)] == [0.0]


def test_a_missing_tensor_and_a_wrong_count_are_infinitely_far() -> None:
    state = {"w/a": values(1, 2, 2), "b/n": np.array(3)}
    assert {item.residual for item in residuals.state_residuals(state, {}, state, 1)} == {math.inf}
    other = {**state, "b/n": np.array(4)}
    assert math.inf in {item.residual for item in residuals.state_residuals(state, other, state, 1)}


def bulk_of(first: dict[str, Array], claimed: dict[str, Array], found: dict[str, Array]) -> dict[str, float]:
    items = residuals.state_residuals(first, claimed, found, 1, with_bulk=True)
    return {item.name: item.residual for item in items if item.part == "bulk"}


def test_most_values_tell_a_small_lie_everywhere_from_a_large_difference_somewhere() -> None:
    """One unit on the other side of a kink moves a tensor's distance by far more than a cheat does, and most values not at all."""
    start = {
        "w/a": values(1, 50, 50),
        "w/b": values(3, 50),
        "o/a/momentum": values(2, 50, 50),
        "o/b/momentum": values(4, 50),
        "b/n": np.array(1),
    }
    moves = {
        name: values(number, *array.shape) * np.float32(1e-2)
        for number, (name, array) in enumerate(start.items(), 7)
        if array.shape
    }
    found = {**start, **{name: moves[name] + (start[name] if name.startswith("w/") else 0) for name in moves}}
    kinked = {name: array.copy() for name, array in found.items()}
    for name in moves:
        kinked[name][:10] += np.float32(1e-2)
    coarse = {**found, **{name: found[name] + np.round(moves[name] * 5000) / 5000 - moves[name] for name in moves}}
    scaled = {**found, **{name: found[name] + np.float32(0.01) * moves[name] for name in moves}}
    assert bulk_of(start, found, found) == {"momentum": 0.0, "w": 0.0}
    assert max(bulk_of(start, kinked, found).values()) < 1e-6
    assert min(item.residual for item in residuals.state_residuals(start, kinked, found, 1) if item.part != "buffers") > 0.2
    for lie in (scaled, coarse):
        assert min(bulk_of(start, lie, found).values()) > 4e-3


def test_most_values_of_what_is_not_there_or_did_not_move() -> None:
    state = {"w/a": values(1, 4, 4), "o/a/momentum": np.zeros((4, 4), np.float32)}
    assert bulk_of(state, {}, state) == {"momentum": 0.0, "w": 0.0}, "what is missing is infinitely far in its own part"
    assert bulk_of(state, state, state) == {"momentum": 0.0, "w": 0.0}
    other = {**state, "o/a/momentum": values(2, 4, 4)}
    assert bulk_of(state, other, state)["momentum"] > 1e6
