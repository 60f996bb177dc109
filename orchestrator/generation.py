"""Text from a model that says what follows each token: what is asked next, and what an answer adds. Pure.

One pass brings the tokens of the window through the pipeline. With drafts the first stage extends them first, by its own exit; the whole pipeline then says
in the same pass what it would have put at each of these places, and the drafts that agree are kept with the token after them: self-speculation (Zhang et
al. 2023, arXiv 2309.08168; verifying in one pass: Leviathan et al. 2023, arXiv 2211.17192). A token is a function of its logits and of (seed, place) alone
(`dcnr.tokens`), so drafts change how many passes a text takes and never the text; and the first stage draws with the same noise as the pipeline does, so that
it is right wherever both logits lead to the same choice (ADR 0069). Where the two best of greedy choices differ by less than `CLOSE`, the shape of a pass
may decide between them; such places are counted.

A window that is full loses its older half, at places that do not depend on the drafts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from dcnr.errors import InvalidInput, RemoteFault
from dcnr.limits import MAX_DRAFT, MAX_PROMPT_BYTES, MAX_STOP_BYTES, MAX_STOPS, MAX_WRITTEN
from dcnr.tokens import LIKELIEST, Choice, Drawing, Logits

FIRST_DRAFT: Final = 4
CLOSE: Final = 1e-4
"""Nats between two logits that another shape of the same computation may swap."""


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

    @property
    def choice(self) -> Choice:
        """How each token is chosen."""
        return Choice(self.temperature, self.top_p, self.seed)

    def check(self) -> None:
        """Raises InvalidInput (``bad_generation``)."""
        problems = (
            (not 0 < len(self.prompt) <= MAX_PROMPT_BYTES, f"a prompt has 1 to {MAX_PROMPT_BYTES} bytes, not {len(self.prompt)}"),
            (not 0 < self.max_tokens <= MAX_WRITTEN, f"1 to {MAX_WRITTEN} tokens can be asked for, not {self.max_tokens}"),
            (len(self.stop) > MAX_STOPS, f"at most {MAX_STOPS} stops"),
            (any(not 0 < len(stop) <= MAX_STOP_BYTES for stop in self.stop), f"a stop has 1 to {MAX_STOP_BYTES} bytes"),
            (not 0 <= self.draft <= MAX_DRAFT, f"at most {MAX_DRAFT} tokens are drafted"),
        )
        for is_wrong, why in problems:
            if is_wrong:
                raise InvalidInput(why, code="bad_generation")
        self.choice.check()


@dataclass(frozen=True, slots=True)
class Pass:
    """What goes through the pipeline: the window, how many tokens the first stage adds, drawn how, and of how many last places the logits are wanted."""

    window: bytes
    draft: int
    drawing: Drawing = LIKELIEST

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
        self._pass = Pass(window, max(0, min(self._draft, room)), Drawing(self._wanted.choice, len(self._tokens)))
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
        return self._wanted.choice.token(logits, len(self._tokens))

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
