"""Heads that PNodes show when they attach, held against the store's: one that stays newer says that the store went back. Pure.

Each write of a head raises its sequence, and each takeover its epoch: in a store that does not go back nothing that anybody has seen is above the newest, and
an epoch has one holder.
"""

from __future__ import annotations

from typing import Final

from dcnr.v1 import model_pb2

SHOWN_S: Final = 8.0
"""A head that a PNode shows may be newer than ours for this long, with the store being read, before it counts as evidence."""


class ShownHeads:
    """Of one model. The heads are verified."""

    def __init__(self) -> None:
        self._newest: tuple[model_pb2.Head, float] | None = None

    def shown(self, head: model_pb2.Head, now: float) -> None:
        """A PNode has seen this head."""
        if self._newest is None or (head.epoch, head.sequence) > (self._newest[0].epoch, self._newest[0].sequence):
            self._newest = (head, now)

    def evidence(self, known: model_pb2.Head | None, now: float, *, is_read: bool) -> model_pb2.Head | None:
        """A shown head of which epoch or sequence is above that of ``known``, the store's, or which names another holder of that epoch, and stays so; each
        is told once. While the store is not read (``is_read``) nothing follows from it.
        """
        if self._newest is None or known is None:
            return None
        shown, since = self._newest
        if not is_read:
            self._newest = (shown, now)
        elif shown.sequence <= known.sequence and (
            shown.epoch < known.epoch or (shown.epoch == known.epoch and shown.holder == known.holder)
        ):
            self._newest = None
        elif now - since > SHOWN_S:
            self._newest = None
            return shown
        return None
