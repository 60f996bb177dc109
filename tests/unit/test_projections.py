"""Goal: a projection is the sum that it stands for, whichever way it is computed: for long rows and short ones, for what a step holds and for a state."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vnode.checks.torch_projection import ROW_VALUES, Projection
from vnode.state import Array


def drawn(n: int) -> tuple[Projection, Array]:
    """And its signs, in float64."""
    projection = Projection.draw(b"secret", "purpose", n, linear=True)
    assert projection.signs is not None
    return projection, projection.signs.double().numpy()


def values(*shape: int) -> Array:
    return np.random.default_rng(1).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("shape", [(7,), (5, 7), (3, 5, 7), (2, ROW_VALUES + 1)])
def test_what_is_projected_over_its_last_dimension_is_the_sum_with_signs(shape: tuple[int, ...]) -> None:
    projection, signs = drawn(shape[-1])
    given = values(*shape)
    for dim in (-1, len(shape) - 1):
        taken = projection.take(torch.from_numpy(given), dim)
        assert taken.is_contiguous()
        np.testing.assert_allclose(taken.numpy(), given @ signs.T, rtol=0, atol=1e-4 * np.sqrt(shape[-1]))


@pytest.mark.parametrize("shape", [(70,), (130, 70), (70, 130), (70, 5, 3, 3)])
def test_a_state_is_projected_to_the_last_place(shape: tuple[int, ...]) -> None:
    given = values(*shape)
    given.flags.writeable = False
    for dim in range(min(2, len(shape))):
        projection, signs = drawn(shape[dim])
        wanted = np.moveaxis(np.tensordot(signs, given.astype(np.float64), (1, dim)), 0, dim)
        found = projection.of_state(given, dim)
        assert found.dtype == np.float32
        np.testing.assert_array_max_ulp(found, wanted.astype(np.float32))
