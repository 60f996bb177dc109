"""Goal: what a sketch says of an output is what the residuals say, whether it looks at blocks alone or at every value."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dcnr.tensor import decode, encode
from vnode.checks import residuals
from vnode.checks.torch_sketch import output_residual
from vnode.state import Array

ROWS = 300


def outputs(width: int, codec: str) -> tuple[Array, Array]:
    """One as it is received, and as it was before it was encoded."""
    found = np.random.default_rng(1).standard_normal((ROWS, width), dtype=np.float32)
    encoded = encode(found, codec)
    return decode(encoded.header, encoded.payload).copy(), found


@pytest.mark.parametrize("width", [128, 130])
@pytest.mark.parametrize("codec", ["int8", "raw"])
def test_nothing_is_left_of_an_honest_output(width: int, codec: str) -> None:
    claimed, found = outputs(width, codec)
    assert output_residual(claimed, torch.from_numpy(found), codec, torch.empty(0)) == 0.0


@pytest.mark.parametrize("width", [128, 130])
@pytest.mark.parametrize("where", [0, 20_000, ROWS * 128 - 1])
@pytest.mark.parametrize("added", [0.02, -0.02, 1.0, np.inf, -np.inf, np.nan])
def test_one_wrong_value_counts_as_it_does_for_the_residuals(width: int, where: int, added: float) -> None:
    claimed, found = outputs(width, "int8")
    claimed.reshape(-1)[where] = found.reshape(-1)[where] + added
    residual = output_residual(claimed, torch.from_numpy(found), "int8", torch.empty(7))
    assert residual == residuals.output_residual(claimed, found, "int8") > 0.0


def test_what_is_no_number_or_of_another_size_was_not_found() -> None:
    claimed, found = outputs(128, "int8")
    assert output_residual(claimed, torch.full(found.shape, torch.nan), "int8", torch.empty(0)) == np.inf
    assert output_residual(claimed[:-1], torch.from_numpy(found), "int8", torch.empty(7)) == np.inf
