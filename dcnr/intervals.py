"""Sets of batch numbers as few sorted intervals: every value is canonical, so equal sets are equal values with equal encodings.

A lineage, a Need and an Offer are such sets. An `IntervalSet` is kept as one flat tuple of strictly growing bounds
``(lo0, hi0, lo1, hi1, ...)`` of half-open intervals that neither overlap nor touch: a number is in the set exactly when an odd
count of bounds lies at or below it. Look-up is a binary search; adding a number copies the tuple, which is short: at most
`limits.MAX_INTERVALS` come over the wire, and in practice a lineage has a handful, a share of the batches some hundreds. So nothing is
kept of a set but its bounds: what two sets take together is bounded by what came, however wide they are.
"""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Final

from dcnr import limits
from dcnr.errors import Corrupt, InvalidInput, InvariantBroken

END: Final = 2**62
"""Every number in a set is below this, so that bounds and counts fit a signed 64-bit field."""


@dataclass(frozen=True, slots=True)
class IntervalSet:
    """An immutable, hashable set of integers in [0, 2**62). Build it with the named constructors; ``bounds`` must be canonical."""

    bounds: tuple[int, ...] = ()

    @classmethod
    def empty(cls) -> IntervalSet:
        """The set without elements."""
        return _EMPTY

    @classmethod
    def span(cls, lo: int, hi: int) -> IntervalSet:
        """[lo, hi); empty where ``hi <= lo``. Raises InvalidInput for bounds outside [0, 2**62]."""
        lo, hi = _bound(lo), _bound(hi)
        return cls((lo, hi)) if lo < hi else _EMPTY

    @classmethod
    def of(cls, *pairs: tuple[int, int]) -> IntervalSet:
        """The union of ``pairs`` in any order, overlapping or not. Raises InvalidInput for bounds outside [0, 2**62]."""
        bounds: list[int] = []
        for lo, hi in sorted((_bound(lo), _bound(hi)) for lo, hi in pairs):
            if lo >= hi:
                continue
            if bounds and lo <= bounds[-1]:
                bounds[-1] = max(bounds[-1], hi)
            else:
                bounds += (lo, hi)
        return cls(tuple(bounds))

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[int, int]]) -> IntervalSet:
        """The set that a peer sent, which must be in canonical form: non-empty intervals, growing, apart from each other.

        Reads at most ``limits.MAX_INTERVALS`` + 1 pairs. Raises Corrupt: only one encoding of a set is accepted, else two
        digests could stand for one lineage.
        """
        bounds: list[int] = []
        last = -1
        for count, (lo, hi) in enumerate(pairs, start=1):
            if count > limits.MAX_INTERVALS:
                raise Corrupt(f"more than {limits.MAX_INTERVALS} intervals", code="too_many_intervals")
            if not (type(lo) is int and type(hi) is int and last < lo < hi <= END):
                shown = f"[{lo!r:.40}, {hi!r:.40})"
                raise Corrupt(f"interval {count}, {shown}, is empty, unordered, touching or out of range", code="bad_intervals")
            bounds += (lo, hi)
            last = hi
        return cls(tuple(bounds))

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The intervals, lowest first."""
        return tuple(zip(self.bounds[::2], self.bounds[1::2], strict=True))

    def add(self, number: int) -> IntervalSet:
        """This set with ``number`` in it; itself if it was. Raises InvalidInput outside [0, 2**62)."""
        bounds = self.bounds
        at = bisect_right(bounds, number)
        if at & 1:
            return self
        number = _bound(number)
        if number == END:
            raise InvalidInput(f"{number} is not below 2**62", code="bad_interval")
        joins_left = at > 0 and bounds[at - 1] == number
        joins_right = at < len(bounds) and bounds[at] == number + 1
        head = bounds[: at - 1] if joins_left else (*bounds[:at], number)
        tail = bounds[at + 1 :] if joins_right else (number + 1, *bounds[at:])
        return IntervalSet(head + tail)

    def contains(self, number: int) -> bool:
        """Whether ``number`` is an element."""
        return bisect_right(self.bounds, number) & 1 == 1

    def __contains__(self, number: int) -> bool:
        return bisect_right(self.bounds, number) & 1 == 1

    def __len__(self) -> int:
        return sum(self.bounds[1::2]) - sum(self.bounds[::2])

    def __bool__(self) -> bool:
        return bool(self.bounds)

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(range(lo, hi) for lo, hi in self.pairs())

    def __or__(self, other: IntervalSet) -> IntervalSet:
        a, b = self.bounds, other.bounds
        if not b or a == b:
            return self
        return IntervalSet(_combine(a, b, _OR)) if a else other

    def __and__(self, other: IntervalSet) -> IntervalSet:
        a, b = self.bounds, other.bounds
        if not a or not b or a[-1] <= b[0] or b[-1] <= a[0]:
            return _EMPTY
        if a == b or (len(b) == 2 and b[0] <= a[0] and a[-1] <= b[1]):
            return self
        if len(a) == 2 and a[0] <= b[0] and b[-1] <= a[1]:
            return other
        return IntervalSet(_combine(a, b, _AND))

    def __sub__(self, other: IntervalSet) -> IntervalSet:
        a, b = self.bounds, other.bounds
        if not a or not b or a[-1] <= b[0] or b[-1] <= a[0]:
            return self
        if a == b or (len(b) == 2 and b[0] <= a[0] and a[-1] <= b[1]):
            return _EMPTY
        return IntervalSet(_combine(a, b, _SUB))

    def __repr__(self) -> str:
        return f"IntervalSet.of({', '.join(f'({lo}, {hi})' for lo, hi in self.pairs())})"

    def lowest(self) -> int | None:
        """The smallest element, None if there is none."""
        return self.bounds[0] if self.bounds else None

    def lowest_absent(self) -> int:
        """The smallest number from 0 on that is no element."""
        return self.bounds[1] if self.bounds and self.bounds[0] == 0 else 0

    def highest(self) -> int | None:
        """The greatest element, None if there is none."""
        return self.bounds[-1] - 1 if self.bounds else None

    def nth(self, index: int) -> int | None:
        """The element with exactly ``index`` smaller ones (``nth(0)`` is the lowest); None outside [0, len)."""
        if index < 0:
            return None
        for lo, hi in zip(self.bounds[::2], self.bounds[1::2], strict=True):
            if index < hi - lo:
                return lo + index
            index -= hi - lo
        return None

    def first(self, count: int) -> IntervalSet:
        """The ``count`` lowest elements; all where there are fewer, none where ``count <= 0``."""
        if count <= 0:
            return _EMPTY
        cut = self.nth(count)
        return self if cut is None else self._split(cut)[0]

    def above(self, number: int) -> IntervalSet:
        """The elements strictly greater than ``number``."""
        return self._split(number + 1)[1]

    def below(self, number: int) -> IntervalSet:
        """The elements strictly smaller than ``number``."""
        bounds = self.bounds
        return self if not bounds or bounds[-1] <= number else self._split(number)[0]

    def is_exactly(self, lo: int, hi: int) -> bool:
        """Whether this set is [lo, hi), no more and no less."""
        return self.bounds == ((lo, hi) if lo < hi else ())

    def isdisjoint(self, other: IntervalSet) -> bool:
        """Whether no number is in both sets."""
        return not self & other

    def complement(self, lo: int, hi: int) -> IntervalSet:
        """What of [lo, hi) is not in this set."""
        return IntervalSet.span(lo, hi) - self

    def check(self) -> None:
        """Raises InvariantBroken unless the bounds are canonical."""
        bounds = self.bounds
        grows = all(low < high for low, high in pairwise(bounds))
        if len(bounds) % 2 or not grows or (bounds and not 0 <= bounds[0] < bounds[-1] <= END):
            raise InvariantBroken(f"interval bounds {bounds!r:.200} are not canonical", code="bad_intervals")

    def _split(self, number: int) -> tuple[IntervalSet, IntervalSet]:
        """The elements below ``number`` and those from it on."""
        bounds = self.bounds
        at = bisect_right(bounds, number)
        if not at & 1:
            return IntervalSet(bounds[:at]), IntervalSet(bounds[at:])
        below = bounds[: at - 1] if bounds[at - 1] == number else (*bounds[:at], number)
        return IntervalSet(below), IntervalSet((number, *bounds[at:]))


_EMPTY: Final = IntervalSet()


def _bound(number: int) -> int:
    value = operator.index(number)
    if not 0 <= value <= END:
        raise InvalidInput(f"{value!r:.40} is not in [0, 2**62]", code="bad_interval")
    return value


_OR: Final = "|"
_AND: Final = "&"
_SUB: Final = "-"


def _combine(a: tuple[int, ...], b: tuple[int, ...], operation: str) -> tuple[int, ...]:
    """Only where both have intervals, and these are not the same, is anything worked out: mostly a set is combined with one that is nearly the same, and
    little is added to much, or taken from it.
    """
    alone_a, alone_b = operation != _AND, operation == _OR
    before: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()
    first, end = _reach(a, b)
    if first or end < len(a):
        before, behind, a = a[:first] if alone_a else (), a[end:] if alone_a else (), a[first:end]
    first, end = _reach(b, a) if a else (0, len(b))
    if first or end < len(b):
        if alone_b:
            before, behind = before + b[:first], b[end:] + behind
        b = b[first:end]
    if a and b:
        head = _shared_head(a, b) if a[0] == b[0] else 0
        tail = _shared_tail(a, b, min(len(a), len(b)) - head) if a[-1] == b[-1] else 0
        if head or tail:
            if operation != _SUB:
                before, behind = before + a[:head], a[len(a) - tail :] + behind
            a, b = a[head : len(a) - tail], b[head : len(b) - tail]
    middle = _of_both(a, b, operation) if a and b else (a if alone_a else ()) or (b if alone_b else ())
    return before + middle + behind


def _reach(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, int]:
    """Which bounds of ``a`` are those of the intervals that lie between the lowest and the highest bound of ``b``, or touch them."""
    end = bisect_right(a, b[-1])
    return bisect_left(a, b[0]) & -2, end + (end & 1)


def _shared_head(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """How many bounds from the lowest on are the same, an even number: behind them neither set goes on."""
    low, high = 1, min(len(a), len(b)) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low & -2


def _shared_tail(a: tuple[int, ...], b: tuple[int, ...], most: int) -> int:
    """How many bounds from the highest down are the same, an even number and at most ``most``."""
    low, high = 1, most + 1
    end_a, end_b = len(a), len(b)
    while high - low > 1:
        middle = (low + high) // 2
        if a[end_a - middle : end_a - low] == b[end_b - middle : end_b - low]:
            low = middle
        else:
            high = middle
    return low & -2


def _of_both(a: tuple[int, ...], b: tuple[int, ...], operation: str) -> tuple[int, ...]:
    """Of two sets that are not empty, by the order of where intervals begin and where they end, whoever they belong to.

    Numbers are in neither set from the k-th end until the (k+1)-th beginning, where that is later, and in both from the (k+1)-th beginning until the k-th
    end, where that is. What two canonical sets have in common, or together, cannot touch, so the result is canonical. Two runs that are sorted already
    are merged at a few nanoseconds a number, where a sweep in Python takes a hundred.
    """
    if operation == _SUB:  # what a has in common with all that is not in b
        b = (-1, *b, END + 1)
    begins, ends = sorted(a[::2] + b[::2]), sorted(a[1::2] + b[1::2])
    if operation == _OR:
        gaps = [bound for low, high in zip(ends, begins[1:], strict=False) if low < high for bound in (low, high)]
        return (begins[0], *gaps, ends[-1])
    return tuple([bound for low, high in zip(begins[1:], ends, strict=False) if low < high for bound in (low, high)])
