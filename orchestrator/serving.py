"""Keeps a model answering: while this process holds the head it asks PNodes to serve, by `orchestrator.seating`, also when no job runs any more.

Nothing of it is decided by a head write and nothing is kept: wishes are advice, and what PNodes report is all that a new holder needs to go on.
Every orchestrator reads the versions that are served, so that each of them can bring questions. What is asked for is the manifest that maintainers released;
where they released none, the newest that training brought.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from dcnr.v1 import orchestrator_pb2
from orchestrator.builds import lacks
from orchestrator.inventory import Inventory
from orchestrator.mailbox import Mailbox
from orchestrator.offers import PLACEABLE, USABLE
from orchestrator.releases import ReleaseBook
from orchestrator.seating import Host, SeatCost, Served, is_whole, next_served, seat_costs, seating, seating_kept
from orchestrator.silence import NodeRecord
from orchestrator.versions import Version, Versions
from orchestrator.view import ModelView

ROUND_S: Final = 0.5
SPARING: Final = 20.0
"""Rounds take a twentieth of the time at most, however many PNodes there are."""
REPEAT_S: Final = 4.0
"""A wish that a PNode does not report to follow is said again after this time; others, for restarted workers, are not needed."""
MAX_REPORTED: Final = 8
"""Versions that are read because PNodes report seats of them; those of most PNodes first."""
REFUSED_S: Final = 60.0
"""A seat that is not ready so long after it was wished, though another PNode has one of the same VNode ready, is wished elsewhere,"""
REFUSED_FOR_S: Final = 300.0
"""and there for so long only where nobody else has room."""

NO_SEATS: Final[frozenset[str]] = frozenset()

Wish = orchestrator_pb2.SeatWish


class Serving:
    """One per model. ``versions`` are those that may answer, ``releases`` what maintainers said of them."""

    def __init__(
        self, model: str, *, versions: Versions, releases: ReleaseBook, inventory: Inventory, mailbox: Mailbox, now: Callable[[], float],
        view: Callable[[], ModelView | None], is_holder: Callable[[], bool], tell: Callable[[str, str], object],
    ) -> None:  # fmt: skip
        self._model, self.versions, self._inventory, self._mailbox, self._now = model, versions, inventory, mailbox, now
        self._releases = releases
        self._view, self._is_holder, self._tell = view, is_holder, tell
        self._served: Served | None = None
        self._wishes: dict[str, Wish] = {}
        self._said_at: dict[str, float] = {}
        self._lacking_since: dict[tuple[str, str], float] = {}
        self._refused: dict[tuple[str, str], float] = {}
        self._told = ""
        self._unreadable = 0
        """Number of the release of which that was told last."""

    async def run(self) -> None:
        """Rounds until cancelled."""
        while True:
            view, began = self._view(), self._now()
            if view is not None:
                await self.round(view)
            await asyncio.sleep(max(ROUND_S, SPARING * (self._now() - began)))

    def following(self, newest: str) -> str:
        """Digest of the manifest that is to answer, where ``newest`` is what training brought; empty: none, or what was released is not known yet."""
        released = self._releases.in_force
        return "" if released is None else released or newest

    async def round(self, view: ModelView) -> None:
        """Reads what is served, and asks for what should be."""
        now, reported = self._now(), self._reported()
        wanted = [self._served.manifest_digest] if self._served is not None else []
        await self.versions.read([*wanted, *reported, self.following(view.head.manifest_digest)], view, now)
        if not self._is_holder():
            self._served = None
            self._forget()
            return
        self._choose(view, reported, now)
        version = self.versions.get(self._served.manifest_digest) if self._served is not None else None
        if self._served is not None and version is not None:
            self._seat(version, self._served, now)

    def _reported(self) -> list[str]:
        """Manifests of which PNodes report ready seats, those of most seats first."""
        count = Counter(seat.manifest_digest for _, seat in self._seats() if seat.ready)
        return sorted(count, key=lambda digest: (-count[digest], digest))[:MAX_REPORTED]

    def _seats(self) -> Iterator[tuple[NodeRecord, orchestrator_pb2.SeatReport]]:
        for record in self._inventory.seated():
            if record.streams > 0:
                for seat in record.beat.seats:
                    if seat.model == self._model:
                        yield record, seat

    def _choose(self, view: ModelView, reported: list[str], now: float) -> None:
        """Which version is asked for."""
        newest = self.following(view.head.manifest_digest)
        if self._served is None:
            known = next((digest for digest in reported if self.versions.get(digest) is not None), "")
            if known:
                self._served = Served(known, now)
        candidate = newest if self.versions.get(newest) is not None else ""
        self._tell_unreadable()
        if self._served is None and not candidate:
            return
        current = self.versions.get(self._served.manifest_digest) if self._served is not None else None
        whole = current is not None and is_whole(seat_costs(current.stages, current.batch_size), self._ready(current))
        following = candidate or (self._served.manifest_digest if self._served is not None else "")
        is_final = bool(self._releases.in_force) or not view.head.active.job_id
        self._served = next_served(self._served, following, now, is_whole=whole, is_final=is_final)
        if whole and current is not None and self._told != current.manifest_digest == self._served.manifest_digest:
            self._told = current.manifest_digest
            self._tell("serving", f"manifest {current.number} answers questions: every VNode of it has a seat")

    def _tell_unreadable(self) -> None:
        """That what was released cannot be read is told once; what answers goes on answering."""
        said = self._releases.newest
        why = self.versions.why_not(said.release.manifest_digest) if said is not None else ""
        if said is not None and why and self._unreadable != said.release.number:
            self._unreadable = said.release.number
            self._tell("release_unreadable", f"release {said.release.number} cannot be served, what answers goes on: {why}")

    def _ready(self, version: Version) -> Counter[str]:
        """Ready seats of a version by VNode."""
        return Counter(seat.vnode for _, seat in self._seats() if seat.ready and version.serves(seat.vnode, seat.state_digest))

    def _seat(self, version: Version, served: Served, now: float) -> None:
        """Brings what is wished up to date and says it where it is not followed."""
        costs = seat_costs(version.stages, version.batch_size)
        found, ready = self._found(version, costs, now), self._ready(version)
        said = self._releases.newest
        release = said.envelope if said is not None and said.release.manifest_digest == version.manifest_digest else None
        for node_id in {*found, *self._wishes, *(record.node_id for record, _ in self._seats())}:
            wish = Wish(
                model=self._model, manifest_digest=version.manifest_digest, vnodes=found.get(node_id, ()), cleared=version.is_cleared,
                previous_manifest_digest=served.previous, job_id=version.job.request.job_id, request_digest=version.job.request_digest,
                release=release,
            )  # fmt: skip
            changed, self._wishes[node_id] = self._wishes.get(node_id) != wish, wish
            due = now - self._said_at.get(node_id, -REPEAT_S) >= REPEAT_S and not self._follows(node_id, wish, version, now, ready)
            if (changed or due) and self._mailbox.send(node_id, orchestrator_pb2.OrchestratorMessage(seats=wish)):
                self._said_at[node_id] = now
        for node_id in [name for name, wish in self._wishes.items() if not wish.vnodes and name not in self._inventory.nodes()]:
            del self._wishes[node_id]
            self._said_at.pop(node_id, None)
        self._lacking_since = {key: since for key, since in self._lacking_since.items() if key[1] in found.get(key[0], ())}

    def _found(self, version: Version, costs: tuple[SeatCost, ...], now: float) -> dict[str, tuple[str, ...]]:
        """Who is to serve what. Everybody is looked at only where those that serve, or were asked to, do not have every seat."""
        nodes = self._inventory.nodes()
        asked = {name for name, wish in self._wishes.items() if wish.vnodes and name in nodes}
        serving = asked | {record.node_id for record, _ in self._seats()}
        kept = seating_kept(costs, self._hosts(version, costs, [nodes[name] for name in serving], now))
        return kept if kept is not None else seating(costs, self._hosts(version, costs, nodes.values(), now))

    def _follows(self, node_id: str, wish: Wish, version: Version, now: float, ready_seats: Mapping[str, int]) -> bool:
        """Whether the PNode reports ready what is wished, and nothing else of this model; what stays unready where others get ready is wished elsewhere."""
        record = self._inventory.nodes().get(node_id)
        reports = [seat for seat in record.beat.seats if seat.model == self._model] if record is not None else []
        ready = {seat.vnode for seat in reports if seat.ready and version.serves(seat.vnode, seat.state_digest)}
        for vnode in wish.vnodes:
            key = (node_id, vnode)
            if vnode in ready:
                self._lacking_since.pop(key, None)
                self._refused.pop(key, None)
            elif now - self._lacking_since.setdefault(key, now) >= REFUSED_S and ready_seats.get(vnode, 0) > 0:
                self._refused[key] = now
                del self._lacking_since[key]
        return ready == set(wish.vnodes) == {seat.vnode for seat in reports}

    def _hosts(self, version: Version, costs: tuple[SeatCost, ...], nodes: Iterable[NodeRecord], now: float) -> list[Host]:
        names = frozenset(cost.vnode for cost in costs)
        self._refused = {key: when for key, when in self._refused.items() if now - when < REFUSED_FOR_S}
        refused: dict[str, set[str]] = {}
        for node_id, name in self._refused:
            refused.setdefault(node_id, set()).add(name)
        hosts: list[Host] = []
        for record in nodes:
            wish = self._wishes.get(record.node_id)
            if not may_serve(record) and not (wish is not None and wish.vnodes and record.judgement.state in USABLE):
                continue
            if lacks(record.builds, version.job.needs):
                continue
            kept, vain = self._kept(record, wish, names), refused.get(record.node_id, NO_SEATS)
            num_trained = len(record.beat.replicas)
            hosts.append(Host(record.node_id, int(record.beat.free_memory_bytes), record.owner, num_trained, kept, frozenset(vain)))
        return hosts

    def _kept(self, record: NodeRecord, wish: Wish | None, names: frozenset[str]) -> frozenset[str]:
        """What a PNode was asked to serve, or says that it does, and does not refuse; of thousands nearly all serve nothing."""
        if wish is not None:
            seats = set(wish.vnodes) if wish.vnodes else NO_SEATS
        else:
            seats = {seat.vnode for seat in record.beat.seats if seat.model == self._model} if record.beat.seats else NO_SEATS
        return frozenset(name for name in seats & names if (record.node_id, name) not in self._refused) if seats else NO_SEATS

    def _forget(self) -> None:
        self._wishes.clear()
        self._said_at.clear()
        self._lacking_since.clear()
        self._refused.clear()


def may_serve(record: NodeRecord) -> bool:
    """Whether a PNode answers questions: attached here, with a worker, and neither leaving, nor paused, nor barred."""
    return (
        record.streams > 0
        and record.beat.worker_alive
        and not record.beat.draining
        and record.capability.accepts_work
        and record.judgement.state in PLACEABLE
    )
