"""Who serves which VNode, and of which manifest: a whole model by as few PNodes as it takes, then once more by others. Pure.

Two seats per VNode: with one of them gone every question still has a way at once, and a new seat is loaded within seconds; a third would cost a third
of the memory and of every change of version, for the case that both go within those seconds. What serves goes on serving: a seat moves only when its
PNode cannot keep it. Seats live in memory that training leaves free, so PNodes that train less come first.

A version of the weights is taken at most every `TAKE_S`, and at once when no job makes newer ones. Until each VNode of it has a seat that is ready,
and for `OVERLAP_S` after that, the version before goes on answering.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dcnr.stages import Stage
from vnode.costs import seat_bytes

COPIES: Final = 2
"""Seats of each VNode."""
MAX_SEATS: Final = 32
"""Of one PNode: it reports at most 64, and may hold two versions of each for a while."""
MAX_CANDIDATES: Final = 256
"""PNodes that are looked at for new seats, the idlest and largest first."""
TAKE_S: Final = 30.0
"""Newer weights are taken at most this often while a job makes them."""
STUCK_S: Final = 120.0
"""A version that does not become whole in this time is given up for a newer one: its states may be gone from the store."""
OVERLAP_S: Final = 5.0
"""How long two whole versions answer: questions on their way and orchestrators that hear of the new one later are not lost."""


@dataclass(frozen=True, slots=True)
class SeatCost:
    """A VNode and the memory of one seat of it."""

    vnode: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Host:
    """A PNode that may serve. ``seats``: VNodes of this model that it serves now, or was asked to; ``refused``: those that it was asked for in vain."""

    node_id: str
    free_bytes: int
    owner: str = ""
    num_trained: int = 0
    seats: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Served:
    """Which manifest is asked for; ``previous`` is the last whole one, while it is still to answer."""

    manifest_digest: str
    taken_at: float
    previous: str = ""
    whole_since: float | None = None


def seat_costs(stages: Sequence[Stage], batch_size: int) -> tuple[SeatCost, ...]:
    """In topological order, for questions of at most ``batch_size`` samples."""
    return tuple(SeatCost(stage.id, seat_bytes(stage, batch_size)) for stage in stages)


def next_served(served: Served | None, newest: str, now: float, *, is_whole: bool, is_final: bool) -> Served:
    """What to ask for now. ``is_whole``: every VNode has a ready seat of what is asked for; ``is_final``: no job makes newer weights."""
    if served is None:
        return Served(newest, now)
    since = (now if served.whole_since is None else served.whole_since) if is_whole else None
    if newest != served.manifest_digest:
        waited_s = now - served.taken_at
        if is_final or waited_s >= (TAKE_S if is_whole else STUCK_S):
            return Served(newest, now, served.manifest_digest if is_whole else served.previous)
    over = since is not None and now - since >= OVERLAP_S
    return replace(served, whole_since=since, previous="" if over else served.previous)


def seating(costs: Sequence[SeatCost], hosts: Iterable[Host], copies: int = COPIES) -> dict[str, tuple[str, ...]]:
    """By PNode: its VNodes, sorted. The same input gives the same answer, and the answer put into ``seats`` gives itself."""
    hall = _Hall(costs, hosts)
    hall.keep(copies)
    for copy in range(1, copies + 1):
        hall.fill(copy)
    return hall.given()


def seating_kept(costs: Sequence[SeatCost], serving: Iterable[Host], copies: int = COPIES) -> dict[str, tuple[str, ...]] | None:
    """What `seating` gives, whoever else there is, where those that serve keep every seat; None where they do not."""
    hall = _Hall(costs, serving)
    hall.keep(copies)
    return hall.given() if hall.is_full(copies) else None


class _Hall:
    """The seats while they are given away."""

    def __init__(self, costs: Sequence[SeatCost], hosts: Iterable[Host]) -> None:
        self._order = [cost.vnode for cost in costs]
        self._cost = {cost.vnode: cost.memory_bytes for cost in costs}
        everybody = sorted(hosts, key=lambda host: (not host.seats, host.num_trained > 0, -host.free_bytes, host.node_id))
        serving = sum(bool(host.seats) for host in everybody)
        self._hosts = {host.node_id: host for host in everybody[: serving + MAX_CANDIDATES]}
        self._free = {name: host.free_bytes for name, host in self._hosts.items()}
        self.taken: dict[str, set[str]] = {name: set() for name in self._hosts}
        self._count: Counter[str] = Counter()

    def keep(self, copies: int) -> None:
        """What is served and still fits; of more seats than wanted, those of PNodes that train most, then that serve least, go."""
        for name, host in self._hosts.items():
            for vnode in self._order:
                if vnode in host.seats and self._has_room(name, vnode):
                    self._give(name, vnode)
        for vnode in self._order:
            while self._count[vnode] > copies:
                holders = [name for name, taken in self.taken.items() if vnode in taken]
                self._drop(max(holders, key=lambda name: (self._hosts[name].num_trained, -len(self.taken[name]), name)), vnode)

    def is_full(self, copies: int) -> bool:
        """Whether no seat is lacking."""
        return all(self._count[vnode] >= copies for vnode in self._order)

    def given(self) -> dict[str, tuple[str, ...]]:
        """By PNode: its VNodes, sorted."""
        return {name: tuple(sorted(taken)) for name, taken in sorted(self.taken.items()) if taken}

    def fill(self, copy: int) -> None:
        """Every VNode that has fewer seats gets one more, where anybody has room."""
        lacking = [vnode for vnode in self._order if self._count[vnode] < copy]
        last = ""
        for place, vnode in enumerate(lacking):
            if not self._can_take(last, vnode) or vnode in self._hosts[last].refused:
                last = self._best(lacking[place:])
            if not last and copy == 1:
                last = self._cleared_for(vnode)
            if last:
                self._give(last, vnode)

    def _best(self, run: Sequence[str]) -> str:
        """Who takes the most of ``run`` from its beginning on; of equals who serves already, trains less, has more room; last an owner of another seat, and
        after all others who was asked for it in vain."""
        owners = {self._hosts[name].owner for name, taken in self.taken.items() if run[0] in taken} - {""}
        able = [name for name in self._hosts if self._can_take(name, run[0])]
        if not able:
            return ""

        def merit(name: str) -> tuple[bool, bool, int, bool, int, int, str]:
            host = self._hosts[name]
            return (
                run[0] in host.refused,
                host.owner in owners,
                -self._reach(name, run),
                not self.taken[name],
                host.num_trained,
                -self._free[name],
                name,
            )

        return min(able, key=merit)

    def _reach(self, name: str, run: Sequence[str]) -> int:
        """How many VNodes of ``run`` from its beginning on fit."""
        free, room = self._free[name], MAX_SEATS - len(self.taken[name])
        for number, vnode in enumerate(run):
            free -= self._cost[vnode]
            if free < 0 or number >= room or vnode in self.taken[name] or (number and vnode in self._hosts[name].refused):
                return number
        return len(run)

    def _cleared_for(self, vnode: str) -> str:
        """A PNode on which second seats of other VNodes make room for the first one of this."""
        for name in self._hosts:
            spare = [other for other in self._order if other in self.taken[name] and self._count[other] > 1]
            if self._free[name] + sum(self._cost[other] for other in spare) < self._cost[vnode]:
                continue
            for other in spare:
                if self._has_room(name, vnode):
                    break
                self._drop(name, other)
            if self._has_room(name, vnode):
                return name
        return ""

    def _can_take(self, name: str, vnode: str) -> bool:
        return bool(name) and vnode not in self.taken[name] and self._has_room(name, vnode)

    def _has_room(self, name: str, vnode: str) -> bool:
        return self._free[name] >= self._cost[vnode] and len(self.taken[name]) < MAX_SEATS

    def _give(self, name: str, vnode: str) -> None:
        self.taken[name].add(vnode)
        self._free[name] -= self._cost[vnode]
        self._count[vnode] += 1

    def _drop(self, name: str, vnode: str) -> None:
        self.taken[name].discard(vnode)
        self._free[name] += self._cost[vnode]
        self._count[vnode] -= 1


def is_whole(costs: Sequence[SeatCost], ready: Mapping[str, int]) -> bool:
    """Whether each VNode has a ready seat; ``ready``: how many, by VNode."""
    return all(ready.get(cost.vnode, 0) > 0 for cost in costs)
