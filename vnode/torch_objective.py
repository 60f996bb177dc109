"""Local objectives as torch modules: `step` gives loss and logits from one pass through the head."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class LocalObjective(nn.Module):
    """What every objective offers. ``h``: the VNode's output, ``x``: its detached inputs, ``y``: targets (int64 [B] or [B, T])."""

    def local_loss(self, h: Tensor, x: Sequence[Tensor], y: Tensor) -> Tensor:
        """The scalar to descend."""
        return self.step(h, x, y)[0]

    def readout(self, h: Tensor) -> Tensor:
        """Logits [B, classes] or [B, T, classes]."""
        raise NotImplementedError

    def step(self, h: Tensor, x: Sequence[Tensor], y: Tensor) -> tuple[Tensor, Tensor]:
        """(local loss, logits)."""
        raise NotImplementedError


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Mean over all predictions, in nats."""
    return functional.cross_entropy(logits.flatten(0, -2), y.flatten())


class HeadObjective(LocalObjective):
    """Cross-entropy of the head."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def readout(self, h: Tensor) -> Tensor:
        """Logits of the head."""
        logits: Tensor = self.head(h)
        return logits

    def step(self, h: Tensor, x: Sequence[Tensor], y: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropy and logits."""
        logits = self.readout(h)
        return cross_entropy(logits, y), logits


class SimilarityObjective(HeadObjective):
    """(1 − weight) · cross-entropy + weight · similarity matching."""

    def __init__(self, head: nn.Module, shape: Sequence[int], num_classes: int, weight: float) -> None:
        super().__init__(head)
        self.num_classes, self.weight = num_classes, weight
        width = shape[0]
        self.map: nn.Module = (
            nn.Conv2d(width, width, 3, padding=1, bias=False) if len(shape) == 3 else nn.Linear(width, width, bias=False)
        )

    def step(self, h: Tensor, x: Sequence[Tensor], y: Tensor) -> tuple[Tensor, Tensor]:
        """Weighted sum of both losses, and logits."""
        logits = self.readout(h)
        mapped = self.map(h)
        if mapped.dim() == 4:
            mapped = (mapped.flatten(2).var(dim=2, unbiased=False) + 1e-6).sqrt()
        one_hot = functional.one_hot(y, self.num_classes).to(mapped.dtype)
        difference = functional.mse_loss(_similarity(mapped), _similarity(one_hot))
        return (1 - self.weight) * cross_entropy(logits, y) + self.weight * difference, logits


def _similarity(x_BF: Tensor) -> Tensor:
    """Cosine similarities [B, B] of centred rows."""
    centred = x_BF - x_BF.mean(dim=1, keepdim=True)
    unit = functional.normalize(centred, dim=1, eps=1e-8)
    return torch.mm(unit, unit.T)
