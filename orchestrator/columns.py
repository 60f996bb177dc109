"""The nodes of a board as columns of numbers: a search looks at all of them in a few array operations, whatever they lend, host or are busy with. Pure.

Rows stand in the order of node ids. The figures are those of `orchestrator.board.Load`, to the last bit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from orchestrator.costs import MAX_CORRECTION, StageCost
from orchestrator.offers import ExpectedPace

if TYPE_CHECKING:
    from orchestrator.loads import Load

Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]
_COLUMNS: Final = (
    "takes", "free_bytes", "free_disk_bytes", "unspooled_bytes", "hosted", "seconds", "slowness", "doubt", "young", "place",
    "reluctance", "unmeasured", "pace", "guessed", "device",
)  # fmt: skip


class Columns:
    """Of ``loads``, in the order of their ids. `note` after a load changed, `enter` after its offer did."""

    def __init__(self, loads: Sequence[Load], max_hosted: int) -> None:
        count = len(loads)
        self._max_hosted = max_hosted
        self.loads = list(loads)
        self.takes: Mask = np.zeros(count, np.bool_)
        """Whether it takes anything new, and hosts fewer than the most."""
        self.free_bytes: NDArray[np.int64] = np.zeros(count, np.int64)
        self.free_disk_bytes: NDArray[np.int64] = np.zeros(count, np.int64)
        self.unspooled_bytes: NDArray[np.int64] = np.zeros(count, np.int64)
        """Free disk once one more spool is taken off."""
        self.hosted: NDArray[np.int64] = np.zeros(count, np.int64)
        self.seconds: Floats = np.zeros(count)
        self.slowness: Floats = np.ones(count)
        self.doubt: Floats = np.ones(count)
        self.reluctance: Floats = np.ones(count)
        self.unmeasured: Floats = np.ones(count)
        """Seconds per FLOP as predicted, without any correction."""
        self.pace: Floats = np.ones(count)
        self.guessed: Floats = np.zeros(count)
        """How far from the median of its class towards its 95th percentile it is taken to be."""
        self.device: NDArray[np.int64] = np.zeros(count, np.int64)
        """A number for each device class."""
        self._devices: dict[str, int] = {}
        self.young: Mask = np.zeros(count, np.bool_)
        self.place: NDArray[np.int64] = np.zeros(count, np.int64)
        """A number for each subnet."""
        self._places: dict[str, int] = {}
        self._by_owner: dict[str, set[Load]] = {}
        self._by_subnet: dict[str, set[Load]] = {}
        self._measuring: dict[str, set[Load]] = {}
        """By VNode: nodes that say how long a step of it takes them."""
        self._refusing: dict[str, set[Load]] = {}
        for row, load in enumerate(self.loads):
            load.row = row
            self.enter(load)

    # Changes

    def enter(self, load: Load) -> None:
        """What a node offers, the first time or anew after `leave`."""
        row = load.row
        self.slowness[row], self.doubt[row], self.young[row] = load.slowness, load.doubt, load.is_young
        track = load.offer.track
        self.reluctance[row], self.pace[row] = load.reluctance, track.pace
        self.guessed[row] = 0.0 if track.is_timed else 1.0 - track.score
        self.unmeasured[row] = load.slowness / load.correction
        self.device[row] = self._devices.setdefault(load.offer.device_class, len(self._devices))
        self.place[row] = self._places.setdefault(load.offer.subnet, len(self._places))
        for index, names in self._indices(load):
            for name in names:
                index.setdefault(name, set()).add(load)
        self.note(load)

    def leave(self, load: Load) -> None:
        """Forgets what a node offers, before that changes."""
        for index, names in self._indices(load):
            for name in names:
                index[name].discard(load)

    def note(self, load: Load) -> None:
        """What it has left, and has to do, now."""
        row = load.row
        self.takes[row] = load.is_open and load.hosted < load.most(self._max_hosted)
        self.free_bytes[row], self.free_disk_bytes[row] = load.free_bytes, load.free_disk_bytes
        self.unspooled_bytes[row] = load.free_disk_bytes - load.spool_bytes
        self.hosted[row], self.seconds[row] = load.hosted, load.seconds

    def insert(self, load: Load) -> None:
        """A node more."""
        row = bisect_left(self.loads, load.offer.node_id, key=lambda one: one.offer.node_id)
        self.loads.insert(row, load)
        for name in _COLUMNS:
            setattr(self, name, np.insert(getattr(self, name), row, 0))
        self._number(row)
        self.enter(load)

    def remove(self, load: Load) -> None:
        """A node less."""
        self.leave(load)
        del self.loads[load.row]
        for name in _COLUMNS:
            setattr(self, name, np.delete(getattr(self, name), load.row))
        self._number(load.row)

    # Questions

    def fitting(self, vnode: str, memory_bytes: int, states_bytes: int, frame_bytes: int) -> Mask:
        """Who takes something new, does not refuse this VNode, and has room for so much memory, for states, and for a spool of a frame at least."""
        fits = self.free_bytes >= memory_bytes
        fits &= self.unspooled_bytes >= states_bytes
        fits &= self.free_disk_bytes >= states_bytes + frame_bytes
        fits &= self.takes
        for load in self._refusing.get(vnode, ()):
            fits[load.row] = False
        return fits

    def crowded(self, ids_per_subnet: int) -> Mask:
        """Nodes that host nothing while enough others of their subnet do."""
        using = np.bincount(self.place[self.hosted > 0], minlength=len(self._places))
        crowded: Mask = (self.hosted == 0) & (using[self.place] >= ids_per_subnet)
        return crowded

    def measuring(self, vnode: str) -> Iterable[Load]:
        """Nodes for which a measurement of that VNode counts instead."""
        return self._measuring.get(vnode, ())

    def expected_s(self, cost: StageCost, expected: Mapping[tuple[str, str], ExpectedPace]) -> Floats:
        """Seconds per batch of a stage where nothing was measured: as others of the device class have it, else as predicted and corrected.

        Who was timed on other stages of its class is taken for the median, times its own pace: how slow it is counts once. Of the others one with a good
        record is taken for the median, one without any for what 95 of 100 machines keep.
        """
        step_s: Floats = cost.step_flops * self.slowness
        for name, number in self._devices.items():
            known = expected.get((cost.component, name))
            if known is None:
                continue
            gflop_s = self.pace * (known.p50 + self.guessed * (known.p95 - known.p50))
            predicted_s = cost.step_flops * self.unmeasured
            bounded_s = np.clip(cost.step_flops * 1e-9 * gflop_s, predicted_s / MAX_CORRECTION, predicted_s * MAX_CORRECTION)
            step_s = np.where(self.device == number, bounded_s, step_s)
        return step_s

    def nearness(self, owners: Iterable[str], subnets: Iterable[str]) -> NDArray[np.int8]:
        """2 for whoever has one of these owners, and 1 more for whoever is in one of these subnets."""
        near = np.zeros(len(self.loads), np.int8)
        for index, names, weight in ((self._by_owner, owners, 2), (self._by_subnet, subnets, 1)):
            rows = [load.row for name in names for load in index.get(name, ())]
            if rows:
                near[rows] += weight
        return near

    def slowest(self) -> Load | None:
        """Who takes longest of those that host anything."""
        if not self.loads:
            return None
        load = self.loads[int(np.argmax(np.where(self.hosted > 0, self.seconds, -1.0)))]
        return load if load.hosted else None

    def check(self) -> None:
        """Asserts that the columns say what the loads say."""
        fresh = Columns(self.loads, self._max_hosted)
        assert all(
            np.array_equal(getattr(self, name), getattr(fresh, name)) for name in _COLUMNS if name not in ("place", "device")
        )
        assert all(self.device[load.row] == self._devices[load.offer.device_class] for load in self.loads)
        assert all(self.place[load.row] == self._places[load.offer.subnet] for load in self.loads)
        for mine, theirs in zip(self._all_indices(), fresh._all_indices(), strict=True):
            assert {name: rows for name, rows in mine.items() if rows} == theirs

    # Inside

    def _number(self, first: int) -> None:
        for row in range(first, len(self.loads)):
            self.loads[row].row = row

    def _all_indices(self) -> tuple[dict[str, set[Load]], ...]:
        return self._by_owner, self._by_subnet, self._measuring, self._refusing

    def _indices(self, load: Load) -> Iterable[tuple[dict[str, set[Load]], Iterable[Any]]]:
        offer = load.offer
        owners, subnets = ([offer.owner] if offer.owner else ()), ([offer.subnet] if offer.subnet else ())
        return zip(self._all_indices(), (owners, subnets, offer.measured, offer.refused), strict=True)
