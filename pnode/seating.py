"""Which states a PNode serves: what is wished, as far as the memory that replicas leave goes. Pure.

A seat gets room for two copies of its weights, so that the next state is loaded while the one before answers. Where there is room for one only, the one
before goes first. Who holds a seat already keeps it before a newcomer gets one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from dcnr import limits

LOADING: Final = "it is being loaded"
"""The reason of a seat that does not answer yet, while nothing is wrong with it."""
FILE_GONE: Final = "state_gone"
"""The code of a seat whose file was removed between its being brought and its being read: a newer snapshot took the place of it."""
Key = tuple[str, str, str]
"""Model, VNode, digest of the state."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A VNode's state that is wished for. ``keeps``: the manifest whose state goes on answering beside it, if it is loaded."""

    model: str
    vnode: str
    state_digest: str
    manifest_digest: str
    keeps: str
    both_bytes: int
    """With room for the state that follows."""
    alone_bytes: int

    @property
    def key(self) -> Key:
        """Names the seat."""
        return self.model, self.vnode, self.state_digest


@dataclass(frozen=True, slots=True)
class Held:
    """A seat that is being loaded, or answers."""

    key: Key
    manifest_digest: str
    """Of the wish that asked for it last."""
    is_ready: bool


@dataclass(slots=True)
class Settled:
    """What follows: first ``drop``, then ``load``. ``refused``: by (model, VNode), why there is no seat. ``spare_bytes``: what is left beside all seats."""

    load: list[Wanted] = field(default_factory=list)
    drop: list[Key] = field(default_factory=list)
    refused: dict[tuple[str, str], str] = field(default_factory=dict)
    spare_bytes: int = 0


class Told:
    """What others heard last of each VNode's seat. A newer state that takes the place of one that answers is no news: checkpoints are taken all the time."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], str] = {}

    def is_news(self, model: str, vnode: str, trouble: str) -> bool:
        """Whether they have to hear of ``trouble``, or, where that is empty, that the seat answers; from now on it counts as told."""
        is_known = self._last.get((model, vnode)) == trouble
        self._last[model, vnode] = trouble
        return not is_known

    def keep(self, seats: Collection[tuple[str, str]]) -> None:
        """Others than these have ended: what becomes of them later is news."""
        self._last = {seat: trouble for seat, trouble in self._last.items() if seat in seats}


def settle(wanted: Sequence[Wanted], held: Sequence[Held], free_bytes: int) -> Settled:
    """What to load and to drop. ``held``: the oldest first; ``free_bytes``: what replicas leave, seats not taken off."""
    settled = Settled()
    loaded = {one.key[:2] for one in held}
    room_bytes = free_bytes
    keep: set[Key] = set()
    for one in sorted(wanted, key=lambda item: (item.key[:2] not in loaded, item.key)):
        mine = [item for item in held if item.key[:2] == one.key[:2]]
        has_room = one.both_bytes <= room_bytes
        if not has_room and one.alone_bytes > room_bytes:
            needed, free = one.alone_bytes // limits.MIB, max(0, room_bytes) // limits.MIB
            settled.refused[one.model, one.vnode] = f"too_little_memory: a seat needs {needed} MiB, {free} are free"
            continue
        room_bytes -= one.both_bytes if has_room else one.alone_bytes
        target = next((item for item in mine if item.key == one.key), None)
        if target is None:
            settled.load.append(one)
        else:
            keep.add(target.key)
        if has_room:
            keep.update(item.key for item in _beside(one, target, [item for item in mine if item is not target]))
    settled.drop = [item.key for item in held if item.key not in keep]
    settled.spare_bytes = max(0, room_bytes)
    return settled


def _beside(one: Wanted, target: Held | None, others: Sequence[Held]) -> Sequence[Held]:
    """Which of the others stays: while the wanted state is not loaded one that answers, then the one that is to be kept."""
    if target is not None and target.is_ready:
        others = [item for item in others if one.keeps and item.manifest_digest == one.keeps]
    return [item for item in others if item.is_ready][-1:]
