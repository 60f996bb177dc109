"""What the stages of one way keep of one text between its passes, and what the next pass may leave out because of it. Pure.

What is kept is named by the tokens that it was computed from: a pass leaves out the longest beginning of its window that is a beginning of these. Drafts
that were not kept, and a window that moved, need no further rule. A session belongs to one way and is begun by one try; whatever fails, the next try
begins another one with the whole window, so no question that is late can change what another one goes on from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from dcnr.tensor import encode_final
from orchestrator.answered import Answered
from orchestrator.questions import Question
from orchestrator.routing import Table, Way

MAX_REPLAYS: Final = 8
"""A text whose stages lost it so often goes on with whole windows: it would only cost them twice."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Under ``session`` every stage of ``way`` keeps these tokens."""

    session: bytes
    way: Way
    tokens: bytes


class TextSession:
    """One text's. ``kept`` is what the next pass may go on from."""

    def __init__(self) -> None:
        self.kept: Kept | None = None
        self.num_replays = 0
        """Passes that brought the whole window since something was lost,"""
        self.num_kept = 0
        """and places that no stage computed again, since nothing was."""

    def asks(self, question: Question) -> Question:
        """The whole question, which begins a session unless too many were lost."""
        return replace(question, begins_session=True) if self.num_replays < MAX_REPLAYS else question

    def goes_on(self, question: Question, tables: Sequence[Table]) -> tuple[Way, Question] | None:
        """What is left of the question, and the way that has the rest; None where nothing is kept for it."""
        kept = self.kept
        if kept is None or kept.way.table.manifest_digest not in {table.manifest_digest for table in tables}:
            return None
        (name, encoded), *others = question.inputs.items()
        window = bytes(encoded.payload)
        offset = min(_num_common(window, kept.tokens), len(window) - 1)
        if others or not offset:
            return None
        rest = encode_final(np.frombuffer(window[offset:], np.uint8)[None], "raw")
        return kept.way, replace(question, inputs={name: rest}, begins_session=False, session=kept.session, offset=offset)

    def answered(self, question: Question, left: Question | None, found: Answered) -> Kept | None:
        """Takes in what was found for the whole question, of which ``left`` was asked first. What nobody goes on from any more is returned."""
        answer, before = found.answer, self.kept
        if left is not None and answer.session == left.session:
            self.num_kept += left.offset
        elif left is not None:
            self.num_replays += 1
        tokens = b"".join(bytes(encoded.payload) for encoded in question.inputs.values()) + answer.drafted
        is_kept = answer.session and answer.kept == len(tokens) and not found.way.missing and self.num_replays < MAX_REPLAYS
        self.kept = Kept(answer.session, found.way, tokens) if is_kept else None
        return before if before is not None and (self.kept is None or self.kept.session != before.session) else None


def _num_common(one: bytes, other: bytes) -> int:
    """Length of the longest common beginning."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    return next(place for place in range(shorter) if one[place] != other[place])
