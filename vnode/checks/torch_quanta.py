"""Whether an int8 output is explained by its codec: the usual case of `vnode.checks.residuals.output_residual`, in half as many passes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dcnr.codecs import BLOCK_VALUES
from vnode.checks.residuals import HALF_STEP


def is_within_quanta(claimed: Tensor, found: Tensor) -> bool:
    """Whether each value lies within half a quantum of its block: then its residual is exactly 0. False also where that cannot be told here: other
    kinds of values, values that are not finite.
    """
    if claimed.shape != found.shape or not claimed.dtype == found.dtype == torch.float32:
        return False
    theirs, mine = claimed.reshape(-1), found.reshape(-1)
    whole = theirs.numel() - theirs.numel() % BLOCK_VALUES
    if whole and not _are_within(theirs[:whole].view(-1, BLOCK_VALUES), mine[:whole].view(-1, BLOCK_VALUES)):
        return False
    return whole == theirs.numel() or _are_within(theirs[whole:].view(1, -1), mine[whole:].view(1, -1))


def _are_within(theirs: Tensor, mine: Tensor) -> bool:
    half = _largest(theirs).div_(127).mul_(HALF_STEP)
    return bool((_largest(torch.sub(theirs, mine)) <= half).all()) and float(half.amax()) < math.inf


def _largest(rows: Tensor) -> Tensor:
    """Of each row the largest magnitude, or what is no number."""
    return torch.maximum(rows.amax(1), rows.amin(1).neg_())
