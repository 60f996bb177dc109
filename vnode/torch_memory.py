"""What the layers of one stage keep of a sequence, so that a pass computes its new places alone: keys and values (Shazeer 2019, arXiv 1911.02150, section 2.3).

Attention is causal: what was kept of a place stays right whatever follows it, so going back to an earlier place is forgetting the later ones.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dcnr.errors import InvariantBroken


class Memory:
    """Of one sequence: ``length`` places, at most ``context``. Room for all of them is taken when the first of them comes."""

    def __init__(self, context: int) -> None:
        self.context, self.length = context, 0
        self._kept: dict[str, tuple[Tensor, Tensor]] = {}

    @property
    def num_bytes(self) -> int:
        """Taken so far."""
        return sum(tensor.nbytes for both in self._kept.values() for tensor in both)

    def back_to(self, length: int) -> None:
        """What is behind so many places is forgotten. Raises InvariantBroken for places that it does not have."""
        if not 0 <= length <= self.length:
            raise InvariantBroken(f"{self.length} places are kept, not {length}", code="no_cache")
        self.length = length

    def with_these(self, layer: str, k_BHTK: Tensor, v_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of all places up to these, which are kept from `advance` on."""
        batch, heads, count, width = k_BHTK.shape
        if self.length + count > self.context:
            raise InvariantBroken(f"{self.length + count} places; there is room for {self.context}", code="bad_frame")
        if layer not in self._kept:
            self._kept[layer] = (
                k_BHTK.new_empty((batch, heads, self.context, width)),
                v_BHTK.new_empty((batch, heads, self.context, width)),
            )
        end = self.length + count
        keys, values = self._kept[layer]
        keys[:, :, self.length : end] = k_BHTK
        values[:, :, self.length : end] = v_BHTK
        return keys[:, :, :end], values[:, :, :end]

    def advance(self, count: int) -> None:
        """So many further places were computed by every layer."""
        self.length += count


class Remembering(nn.Module):
    """Base of layers that depend on the places before: ``memory`` is set before a pass that goes on with a sequence, and is None before others.

    ``purpose`` names the layer within its stage.
    """

    def __init__(self) -> None:
        super().__init__()
        self.memory: Memory | None = None
        self.purpose = ""


def attended(q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor) -> Tensor:
    """Causal attention of the last T of S places."""
    places, all_places = q_BHTK.shape[2], k_BHSK.shape[2]
    if places == all_places:
        return functional.scaled_dot_product_attention(q_BHTK, k_BHSK, v_BHSK, is_causal=True)
    if places == 1:
        return functional.scaled_dot_product_attention(q_BHTK, k_BHSK, v_BHSK)
    seen_TS = torch.ones(places, all_places, dtype=torch.bool, device=q_BHTK.device).tril(all_places - places)
    return functional.scaled_dot_product_attention(q_BHTK, k_BHSK, v_BHSK, attn_mask=seen_TS)
