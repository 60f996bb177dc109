"""One iterative look-up: whom to ask next, when it is finished, who is closest. Pure; it sends nothing.

Contacts are dealt over ``paths`` disjoint paths: each belongs to the path of whoever named it first, and every path must have heard its own
closest contacts, so that one liar on the way cannot lead the whole look-up astray. A request that takes longer than the usual round trip is *stalled*:
its place goes to the next contact while its late answer still counts. Ids are hashes, so contacts crowd around a key only if somebody made them up:
beyond `CROWD` times the usual density they are left out (``spacing``). Bounded: `MAX_ASKED` requests, `MAX_CANDIDATES` contacts, two
contacts per subnet and teller (where ``limit_subnets``).

Ours, after Kademlia (Maymounkov and Mazières 2002) and S/Kademlia (Baumgart and Mies 2007).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from membership.dht_peers import Contact

ALPHA: Final = 4
"""Requests at once while all answer in time."""
MORE_AFTER_STALLS: Final = 8
"""At most so many more at once, one for each stalled request: where many died at once, waves of four would take too long."""
WIDTH: Final = 16
"""The closest contacts that must have answered."""
PATHS: Final = 6
PATH_WIDTH: Final = 3
"""The closest contacts of each path that must have answered."""
ENOUGH: Final = 12
"""With fewer answers than this, stalled requests get `MORE_PATIENCE` times the usual patience before the look-up ends without them."""
MORE_PATIENCE: Final = 3
MAX_ASKED: Final = 160
MAX_CANDIDATES: Final = 640
MAX_CONTACTS_PER_ANSWER: Final = 20
MAX_PER_SUBNET: Final = 2
CROWD: Final = 2
CROWD_SLACK: Final = 4


def usual_spacing(own_id: bytes, nearest: Sequence[Contact]) -> int:
    """The distance between neighbouring ids, judged by the own neighbourhood (``nearest`` to ``own_id``, closest first); 0 if too few are known."""
    if len(nearest) < CROWD_SLACK:
        return 0
    return (nearest[-1].long_id ^ int.from_bytes(own_id)) // len(nearest)


class _State(Enum):
    NEW = 0
    ASKED = 1
    ANSWERED = 2
    FAILED = 3


@dataclass(slots=True)
class _Candidate:
    contact: Contact
    distance: int
    path: int
    state: _State = _State.NEW
    asked_at: float = 0.0


class Lookup:
    """The state of one look-up for ``target``; feed it answers and failures, ask whom it names."""

    def __init__(
        self, target: bytes, seeds: Iterable[Contact], *, own_id: bytes, limit_subnets: bool, spacing: int = 0, paths: int = PATHS
    ) -> None:
        self._target = int.from_bytes(target)
        self._own_id, self._limit_subnets, self._paths = own_id, limit_subnets, paths
        self._spacing = spacing
        self._candidates: dict[bytes, _Candidate] = {}
        self._num_asked = 0
        for index, contact in enumerate(seeds):
            self._add(contact, index % paths)

    def next_asks(self, now: float, patience_s: float) -> list[Contact]:
        """Contacts to ask now: at most as many as there are free places; they count as asked from here on."""
        asked_at = [c.asked_at for c in self._candidates.values() if c.state is _State.ASKED]
        waiting = sum(now - since < patience_s for since in asked_at)
        at_once = ALPHA + min(len(asked_at) - waiting, MORE_AFTER_STALLS)
        free = min(at_once - waiting, MAX_ASKED - self._num_asked)
        if free <= 0:
            return []
        chosen = [c for c in self._wanted(now, patience_s) if c.state is _State.NEW][:free]
        for candidate in chosen:
            candidate.state, candidate.asked_at = _State.ASKED, now
        self._num_asked += len(chosen)
        return [c.contact for c in chosen]

    def answered(self, contact: Contact, named: Iterable[Contact]) -> None:
        """``contact`` answered and named these."""
        candidate = self._candidates[contact.id]
        candidate.state = _State.ANSWERED
        subnets: Counter[str] = Counter()
        for index, other in enumerate(named):
            if index >= MAX_CONTACTS_PER_ANSWER:
                break
            subnets[other.subnet] += 1
            if not self._limit_subnets or subnets[other.subnet] <= MAX_PER_SUBNET:
                self._add(other, candidate.path)

    def failed(self, contact: Contact) -> None:
        """``contact`` did not answer in time, or was not who it was said to be."""
        self._candidates[contact.id].state = _State.FAILED

    def finished(self, now: float, patience_s: float, *, wait_for_stalled: bool) -> bool:
        """True when whoever matters has been heard. With ``wait_for_stalled`` slow ones are waited for until they answer or fail."""
        pending = [c for c in self._candidates.values() if c.state is _State.ASKED]
        if wait_for_stalled and pending:
            return False
        wanted = self._wanted(now, patience_s)
        if self._num_asked < MAX_ASKED and any(c.state is _State.NEW for c in wanted):
            return False
        if any(c.state is _State.ASKED for c in wanted):
            return False
        num_answered = sum(c.state is _State.ANSWERED for c in self._candidates.values())
        if num_answered < ENOUGH and any(now - c.asked_at < MORE_PATIENCE * patience_s for c in pending):
            return False
        return not pending or num_answered > 0

    def closest_answered(self, count: int) -> tuple[list[Contact], list[Contact]]:
        """Those who answered: the ``count`` closest together with the closest of each path that is not among them, and the rest, closest first."""
        ranked = self._ranked([c for c in self._candidates.values() if c.state is _State.ANSWERED])
        seen = {c.path for c in ranked[:count]}
        first: list[Contact] = [c.contact for c in ranked[:count]]
        rest: list[Contact] = []
        for candidate in ranked[count:]:
            (rest if candidate.path in seen else first).append(candidate.contact)
            seen.add(candidate.path)
        return first, rest

    @property
    def num_asked(self) -> int:
        """Contacts asked so far."""
        return self._num_asked

    def _wanted(self, now: float, patience_s: float) -> list[_Candidate]:
        """Those who must be heard, closest first: the closest of all and of each path, leaving out failed and stalled ones."""
        live = [
            c
            for c in self._candidates.values()
            if c.state is not _State.FAILED and not (c.state is _State.ASKED and now - c.asked_at >= patience_s)
        ]
        ranked = self._ranked(live)
        room = [PATH_WIDTH] * self._paths
        wanted = []
        for index, candidate in enumerate(ranked):
            if index < WIDTH or room[candidate.path] > 0:
                wanted.append(candidate)
            room[candidate.path] -= 1
        return wanted

    def _ranked(self, candidates: list[_Candidate]) -> list[_Candidate]:
        """Closest first, without those that crowd."""
        ranked = sorted(candidates, key=lambda c: c.distance)
        if not self._spacing:
            return ranked
        kept: list[_Candidate] = []
        for candidate in ranked:
            if len(kept) < CROWD_SLACK + CROWD * candidate.distance // self._spacing:
                kept.append(candidate)
        return kept

    def _add(self, contact: Contact, path: int) -> None:
        if contact.id == self._own_id or contact.id in self._candidates or len(self._candidates) >= MAX_CANDIDATES:
            return
        self._candidates[contact.id] = _Candidate(contact, contact.long_id ^ self._target, path)
