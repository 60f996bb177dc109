"""Goal: a projection is the sum that it stands for, whichever way it is computed: for long rows and short ones, for what a step holds and for a state."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vnode.checks.torch_projection import FEW, PRODUCT_VALUES, MapKind, Projection
from vnode.state import Array


def drawn(n: int) -> tuple[Projection, Array]:
    """And its signs, in float64."""
    projection = Projection.draw(b"secret", "purpose", n, linear=True)
    assert projection.signs is not None
    return projection, projection.signs.double().numpy()


def values(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("shape", [(7,), (5, 7), (3, 5, 7), (300, 1024), (2, PRODUCT_VALUES)])
def test_what_is_projected_over_its_last_dimension_is_the_sum_with_signs(shape: tuple[int, ...]) -> None:
    projection, signs = drawn(shape[-1])
    given = values(*shape)
    for dim in (-1, len(shape) - 1):
        taken = projection.take(torch.from_numpy(given), dim)
        assert taken.is_contiguous()
        np.testing.assert_allclose(taken.numpy(), given @ signs.T, rtol=0, atol=1e-4 * np.sqrt(shape[-1]))


@pytest.mark.parametrize("num_few", [1, 2, 4, 8, FEW, FEW + 1])
@pytest.mark.parametrize("shape", [(0, 64), (1, 64), (2, 64), (33, 100), (300, 1024), (3, 5, 1024), (3, PRODUCT_VALUES // 2)])
def test_products_with_few_rows_or_columns_are_the_same_in_pieces(shape: tuple[int, ...], num_few: int) -> None:
    """Goal: as many rows as fit in a piece, some more, fewer, one and none give what one product gives, outputs and gradient of the weight alike."""
    given, few, gradient = values(*shape), values(num_few, shape[-1], seed=2), values(*shape[:-1], num_few, seed=3)
    kind, x = MapKind.of(torch.nn.Linear(1, 1)), torch.from_numpy(given)
    product = kind.product(x, torch.from_numpy(few))
    assert product.is_contiguous()
    np.testing.assert_allclose(product.numpy(), given.astype(np.float64) @ few.T, rtol=0, atol=1e-5 * np.sqrt(shape[-1]))
    rows, few_rows = given.reshape(-1, shape[-1]).astype(np.float64), gradient.reshape(-1, num_few)
    within = 1e-5 * np.sqrt(max(len(rows), 1))
    made = kind.weight_gradient(x, torch.from_numpy(gradient), (num_few, shape[-1]))
    np.testing.assert_allclose(made.numpy(), few_rows.T @ rows, rtol=0, atol=within)
    turned = kind.weight_gradient(torch.from_numpy(gradient), x, (shape[-1], num_few))
    np.testing.assert_allclose(turned.numpy(), rows.T @ few_rows, rtol=0, atol=within)


@pytest.mark.parametrize("shape", [(70,), (1100, 70), (40, 1100), (70, 5, 3, 3)])
def test_a_state_is_projected_to_the_last_place(shape: tuple[int, ...]) -> None:
    given = values(*shape)
    given.flags.writeable = False
    for dim in range(min(2, len(shape))):
        projection, signs = drawn(shape[dim])
        wanted = np.moveaxis(np.tensordot(signs, given.astype(np.float64), (1, dim)), 0, dim)
        found = projection.of_state(given, dim)
        assert found.dtype == np.float32
        np.testing.assert_array_max_ulp(found, wanted.astype(np.float32))
