"""Texts that a model writes, as they come over the wire: bytes become characters, and every text has an end or an error."""

from __future__ import annotations

import codecs
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from dcnr import limits
from dcnr.errors import RemoteFault
from dcnr.v1 import orchestrator_pb2


@dataclass(frozen=True, slots=True)
class Part:
    """What follows. The last part has a finish reason."""

    text: str
    finish_reason: str
    """``stop`` or ``length``; empty: more follows."""
    said: orchestrator_pb2.GenerateResponse
    """All that the network says of it: version, exit, stages, passes, drafts."""


async def parts_of(answers: AsyncGenerator[orchestrator_pb2.GenerateResponse, None]) -> AsyncGenerator[Part, None]:
    """The parts of one text, at most `limits.MAX_WRITTEN`, since each brings a token at least; ``answers`` is closed in the end.

    A character whose bytes come in two parts is in the second one; bytes that are no text become U+FFFD. Raises RemoteFault (``text_broken``) for a text
    that breaks off or has no end.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    num_parts = 0
    async with aclosing(answers):
        async for said in answers:
            num_parts += 1
            yield Part(decoder.decode(said.text, final=bool(said.finish_reason)), said.finish_reason, said)
            if said.finish_reason:
                return
            if num_parts >= limits.MAX_WRITTEN:
                break
    raise RemoteFault("the text has no end", code="text_broken")
