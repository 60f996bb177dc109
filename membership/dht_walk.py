"""Look-ups and stores over a `Transport` of single requests: asked in parallel, never held up by one silent peer, always ended by a deadline.

No socket here: the transport sends a request and says when it failed (at most `dcnr.limits.DHT_REQUEST_TIMEOUT_S` later). Requests that outlive
the look-up that made them still teach the transport who is alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from dcnr.limits import MAX_DHT_RECORD_BYTES
from dcnr.ports import Clock
from membership.dht_lookup import MORE_PATIENCE, WIDTH, Lookup, usual_spacing
from membership.dht_peers import Contact
from membership.directory import VerifiedRecord, Verify

LOOKUP_TIMEOUT_S: Final = 3.0
STORE_TIMEOUT_S: Final = 1.5
REPLICATION: Final = 12
"""Peers that should keep a record: at half of them dead at once, one record in four thousand is lost until it is republished."""
READ_QUORUM: Final = 3
"""Keepers that must show a record before a look-up ends early."""
MAX_REPAIRS: Final = 3

Reply = tuple[bool, object]


class Transport(Protocol):
    """Single requests to single peers. Futures never raise: (True, answer) or (False, None)."""

    @property
    def patience_s(self) -> float:
        """When a request counts as stalled."""
        ...

    def request(self, contact: Contact, method: str, *args: object) -> asyncio.Future[Reply]:
        """Sends one request."""
        ...

    def is_bound(self, contact: Contact) -> bool:
        """True if this address has echoed this id to us."""
        ...

    def contacts_in(self, answer: object, teller: Contact) -> list[Contact]:
        """The acceptable contacts, not known to be dead, that an answer names."""
        ...

    def nearest(self, target: bytes, count: int) -> list[Contact]:
        """Known living contacts, closest first."""
        ...


@dataclass(slots=True)
class Found:
    """What a look-up for a value brought."""

    answers: list[tuple[VerifiedRecord, bytes]] = field(default_factory=list)
    holders: list[tuple[Contact, bytes]] = field(default_factory=list)
    without: list[Contact] = field(default_factory=list)
    num_bad: int = 0


class Walker:
    """Walks the network for one node."""

    def __init__(self, transport: Transport, own_id: bytes, *, clock: Clock, verify: Verify, limit_subnets: bool) -> None:
        self._transport, self._own_id, self._clock, self._verify = transport, own_id, clock, verify
        self._limit_subnets = limit_subnets

    async def closest(self, target: bytes, seeds: Sequence[Contact] = ()) -> tuple[list[Contact], list[Contact]]:
        """Living contacts around ``target`` who have answered: the keepers to be (`REPLICATION` and each path's own closest), and further ones."""
        lookup = self._lookup(target, seeds)
        await self._walk(lookup, target, "find_node", lambda _contact, _answer: False, lambda: False)
        return lookup.closest_answered(REPLICATION)

    async def find(self, key: bytes) -> Found:
        """Valid records under ``key``; ends early once `READ_QUORUM` peers have shown one."""
        found = Found()
        known: dict[bytes, VerifiedRecord | None] = {}
        now_wall = self._clock.wall()

        def on_answer(contact: Contact, answer: object) -> bool:
            record = answer.get("value") if isinstance(answer, dict) else None
            if not isinstance(record, bytes) or not 0 < len(record) <= MAX_DHT_RECORD_BYTES:
                found.num_bad += isinstance(answer, dict)
                found.without.append(contact)
                return False
            if record not in known:
                facts = self._verify(key, record, now_wall)
                known[record] = facts if facts and facts.key == key and facts.expires_wall > now_wall else None
            facts = known[record]
            if facts is None:
                found.num_bad += 1
                found.without.append(contact)
            else:
                found.answers.append((facts, record))
                found.holders.append((contact, record))
            return len(found.answers) >= READ_QUORUM

        await self._walk(self._lookup(key, ()), key, "find_value", on_answer, lambda: not found.answers)
        return found

    async def store(self, key: bytes, record: bytes, keepers: Sequence[Contact], further: Sequence[Contact]) -> int:
        """Number of peers that said they keep the record, aiming at all of ``keepers``; ``further`` ones replace those that are dead or refuse."""
        deadline = self._clock.monotonic() + STORE_TIMEOUT_S
        running: dict[asyncio.Future[Reply], float] = {}
        rest, acks, want = [*keepers, *further], 0, len(keepers)
        while True:
            now, patience = self._clock.monotonic(), self._transport.patience_s
            hopeful = sum(1 for since in running.values() if now - since < patience)
            while rest and acks + hopeful < want:
                running[self._transport.request(rest.pop(0), "store", self._own_id, key, record)] = now
                hopeful += 1
            worth_waiting = any(now - since < MORE_PATIENCE * patience for since in running.values())
            if not running or acks >= want or now >= deadline or (acks > 0 and not worth_waiting):
                return acks
            await asyncio.wait(running, timeout=min(patience, deadline - now), return_when=asyncio.FIRST_COMPLETED)
            for future in [f for f in running if f.done()]:
                del running[future]
                acks += not future.cancelled() and future.result() == (True, True)

    def repair(self, key: bytes, found: Found, record: bytes) -> None:
        """Sends the believed record to the first few peers that lacked it or had another. Nobody waits for it."""
        lacking = found.without + [contact for contact, held in found.holders if held != record]
        for contact in lacking[:MAX_REPAIRS]:
            self._transport.request(contact, "store", self._own_id, key, record)

    def _lookup(self, target: bytes, seeds: Sequence[Contact]) -> Lookup:
        known = self._transport.nearest(target, 3 * WIDTH)  # others name many that died unnoticed: further ones stand in
        spacing = usual_spacing(self._own_id, self._transport.nearest(self._own_id, WIDTH))
        return Lookup(target, [*known, *seeds], own_id=self._own_id, limit_subnets=self._limit_subnets, spacing=spacing)

    async def _walk(
        self, lookup: Lookup, target: bytes, method: str, on_answer: Callable[[Contact, object], bool], patient: Callable[[], bool]
    ) -> None:
        deadline = self._clock.monotonic() + LOOKUP_TIMEOUT_S
        running: dict[asyncio.Task[Reply], Contact] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                now, patience = self._clock.monotonic(), self._transport.patience_s
                for contact in lookup.next_asks(now, patience):
                    running[group.create_task(self._ask(contact, method, target))] = contact
                if not running or now >= deadline or lookup.finished(now, patience, wait_for_stalled=patient()):
                    break
                await asyncio.wait(running, timeout=min(patience, deadline - now), return_when=asyncio.FIRST_COMPLETED)
                stop = False
                for task in [t for t in running if t.done()]:
                    stop |= self._settle(lookup, running.pop(task), task.result(), on_answer)
                if stop:
                    break
            for task in running:
                task.cancel()

    def _settle(self, lookup: Lookup, contact: Contact, reply: Reply, on_answer: Callable[[Contact, object], bool]) -> bool:
        answered, answer = reply
        if not answered:
            lookup.failed(contact)
            return False
        lookup.answered(contact, self._transport.contacts_in(answer, contact))
        return on_answer(contact, answer)

    async def _ask(self, contact: Contact, method: str, target: bytes) -> Reply:
        """The answer of ``contact``, given only by an address that has echoed the contact's id."""
        ping = None if self._transport.is_bound(contact) else self._transport.request(contact, "ping", self._own_id)
        reply = await self._transport.request(contact, method, self._own_id, target)
        if ping is not None and reply[0]:
            await ping
            if not self._transport.is_bound(contact):
                return (False, None)
        return reply
