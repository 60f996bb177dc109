"""Layers shared by several components. Whatever is random here draws from the batch's `Draws`, never from torch's generators.

Rules for every component module: parameters and buffers are float32, int64 or uint8, all buffers are persistent, inputs are never
changed in place, and without draws a layer is not random.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from vnode.randomness import Draws
from vnode.torch_memory import Remembering, attended


class Keyed(nn.Module):
    """Base of layers with randomness: the adapter sets ``draws`` before each TRAIN or FORWARD_ONLY pass and None before others."""

    def __init__(self) -> None:
        super().__init__()
        self.draws: Draws | None = None
        self.purpose = ""


class KeyedDropout(Keyed):
    """Inverted dropout whose mask is a function of (seed, VNode, batch, place in the module)."""

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        """x with elements zeroed, the others scaled up; x itself without draws."""
        if self.draws is None or self.drop == 0.0:
            return x
        keep = self.draws.keep(self.purpose, x.numel(), drop=self.drop)
        return x * torch.from_numpy(keep).to(x.device).view(x.shape) * (1.0 / (1.0 - self.drop))


class RandomShift(Keyed):
    """Moves each image by up to ±pixels in both directions, zeros come in; one draw per sample and direction."""

    def __init__(self, pixels: int) -> None:
        super().__init__()
        self.pixels = pixels

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Shifted images; the images themselves without draws."""
        if self.draws is None or self.pixels == 0:
            return x_BCHW
        batch, channels, height, width = x_BCHW.shape
        pad = self.pixels
        moves = torch.from_numpy(self.draws.integers(self.purpose, 2 * batch, low=0, high=2 * pad)).to(x_BCHW.device).view(batch, 2)
        padded = functional.pad(x_BCHW, (pad, pad, pad, pad))
        rows = (moves[:, :1] + torch.arange(height, device=x_BCHW.device)).view(batch, 1, height, 1)
        columns = (moves[:, 1:] + torch.arange(width, device=x_BCHW.device)).view(batch, 1, 1, width)
        samples = torch.arange(batch, device=x_BCHW.device).view(batch, 1, 1, 1)
        planes = torch.arange(channels, device=x_BCHW.device).view(1, channels, 1, 1)
        return padded[samples, planes, rows, columns]


class CausalBlock(Remembering):
    """Pre-LN transformer block (Radford et al. 2019): causal self-attention and a GELU MLP of 4·d, both residual."""

    def __init__(self, width: int, heads: int, drop: float) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.attention_drop = KeyedDropout(drop)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)
        self.mlp_drop = KeyedDropout(drop)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """[B, T, D] → [B, T, D]; position t sees positions ≤ t, those in memory included."""
        batch, length, width = x_BTD.shape
        q_BHTK, k_BHTK, v_BHTK = (
            self.qkv(self.attention_norm(x_BTD)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        )
        if self.memory is not None:
            k_BHTK, v_BHTK = self.memory.with_these(self.purpose, k_BHTK, v_BHTK)
        mixed_BHTK = attended(q_BHTK, k_BHTK, v_BHTK)
        mixed_BTD = mixed_BHTK.transpose(1, 2).reshape(batch, length, width)
        x_BTD = x_BTD + self.attention_drop(self.projection(mixed_BTD))
        hidden_BTF = functional.gelu(self.mlp_in(self.mlp_norm(x_BTD)))
        output_BTD: Tensor = x_BTD + self.mlp_drop(self.mlp_out(hidden_BTF))
        return output_BTD
