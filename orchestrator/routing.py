"""The way of a question: which PNode computes which stage, all of one version, to the deepest exit that can be reached. Pure.

Of two candidates drawn at random the less loaded one is taken; the one that computed the stage before is always among them, so a hop is
saved where that is worth it. Where the asked exit cannot be reached the deepest reachable one before it answers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dcnr.errors import InvalidInput
from dcnr.ports import Random
from dcnr.stages import INPUT, Stage
from dcnr.v1 import identity_pb2

UNKNOWN_ROUND_TRIP_S: Final = 0.05
UNKNOWN_COMPUTE_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Candidate:
    """A PNode that can compute a stage now: a seat (``state_digest``) or a live replica (``replica``)."""

    pnode_id: str
    vnode: str
    delegation: identity_pb2.Envelope = field(compare=False)
    state_digest: str = ""
    replica: str = ""
    step: int = 0
    queued: int = 0
    compute_s: float = 0.0
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    """What is known here of PNodes beside their reports."""

    round_trips: Mapping[str, float] = field(default_factory=dict)
    """Seconds, measured by earlier questions."""
    asked: Mapping[str, int] = field(default_factory=dict)
    """Questions of ours that are on their way through them: reports are older."""

    def cost_s(self, item: Candidate, last: str) -> float:
        """Seconds until the stage is computed there, after a stage at ``last``."""
        away_s = 0.0 if item.pnode_id == last else self.round_trips.get(item.pnode_id, UNKNOWN_ROUND_TRIP_S)
        return away_s + (max(item.queued, self.asked.get(item.pnode_id, 0)) + 1) * (item.compute_s or UNKNOWN_COMPUTE_S)


@dataclass(frozen=True, slots=True)
class Table:
    """Who can compute what of one version; ``manifest_digest`` is empty for live weights."""

    manifest_digest: str
    stages: tuple[Stage, ...]
    candidates: Mapping[str, Sequence[Candidate]]

    def requires(self, exit_: str) -> tuple[str, ...]:
        """The stages that lead to an exit, it included, in topological order. Raises InvalidInput (``no_such_exit``)."""
        by_id = {stage.id: stage for stage in self.stages}
        if exit_ not in by_id:
            raise InvalidInput(f"there is no exit {exit_!r}; there are {', '.join(by_id)}", code="no_such_exit")
        needed, open_ = {exit_}, [exit_]
        while open_:
            for item in by_id[open_.pop()].inputs:
                if item.id != INPUT and item.id not in needed:
                    needed.add(item.id)
                    open_.append(item.id)
        return tuple(stage.id for stage in self.stages if stage.id in needed)


@dataclass(frozen=True, slots=True)
class Way:
    """Stages in topological order, each with who computes it; ``missing`` names the first stage that kept a deeper exit out of reach."""

    table: Table
    hops: tuple[Candidate, ...]
    missing: str = ""

    @property
    def exit(self) -> str:
        """Whose readout it ends with."""
        return self.hops[-1].vnode

    @property
    def pnodes(self) -> frozenset[str]:
        """All that take part."""
        return frozenset(hop.pnode_id for hop in self.hops)

    def expected_s(self, load: Load) -> float:
        """Queues, computing and hops, as far as they are known."""
        return sum(load.cost_s(hop, self.hops[number - 1].pnode_id if number else "") for number, hop in enumerate(self.hops))


@dataclass(frozen=True, slots=True)
class Avoid:
    """Whom a way keeps away from."""

    banned: Collection[str] = ()
    """PNodes that are not used at all."""
    owners: Collection[str] = ()
    """Owners none of whose PNodes is used."""
    faults: Mapping[str, int] = field(default_factory=dict)
    """How often a PNode disappointed: those of fewest faults are taken,"""
    kept: Sequence[Collection[str]] = ()
    """and of these the ones of the first that has any: connections between them are open, and to open one takes many round trips."""


def find_way(tables: Sequence[Table], exit_: str, rng: Random, load: Load, avoid: Avoid | None = None) -> Way | None:
    """The way that reaches deepest; of equals one of the earliest table. ``exit_`` empty: the deepest of each table. None: nobody is there.

    Raises InvalidInput where no table has that exit.
    """
    shun = avoid or Avoid()
    known = [table for table in tables if not exit_ or any(stage.id == exit_ for stage in table.stages)]
    if tables and not known:
        tables[0].requires(exit_)
    best: tuple[int, Table, tuple[str, ...], str] | None = None
    for table in known:
        reached, missing = _reach(table, exit_ or table.stages[-1].id, shun)
        lost = len(table.requires(exit_ or table.stages[-1].id)) - len(reached)
        if reached and (best is None or lost < best[0]):
            best = (lost, table, reached, missing)
    if best is None:
        return None
    _, table, reached, missing = best
    hops: list[Candidate] = []
    for vnode in reached:
        hops.append(_pick(_able(table, vnode, shun), hops[-1].pnode_id if hops else "", rng, load, shun))
    return Way(table, tuple(hops), missing)


def _reach(table: Table, exit_: str, shun: Avoid) -> tuple[tuple[str, ...], str]:
    """The stages that lead to the deepest reachable exit at or before ``exit_``, and the first stage of the whole way that nobody computes."""
    needed = table.requires(exit_)
    served = {vnode for vnode in needed if _able(table, vnode, shun)}
    missing = next((vnode for vnode in needed if vnode not in served), "")
    for vnode in reversed(needed):
        way = table.requires(vnode)
        if served.issuperset(way):
            return way, missing
    return (), missing


def _able(table: Table, vnode: str, shun: Avoid) -> list[Candidate]:
    return [item for item in table.candidates.get(vnode, ()) if item.pnode_id not in shun.banned and item.owner not in shun.owners]


def _pick(able: list[Candidate], last: str, rng: Random, load: Load, shun: Avoid) -> Candidate:
    fewest = min(shun.faults.get(item.pnode_id, 0) for item in able)
    able = sorted(
        (item for item in able if shun.faults.get(item.pnode_id, 0) == fewest), key=lambda item: (item.pnode_id, item.replica)
    )
    able = next((some for kept in shun.kept if (some := [item for item in able if item.pnode_id in kept])), able)
    here = [item for item in able if item.pnode_id == last]
    others = [item for item in able if item.pnode_id != last]
    drawn = here[:1] + rng.sample(others, min(len(others), 2 - len(here[:1])))
    return min(drawn, key=lambda item: (load.cost_s(item, last), item.pnode_id))
