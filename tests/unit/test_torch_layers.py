"""Goal: layers with randomness do exactly what their draws say, and nothing without draws."""

from __future__ import annotations

import pytest
import torch

from dcnr.errors import InvalidInput
from dcnr.specs import TensorSpec
from vnode.components import average_pool, dropout
from vnode.randomness import Draws
from vnode.torch_layers import CausalBlock, KeyedDropout, RandomShift

DRAWS = Draws(3, "shift", 11)


def test_each_image_moves_by_its_own_draw_and_zeros_come_in() -> None:
    layer = RandomShift(2)
    x = torch.arange(1, 1 + 5 * 2 * 6 * 6, dtype=torch.float32).view(5, 2, 6, 6)
    assert layer(x) is x
    layer.draws = DRAWS
    moves = DRAWS.integers("", 10, low=0, high=4).reshape(5, 2) - 2
    moved = layer(x)
    for sample, (dy, dx) in enumerate(moves.tolist()):
        for row in range(6):
            for column in range(6):
                inside = 0 <= row + dy < 6 and 0 <= column + dx < 6
                wanted = x[sample, :, row + dy, column + dx] if inside else torch.zeros(2)
                assert torch.equal(moved[sample, :, row, column], wanted)


def test_dropout_keeps_the_mean_and_repeats() -> None:
    layer = KeyedDropout(0.25)
    x = torch.ones(64, 256)
    assert layer(x) is x
    layer.draws = DRAWS
    dropped = layer(x)
    assert torch.equal(dropped, layer(x))
    assert set(dropped.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert abs(float(dropped.mean()) - 1.0) < 0.02
    layer.draws = Draws(3, "shift", 12)
    assert not torch.equal(dropped, layer(x))


def test_no_position_sees_a_later_one() -> None:
    block = CausalBlock(8, 2, 0.0)
    x = torch.randn(1, 6, 8, generator=torch.Generator().manual_seed(0))
    changed = x.clone()
    changed[:, 4:] += 1.0
    before, after = block(x), block(changed)
    assert torch.allclose(before[:, :4], after[:, :4], atol=1e-6)
    assert not torch.allclose(before[:, 4:], after[:, 4:], atol=1e-2)


def test_dropout_alone_draws_as_inside_a_block() -> None:
    spec = TensorSpec("float32", (256,))
    assert dropout.SPEC.check({"dropout": 0.25}, [spec]).output == spec
    layer, inside = dropout.SPEC.build({"dropout": 0.25}, [spec]), KeyedDropout(0.25)
    x = torch.ones(8, 256)
    assert layer(x) is x
    layer.draws = inside.draws = DRAWS
    assert torch.equal(layer(x), inside(x))
    with pytest.raises(InvalidInput, match="dropout"):
        dropout.SPEC.check({"dropout": 1.0}, [spec])


def test_an_image_is_averaged_over_a_grid() -> None:
    spec = TensorSpec("float32", (2, 4, 6))
    x = torch.arange(96, dtype=torch.float32).view(2, 2, 4, 6)
    pooled = average_pool.SPEC.build({"side": 2}, [spec])(x)
    assert tuple(pooled.shape[1:]) == average_pool.SPEC.check({"side": 2}, [spec]).output.shape == (2, 2, 2)
    corner = x[0, 0, :2, :3].mean(), x[0, 0, :2, 3:].mean(), x[0, 0, 2:, :3].mean(), x[0, 0, 2:, 3:].mean()
    assert torch.equal(pooled[0, 0].flatten(), torch.stack(corner))
    with pytest.raises(InvalidInput, match="fewer than 5"):
        average_pool.SPEC.check({"side": 5}, [spec])
