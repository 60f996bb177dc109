"""What a stage takes for its inputs and may give, in torch: L0 of the validation ladder, on every machine and however they came."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from dcnr.errors import InvariantBroken, RemoteFault
from dcnr.limits import MAX_TENSOR_RMS
from dcnr.stages import INPUT, StageInput
from vnode.vocabulary import Mode

MAX_OUTPUT_RMS: Final = MAX_TENSOR_RMS / 2


def check_inputs(items: Sequence[StageInput], tensors: Sequence[Tensor], mode: Mode, *, room: float) -> None:
    """Raises RemoteFault for a wrong dtype or shape, a value that is not finite (``not_finite``), and what came from another stage with a root of the mean
    square of more than ``room`` times `dcnr.limits.MAX_TENSOR_RMS` (``norm_bound``): steps on honest weights give something finite only within that.
    """
    for item, tensor in zip(items, tensors, strict=True):
        if not _fits(item, tensor, mode) or len(tensor) != len(tensors[0]) or len(tensor) == 0:
            raise RemoteFault(
                f"{item.id} sent {tensor.dtype} {list(tensor.shape)}, not {item.spec.dtype} {list(item.spec.shape)} per sample",
                code="bad_frame",
                vnode=item.id,
            )
        most = math.inf if item.id == INPUT else room * MAX_TENSOR_RMS * math.sqrt(tensor.numel())
        if not tensor.is_floating_point() or (most < math.inf and float(torch.linalg.vector_norm(tensor)) <= most):
            continue  # what has such a norm is finite, so that this is the one pass over what other stages sent
        if not is_finite(tensor):
            raise RemoteFault(f"{item.id} sent values that are not finite", code="not_finite", vnode=item.id)
        if most < math.inf:
            raise RemoteFault(f"{item.id} sent values far too large", code="norm_bound", vnode=item.id)


def check_output(output: Tensor, vnode: str) -> None:
    """Raises InvariantBroken (``not_finite``) for an output of training that no stage behind would take, also once a codec has rounded it: whoever goes on
    learning there, with a loss that does not show it, would be waited for in vain.
    """
    if not float(torch.linalg.vector_norm(output)) <= MAX_OUTPUT_RMS * math.sqrt(output.numel()):
        raise InvariantBroken("the output is not finite or far too large: the batch is skipped", code="not_finite", vnode=vnode)


def is_finite(tensor: Tensor) -> bool:
    """Whether every value is. No sum with one that is not is finite, so one pass is enough but where finite values have no finite sum."""
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def _fits(item: StageInput, tensor: Tensor, mode: Mode) -> bool:
    """Whether the tensor is what the stage expects; in INFER a sequence may be shorter."""
    shape = tuple(tensor.shape[1:])
    if str(tensor.dtype) != f"torch.{item.spec.dtype}":
        return False
    return item.spec.takes(shape) if mode is Mode.INFER else shape == item.spec.shape
