"""Text from a model that says what follows each token: what is asked next, and what an answer adds. Pure.

One pass brings the tokens of the window through the pipeline. With drafts the first stage extends them first, each drafted token being the likeliest by its
own exit; the whole pipeline then says in the same pass what it would have put at each of these places, and the drafts that agree are kept with the token
after them: self-speculation (Zhang et al. 2023, arXiv 2309.08168; verifying in one pass: Leviathan et al. 2023, arXiv 2211.17192). A token is a function
of its logits and of (seed, place) alone, by the Gumbel-max trick with noise of that place, so drafts change how many passes a text takes and never the
text. Where the two best of greedy choices differ by less than `CLOSE`, the shape of a pass may decide between them; such places are counted.

A window that is full loses its older half, at places that do not depend on the drafts. ``top_p`` keeps the smallest set of likeliest tokens that
holds this probability (Holtzman et al. 2020, arXiv 1904.09751).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from dcnr.errors import InvalidInput, RemoteFault
from dcnr.limits import MAX_DRAFT, MAX_PROMPT_BYTES, MAX_STOP_BYTES, MAX_STOPS, MAX_WRITTEN

FIRST_DRAFT: Final = 4
CLOSE: Final = 1e-4
"""Nats between two logits that another shape of the same computation may swap."""
MAX_TEMPERATURE: Final = 10.0

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be written. ``temperature`` 0: the likeliest token each time."""

    prompt: bytes
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[bytes, ...] = ()
    draft: int = MAX_DRAFT
    """At most so many tokens are drafted per pass; 0: none."""

    def check(self) -> None:
        """Raises InvalidInput (``bad_generation``)."""
        problems = (
            (not 0 < len(self.prompt) <= MAX_PROMPT_BYTES, f"a prompt has 1 to {MAX_PROMPT_BYTES} bytes, not {len(self.prompt)}"),
            (not 0 < self.max_tokens <= MAX_WRITTEN, f"1 to {MAX_WRITTEN} tokens can be asked for, not {self.max_tokens}"),
            (not 0.0 <= self.temperature <= MAX_TEMPERATURE, f"a temperature is 0 to {MAX_TEMPERATURE:g}"),
            (not 0.0 < self.top_p <= 1.0, "top_p is above 0 and at most 1"),
            (len(self.stop) > MAX_STOPS, f"at most {MAX_STOPS} stops"),
            (any(not 0 < len(stop) <= MAX_STOP_BYTES for stop in self.stop), f"a stop has 1 to {MAX_STOP_BYTES} bytes"),
            (not 0 <= self.draft <= MAX_DRAFT, f"at most {MAX_DRAFT} tokens are drafted"),
            (not 0 <= self.seed < 1 << 64, "a seed has 64 bits"),
        )
        for is_wrong, why in problems:
            if is_wrong:
                raise InvalidInput(why, code="bad_generation")


@dataclass(frozen=True, slots=True)
class Pass:
    """What goes through the pipeline: the window, how many tokens the first stage adds, and of how many last places the logits are wanted."""

    window: bytes
    draft: int

    @property
    def last(self) -> int:
        """Each draft has to be judged, and the token after them is won."""
        return self.draft + 1


class Generation:
    """One text. ``context``: tokens that the model takes at once; at least 2."""

    def __init__(self, wanted: Wanted, context: int) -> None:
        wanted.check()
        self._wanted, self._context = wanted, context
        self._tokens = bytearray(wanted.prompt)
        self._said = len(wanted.prompt)
        self._draft = min(wanted.draft, FIRST_DRAFT)
        self._pass: Pass | None = None
        self.finish_reason = ""
        """``stop`` or ``length`` once it is over."""
        self.num_passes = self.num_drafted = self.num_accepted = self.num_close = 0

    @property
    def num_tokens(self) -> int:
        """Written so far, those of a stop included."""
        return len(self._tokens) - len(self._wanted.prompt)

    def ask(self) -> Pass:
        """The next pass. To be called while ``finish_reason`` is empty."""
        start = window_start(len(self._tokens), self._context)
        window = bytes(self._tokens[start:])
        room = min(self._context - len(window), self._wanted.max_tokens - self.num_tokens - 1)
        self._pass = Pass(window, max(0, min(self._draft, room)))
        return self._pass

    def take(self, drafted: bytes, logits: Logits) -> bytes:
        """What may be said now. ``logits``: [pass.last, tokens]. Raises RemoteFault for an answer to something else."""
        asked = self._pass
        if asked is None or len(drafted) > asked.draft or logits.ndim != 2 or len(logits) != len(drafted) + 1:
            raise RemoteFault("an answer that does not fit what was asked", code="bad_answer")
        self._pass = None
        accepted = 0
        for place, row in enumerate(logits):
            token = self._token(row)
            self._tokens.append(token)
            self._judge_end()
            if self.finish_reason or place == len(drafted) or token != drafted[place]:
                break
            accepted += 1
        self.num_passes += 1
        self.num_drafted += len(drafted)
        self.num_accepted += accepted
        self._draft = min(self._wanted.draft, 2 * accepted + 2)
        return self._sayable()

    def _token(self, logits: Logits) -> int:
        if not self._wanted.temperature:
            best, second = (int(one) for one in np.argsort(-logits, kind="stable")[:2])
            self.num_close += bool(logits[best] - logits[second] < CLOSE)
            return best
        scaled = logits.astype(np.float64) / self._wanted.temperature
        if self._wanted.top_p < 1.0:
            scaled = np.where(_nucleus(scaled, self._wanted.top_p), scaled, -np.inf)
        return int(np.argmax(scaled + _noise(self._wanted.seed, len(self._tokens), len(logits))))

    def _judge_end(self) -> None:
        text = self._tokens[len(self._wanted.prompt) :]
        if any(text.endswith(stop) for stop in self._wanted.stop):
            self.finish_reason = "stop"
        elif len(text) >= self._wanted.max_tokens:
            self.finish_reason = "length"

    def _sayable(self) -> bytes:
        """What was not said yet, without a stop, and without what a stop may begin with."""
        text = self._tokens[self._said :]
        ended = [stop for stop in self._wanted.stop if self._tokens.endswith(stop)] if self.finish_reason == "stop" else []
        if ended:
            kept = len(text) - max(map(len, ended))
        elif self.finish_reason:
            kept = len(text)
        else:
            kept = len(text) - max((_begun(text, stop) for stop in self._wanted.stop), default=0)
        kept = max(0, kept)
        self._said += kept
        return bytes(text[:kept])


def window_start(num_tokens: int, context: int) -> int:
    """Where the window begins from which the token after so many is told: it moves on by half a window whenever it would be too long."""
    half = context // 2
    return -(-max(0, num_tokens - context) // half) * half


def _begun(text: bytearray, stop: bytes) -> int:
    """Length of the longest end of the text with which a stop begins."""
    return next((length for length in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:length])), 0)


def _nucleus(scaled: npt.NDArray[np.float64], top_p: float) -> npt.NDArray[np.bool_]:
    order = np.argsort(-scaled, kind="stable")
    likely = np.exp(scaled[order] - scaled[order[0]])
    before = np.cumsum(likely) - likely
    kept = np.zeros(len(scaled), np.bool_)
    kept[order[before < top_p * likely.sum()]] = True
    return kept


def _noise(seed: int, place: int, size: int) -> npt.NDArray[np.float64]:
    """Gumbel noise, one value per token."""
    drawn = blake3(struct.pack("<QQ", seed, place), derive_key_context="dcnr generation noise").digest(length=8 * size)
    uniform: npt.NDArray[np.float64] = (np.frombuffer(drawn, "<u8") >> 11).astype(np.float64)
    return -np.log(-np.log((uniform + 0.5) / (1 << 53)))
