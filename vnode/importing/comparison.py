"""An import held against its module: the stages are built, get the carried values, and must compute what the module computed for the example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from dcnr.errors import InvalidInput
from dcnr.specs import Registry
from dcnr.stages import INPUT, Stage
from vnode.importing.operations import Array
from vnode.torch_stage import StageModule, filled

TOLERANCE: Final = 1e-4
"""Largest difference, of the largest value; float32 in another order of summation stays far below."""


def compared(
    stages: Sequence[Stage], registry: Registry, tensors: Mapping[str, Mapping[str, Array]], example: Tensor,
    wanted: Mapping[str, Array], exits: Mapping[str, Array],
) -> float:  # fmt: skip
    """The largest difference relative to the largest value, over outputs (``wanted``) and exits by VNode.

    Raises InvalidInput (``import_differs``) naming the first VNode that is further off than `TOLERANCE`.
    """
    worst = 0.0
    values: dict[str, Tensor] = {INPUT: example}
    for stage in stages:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            module = filled(StageModule(stage, registry), tensors.get(stage.id, {})).eval()
            values[stage.id] = module([values[item.id] for item in stage.inputs])
            found = [("output", wanted.get(stage.id), values[stage.id])]
            found += [(f"output {name}", wanted.get(name), value) for name, value in module.run_sinks(values[stage.id]).items()]
            found.append(("exit", exits.get(stage.id), module.objective.readout(values[stage.id])))
        for what, expected, value in found:
            if expected is not None:
                worst = max(worst, _difference(stage.id, what, expected, value.numpy()))
    return worst


def _difference(vnode: str, what: str, expected: Array, value: Array) -> float:
    if expected.shape != value.shape:
        raise _differs(vnode, what, f"has shape {list(value.shape)}, not {list(expected.shape)}")
    difference = float(np.max(np.abs(expected - value), initial=0.0)) / max(1.0, float(np.max(np.abs(expected), initial=0.0)))
    if not difference <= TOLERANCE:
        raise _differs(vnode, what, f"is {difference:.2g} off, more than {TOLERANCE:g}")
    return difference


def _differs(vnode: str, what: str, how: str) -> InvalidInput:
    return InvalidInput(
        f"{vnode} is not what the module computes there: its {what} {how}", code="import_differs", vnode=vnode,
        remedy="heads in the order [3, heads, width] as in transformer_block, positions added to the embedding",
    )  # fmt: skip
