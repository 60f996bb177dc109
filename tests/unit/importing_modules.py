"""Modules as maintainers write them: what can be imported, and what cannot."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Digits(nn.Module):
    """The residual network of the example for MNIST, with a classifier behind it; biased convolutions, one ReLU behind its pool, one in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 5, stride=2, padding=2)
        self.conv2 = nn.Conv2d(4, 8, 3, padding=1, bias=False)
        self.conv3 = nn.Conv2d(8, 8, 3, padding="same")
        self.conv4 = nn.Conv2d(8, 12, 3, padding=1)
        self.bn1, self.bn2, self.bn3, self.bn4 = (nn.BatchNorm2d(width) for width in (4, 8, 8, 12))
        self.scores = nn.Linear(12 * 9, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        a = F.max_pool2d(F.relu(self.bn2(self.conv2(x)), inplace=True), 2)
        b = F.relu(self.bn3(self.conv3(a)))
        x = F.relu(F.max_pool2d(self.bn4(self.conv4(a + b)), 2))
        return F.log_softmax(self.scores(torch.flatten(x, 1)), dim=1)


class Residual(nn.Module):
    """Ends in a sum, a pool and a classifier, as most residual networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.first(x))
        x = F.relu(x + self.second(x))
        return self.fc(x.mean((-2, -1), keepdim=True).flatten(1))


def perceptron() -> nn.Module:
    """Three linear maps; the dropout has a VNode of its own."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(12, 16), nn.ReLU(), nn.Dropout(0.25), nn.Linear(16, 8, bias=False), nn.GELU(), nn.Linear(8, 3)
    )


class Mixing(nn.Module):
    """A residual block with an affine normalisation, and two branches joined."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.norm = nn.Linear(6, 8), nn.LayerNorm(8)
        self.inner, self.outer, self.other = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(6, 4)
        self.scores = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.wide(x)
        h = h + self.outer(F.gelu(self.inner(self.norm(h))))
        return self.scores(torch.cat([h, self.other(x)], dim=-1))


class Attention(nn.Module):
    """Causal; its heads as one map of queries, keys and values, or as three. ``by_head`` arranges them as no component does."""

    def __init__(self, width: int, heads: int, *, split: bool, by_head: bool = False) -> None:
        super().__init__()
        self.heads, self.by_head = heads, by_head
        self.maps = nn.ModuleList(nn.Linear(width, width, bias=index > 0) for index in range(3)) if split else None
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        size = width // self.heads
        if self.by_head:
            q, k, v = self.qkv(x).view(batch, length, self.heads, 3, size).permute(3, 0, 2, 1, 4).unbind(0)
        else:
            pieces = [one(x) for one in self.maps] if self.maps is not None else self.qkv(x).split(width, dim=2)
            q, k, v = (piece.view(batch, length, self.heads, size).transpose(1, 2) for piece in pieces)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).contiguous().view(batch, length, width))  # type: ignore[no-any-return]


class Writer(nn.Module):
    """A small language model over bytes; the unembedding shares its weights with the embedding."""

    def __init__(self, width: int = 16, length: int = 12, **attention: Any) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(256, width), nn.Embedding(length, width)
        self.attentions = nn.ModuleList(Attention(width, 4, split=split, **attention) for split in (False, True))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(2)
        )
        self.scores = nn.Linear(width, 256, bias=False)
        self.scores.weight = self.token.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token(ids.long()) + self.position(torch.arange(ids.shape[1]))
        for number, (attention, mlp) in enumerate(zip(self.attentions, self.mlps, strict=True)):
            x = x + attention(self.norms[2 * number](x))
            x = x + mlp(self.norms[2 * number + 1](x))
        return self.scores(self.norms[4](x))  # type: ignore[no-any-return]


class Foreign(nn.Module):
    """Full of what no component stands for."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, batch_first=True)
        self.scores = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(x)
        states = torch.cumsum(states, dim=1)
        states = torch.ops.dcnr_test.squared(states)
        return self.scores(torch.tanh(states)[:, -1])  # type: ignore[no-any-return]


class Hesitant(nn.Module):
    """What it computes depends on the values."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return self.scores(x)  # type: ignore[no-any-return]
        return self.scores(-x)  # type: ignore[no-any-return]


class Twice(nn.Module):
    """One layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scores = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(F.relu(self.layer(F.relu(self.layer(x)))))  # type: ignore[no-any-return]


def settled(module: nn.Module) -> nn.Module:
    """``module`` with weights from a seed and running statistics as if it had seen data."""
    generator = torch.Generator().manual_seed(3)
    for part in module.modules():
        for name, value in [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]:
            if value.is_floating_point():
                drawn = torch.rand(value.shape, generator=generator)
                value.data.copy_(0.5 + drawn if name == "running_var" else (drawn - 0.5) * 0.8)
    return module
