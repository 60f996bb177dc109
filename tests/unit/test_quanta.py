"""Goal: the short way to tell that an output is explained by its codec says so exactly where the residual is 0, and never of what cannot be told."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dcnr.tensor import decode, encode
from vnode.checks import residuals
from vnode.checks.torch_quanta import is_within_quanta
from vnode.state import Array

SHAPE = (37, 130)


def values(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def sent(array: Array) -> Array:
    encoded = encode(array, "int8")
    return decode(encoded.header, encoded.payload)


def is_within(claimed: Array, found: Array) -> bool:
    return is_within_quanta(torch.from_numpy(claimed), torch.from_numpy(found))


@pytest.mark.parametrize("factor", [1e-30, 1e-12, 1.0, 1e12, 1e30])
@pytest.mark.parametrize("shape", [SHAPE, (4, 128), (3,), (1, 0)])
def test_an_honest_output_is_within(factor: float, shape: tuple[int, ...]) -> None:
    found = values(1, *shape) * np.float32(factor)
    assert is_within(sent(found), found)


@pytest.mark.parametrize("size", [0.0, 0.3, 0.5, 0.7, 1.0, 3.0])
@pytest.mark.parametrize("where", [0, 1500, 37 * 130 - 1])
def test_one_value_moved_by_parts_of_a_step_is_within_where_its_residual_is_zero(size: float, where: int) -> None:
    found = values(1, *SHAPE)
    claimed = sent(found)
    start = where // 128 * 128
    claimed.reshape(-1)[where] += np.float32(size * np.abs(claimed.reshape(-1)[start : start + 128]).max() / 127)
    assert is_within(claimed, found) is (residuals.output_residual(claimed, found, "int8") == 0.0)
    assert size in (0.3, 0.5, 0.7) or is_within(claimed, found) is (size == 0.0)


@pytest.mark.parametrize("wrong", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("where", [0, 37 * 130 - 1])
@pytest.mark.parametrize("of", ["claimed", "found", "both"])
def test_what_is_not_finite_is_never_within(wrong: float, where: int, of: str) -> None:
    found = values(1, *SHAPE)
    claimed = sent(found)
    for name, array in (("claimed", claimed), ("found", found)):
        if of in (name, "both"):
            array.reshape(-1)[where] = wrong
    assert not is_within(claimed, found)


def test_other_shapes_and_kinds_are_left_to_the_residual() -> None:
    found = values(1, *SHAPE)
    claimed = sent(found)
    assert not is_within(claimed.reshape(130, 37), found)
    assert not is_within(claimed.astype(np.float64), found)
    assert not is_within(claimed, found.astype(np.float64))
