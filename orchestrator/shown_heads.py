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
        self._newest: dict[str, tuple[model_pb2.Head, float]] = {}
        """By holder, of which there are as many as are listed: what PNodes show that obey the store's hides nothing of another of the same epoch."""

    def shown(self, head: model_pb2.Head, now: float) -> None:
        """A PNode has seen this head."""
        before = self._newest.get(head.holder)
        if before is None or (head.epoch, head.sequence) > (before[0].epoch, before[0].sequence):
            self._newest[head.holder] = (head, now)

    @property
    def waiting(self) -> list[model_pb2.Head]:
        """Those that may turn out to be evidence."""
        return [head for head, _ in self._newest.values()]

    def evidence(self, known: model_pb2.Head | None, now: float, *, is_read: bool) -> model_pb2.Head | None:
        """A shown head of which epoch or sequence is above that of ``known``, the store's, or which names another holder of that epoch, and stays so; each
        is told once. While the store is not read (``is_read``) nothing follows from it.
        """
        if known is None:
            return None
        if not is_read:
            self._newest = {holder: (head, now) for holder, (head, _) in self._newest.items()}
            return None
        self._newest = {holder: one for holder, one in self._newest.items() if not _follows(known, one[0])}
        found = [head for head, since in self._newest.values() if now - since > SHOWN_S]
        for head in found:
            del self._newest[head.holder]
        return max(found, key=lambda head: (head.epoch, head.sequence), default=None)


def _follows(known: model_pb2.Head, shown: model_pb2.Head) -> bool:
    """Whether the store's head is, or came after, the shown one."""
    is_below = shown.epoch < known.epoch or (shown.epoch == known.epoch and shown.holder == known.holder)
    return is_below and shown.sequence <= known.sequence
