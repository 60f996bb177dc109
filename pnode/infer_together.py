"""Questions that wait at one place are computed together, by one call of its VNode, as far as they fit each other; nobody waits for company.

A call has no more samples than a batch of the graph, which there is memory for. A question that cannot be computed fails alone: whatever goes wrong with
several is tried again with each of them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dcnr.errors import InvariantBroken
from dcnr.ports import Clock
from pnode.infer_places import Computed, Wish, infer, last_places
from pnode.infer_words import Travelling
from pnode.outbox import as_array, is_at_hand
from vnode.compute import Compute
from vnode.vocabulary import Mode


@dataclass(slots=True, eq=False)
class Waiting:
    """One question at one place. ``found``: what became of it."""

    inputs: Sequence[Travelling]
    wish: Wish
    found: Computed | Exception | None = None
    num_samples: int = field(init=False)
    """Of each of its tensors; 0 for what has no samples, which is refused when it is computed."""
    _kind: tuple[object, ...] | None = field(init=False)
    """Equal for questions that one call may compute; None for one that is computed alone."""

    def __post_init__(self) -> None:
        layouts = [tensor.layout for tensor in self.inputs]
        self.num_samples = next(iter(layouts[0][1]), 0)
        # with tensors of several lengths it would push those behind it out of their rows
        is_even = all(shape[:1] == (self.num_samples,) for _, shape in layouts)
        kinds = tuple((dtype, shape[1:]) for dtype, shape in layouts)
        self._kind = (self.wish.answers, kinds) if is_even and not self.wish.is_alone else None

    def result(self) -> Computed:
        """What was computed. Raises what went wrong."""
        if isinstance(self.found, Exception):
            raise self.found
        if self.found is None:
            raise InvariantBroken("a question had its turn and was not computed", code="not_computed")
        return self.found

    def fits(self, other: Waiting) -> bool:
        """Whether one call may compute both."""
        return self._kind is not None and self._kind == other._kind


class Together:
    """The questions that wait at one place. `work` belongs to the thread of ``compute``, everything else to the event loop."""

    def __init__(self, compute: Compute, most_samples: int, clock: Clock) -> None:
        self._compute, self._most, self._clock = compute, most_samples, clock
        self._lock = threading.Lock()
        self._waiting: dict[Waiting, None] = {}
        self._num_reserved = 0

    def enter(self, inputs: Sequence[Travelling], wish: Wish) -> Waiting:
        """A question waits until a call takes it."""
        one = Waiting(inputs, wish)
        with self._lock:
            self._waiting[one] = None
        return one

    def leave(self, one: Waiting) -> None:
        """Nobody waits for it any more."""
        with self._lock:
            self._waiting.pop(one, None)

    def reserve(self) -> bool:
        """Whether one more call is needed, besides those that were reserved and did not begin. Whoever hears so has `work` called."""
        with self._lock:
            samples = sum(one.num_samples for one in self._waiting)
            is_needed = bool(self._waiting) and self._num_reserved * self._most < max(1, samples)
            self._num_reserved += is_needed
            return is_needed

    def work(self, step: int) -> Sequence[Waiting]:
        """Computes who waits longest and those that fit it; blocks. What became of each is found in it."""
        group = self._taken()
        left = self._by_one_call(group, step) if len(group) > 1 else group
        for one in left:
            try:
                one.found = infer(self._compute, one.inputs, step, self._clock, one.wish)
            except Exception as error:  # noqa: BLE001  raised where the question is waited for
                one.found = error
        return group

    def give_up(self, error: Exception) -> Sequence[Waiting]:
        """All that wait find that."""
        with self._lock:
            group, self._waiting, self._num_reserved = list(self._waiting), {}, 0
        for one in group:
            one.found = error
        return group

    def _taken(self) -> list[Waiting]:
        """The oldest, and those after it that fit it, as many as a call may have."""
        with self._lock:
            self._num_reserved = max(0, self._num_reserved - 1)
            group: list[Waiting] = []
            room = self._most
            for one in self._waiting:
                if not group or (one.num_samples <= room and one.fits(group[0])):
                    group.append(one)
                    room -= one.num_samples
            for one in group:
                del self._waiting[one]
        return group

    def _by_one_call(self, group: Sequence[Waiting], step: int) -> list[Waiting]:
        """Those that have to be computed alone after all: all of them, where the call fails."""
        began_s = self._clock.monotonic()
        try:
            brought = [[as_array(tensor.values()) for tensor in one.inputs] for one in group]
            output = self._compute.forward(0, [np.concatenate(parts) for parts in zip(*brought, strict=True)], Mode.INFER).output
            readout = self._compute.readout(output) if group[0].wish.answers else None
            output, readout = _to_be_cut(output), _to_be_cut(readout)
            if len(output) != sum(one.num_samples for one in group):
                return list(group)
            seconds = self._clock.monotonic() - began_s
            end, found = 0, []
            for one in group:
                begin, end = end, end + one.num_samples
                said = None if readout is None else last_places(readout[begin:end], one.wish.last)
                found.append(Computed(output[begin:end], said, step, began_s, seconds, num_together=len(group)))
        except Exception:  # noqa: BLE001  which of them is to blame shows alone
            return list(group)
        for one, computed in zip(group, found, strict=True):
            one.found = computed
        return []


def _to_be_cut(tensor: Any) -> Any:
    """The same; as an array where that costs nothing, since cutting those is cheaper."""
    return as_array(tensor) if is_at_hand(tensor) else tensor
