"""Which token follows: a function of its logits and of (seed, place) alone, so that whoever has like logits for a place of a text chooses alike. Pure.

By the Gumbel-max trick with noise of that place: frequencies over seeds are those of the softmax. ``top_p`` keeps the smallest set of likeliest tokens that
holds this probability (Holtzman et al. 2020, arXiv 1904.09751).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from dcnr.errors import InvalidInput
from dcnr.v1 import common_pb2

MAX_TEMPERATURE: Final = 10.0

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Choice:
    """How the tokens of one text are chosen. ``temperature`` 0: the likeliest each time."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def check(self) -> None:
        """Raises InvalidInput (``bad_generation``)."""
        for is_wrong, why in (
            (not 0.0 <= self.temperature <= MAX_TEMPERATURE, f"a temperature is 0 to {MAX_TEMPERATURE:g}"),
            (not 0.0 < self.top_p <= 1.0, "top_p is above 0 and at most 1"),
            (not 0 <= self.seed < 1 << 64, "a seed has 64 bits"),
        ):
            if is_wrong:
                raise InvalidInput(why, code="bad_generation")

    def token(self, logits: Logits, place: int) -> int:
        """The token at a place of the text, counted from its first."""
        if not self.temperature:
            return int(logits.argmax())
        scaled = logits.astype(np.float64) / self.temperature
        if self.top_p < 1.0:
            scaled = np.where(_nucleus(scaled, self.top_p), scaled, -np.inf)
        return int(np.argmax(scaled + _noise(self.seed, place, len(logits))))


@dataclass(frozen=True, slots=True)
class Drawing:
    """How drafts are chosen, and the place of the first of them."""

    choice: Choice = Choice()
    place: int = 0

    def token(self, logits: Logits, number: int) -> int:
        """The draft after so many others."""
        return self.choice.token(logits, self.place + number)

    def message(self) -> common_pb2.Drawing:
        """The wire form."""
        return common_pb2.Drawing(
            temperature=self.choice.temperature, top_p=self.choice.top_p, seed=self.choice.seed, place=self.place
        )


LIKELIEST: Final = Drawing()


def drawing_of(message: common_pb2.Drawing) -> Drawing:
    """What a message says; an empty one: the likeliest. Raises InvalidInput (``bad_generation``)."""
    if not message.ByteSize():
        return LIKELIEST
    choice = Choice(message.temperature, message.top_p or 1.0, message.seed)
    choice.check()
    return Drawing(choice, message.place)


def _nucleus(scaled: npt.NDArray[np.float64], top_p: float) -> npt.NDArray[np.bool_]:
    order = np.argsort(-scaled, kind="stable")
    likely = np.exp(scaled[order] - scaled[order[0]])
    before = np.cumsum(likely) - likely
    kept = np.zeros(len(scaled), np.bool_)
    kept[order[before < top_p * likely.sum()]] = True
    return kept


def _noise(seed: int, place: int, size: int) -> npt.NDArray[np.float64]:
    """Gumbel noise, one value per token."""
    drawn = blake3(struct.pack("<QQ", seed, place % (1 << 64)), derive_key_context="dcnr generation noise").digest(length=8 * size)
    uniform: npt.NDArray[np.float64] = (np.frombuffer(drawn, "<u8") >> 11).astype(np.float64)
    return -np.log(-np.log((uniform + 0.5) / (1 << 53)))
