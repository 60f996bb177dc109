"""Finds others while nobody answers: asks the bootstrap entries again and again, with growing pauses, and says why it has nobody. An orchestrator asks
them also while it knows no other that the document lists, and now and then one that may lead to those of them that it does not know.

Also asks an orchestrator for a newer network document now and then, and remembers the nodes met for the next start.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Final

import structlog

from dcnr.errors import DcnrError, InvalidInput
from dcnr.limits import MAX_ADVERT_BYTES, MAX_ADVERTS_PER_EXCHANGE
from dcnr.ports import Random
from dcnr.rpc.dialer import Dialer
from dcnr.v1 import identity_pb2, membership_pb2
from membership.bootstrap import CachedPeer, Entry, merge, parse_entry, read_cache, remember, write_cache
from membership.discovery import AT_ONCE, Introduction, document_in, in_batches, introduce
from membership.gossip import View
from membership.network_time import MIN_NODES, NetworkTime
from trust.addresses import join_address
from trust.envelope import parse
from trust.network import NetworkPolicy
from trust.records import VerifiedAdvert

LONELY_S: Final = 10.0
"""Without a successful exchange for so long the entries are asked again."""
RETRY_FIRST_S: Final = 0.5
RETRY_LONGEST_S: Final = 30.0
MIN_PAUSE_S: Final = 0.05
SAVE_SOON_S: Final = 1.0
"""While few contacts are saved, new ones are on disk after this long: whoever is killed soon after its start must find others again when all
that it was given are gone."""
FEW_SAVED: Final = 16
TOLD_BY_EACH: Final = 8
"""Entries that one teller's word puts among those that may be asked; so nobody tells more."""
MAX_TELLERS: Final = 4
_log = structlog.get_logger("membership")

Presented = tuple[identity_pb2.Envelope, Sequence[str]]
"""Our advert, and the addresses at which we are reached."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What the seeker tells its node: adverts, and a verified document that may be newer."""

    take: Callable[[Iterable[identity_pb2.Envelope]], None]
    adopt: Callable[[NetworkPolicy], None]


@dataclass(slots=True)
class _Growing:
    """When to ask again, after pauses of which each is twice as long."""

    at: float = float("-inf")
    pause_s: float = RETRY_FIRST_S

    def later(self, now: float, rng: Random) -> None:
        """It was asked now."""
        self.at = now + self.pause_s * rng.uniform(0.75, 1.25)
        self.pause_s = min(self.pause_s * 2, RETRY_LONGEST_S)


class Seeker:
    """See the module; `run` is a task of its node."""

    def __init__(
        self,
        view: View,
        *,
        own_id: str,
        policy: Callable[[], NetworkPolicy],
        dialer: Dialer,
        time: NetworkTime,
        rng: Random,
        bootstrap: Iterable[str],
        cache_path: Path | None,
        document_s: float,
        cache_s: float,
        heard: Heard,
    ) -> None:
        self._view, self._own_id, self._policy, self._dialer, self._time, self._rng = view, own_id, policy, dialer, time, rng
        self._given = [parse_entry(text) for text in bootstrap]
        self._cache_path, self._document_s, self._cache_s, self._heard = cache_path, document_s, cache_s, heard
        self._cached: tuple[CachedPeer, ...] = ()
        self._saved: frozenset[Entry] = frozenset()
        self._save_again_at = float("-inf")
        self._saving: asyncio.Task[None] | None = None
        self._told: OrderedDict[str, list[Entry]] = OrderedDict()
        self._answered_at = self._document_at = self._cache_at = float("-inf")
        self._retry, self._retry_apart = _Growing(), _Growing()
        self.trouble = ""
        """Why nobody is found; empty if all is well."""

    def load_cache(self) -> None:
        """Reads the nodes met in earlier runs."""
        if self._cache_path is not None:
            read = read_cache(self._cache_path)
            self._cached = read.peers
            if read.problem:
                _log.warning("contacts_damaged", problem=read.problem)

    async def save_cache(self) -> None:
        """Remembers the nodes known now; a disk that refuses is told in the log and no reason to stop, one that stands still holds no loop up."""
        now = self._time.wall()
        met = [CachedPeer(entry, now) for entry in _entries_of(self._view.members())]
        if self._cache_path is None or not met:
            return
        self._cached, self._saved = tuple(remember(self._cached, met)), frozenset(peer.entry for peer in met)
        self._save_again_at = self._time.monotonic() + SAVE_SOON_S
        try:
            await asyncio.to_thread(write_cache, self._cache_path, self._cached)
        except OSError as error:
            _log.warning("contacts_not_saved", reason=error.strerror)

    def hear_of(self, texts: Iterable[str], teller: str) -> None:
        """Entries that a partner, or a caller from a subnet, sent: hints with an id, dialled only when lonely. Of each teller the first few of its last word
        are kept, and of tellers the last few: nobody's word takes the places of other entries.
        """
        found: list[Entry] = []
        for text, _ in zip(texts, range(TOLD_BY_EACH), strict=False):
            try:
                entry = parse_entry(text)
            except InvalidInput:
                continue
            if entry.node_id is not None:
                found.append(entry)
        if found:
            self._told[teller] = found
            self._told.move_to_end(teller)
            if len(self._told) > MAX_TELLERS:
                self._told.popitem(last=False)

    def entries_for_others(self) -> list[Entry]:
        """Reachable orchestrators, ourselves first; of many, others each time."""
        own = [self._view.own] if self._view.own is not None and self._view.own.is_orchestrator else []
        others = self._orchestrators()
        return _entries_of([*own, *self._rng.sample(others, min(len(others), TOLD_BY_EACH - len(own)))])

    def heard_from_others(self) -> None:
        """An exchange or a join worked."""
        self._answered_at, self._retry.pause_s = self._time.monotonic(), RETRY_FIRST_S
        if self._orchestrators() or self._listed():
            self.trouble = ""

    async def run(self, own: Callable[[], Presented], asked: Callable[[], None], *, pause_s: float) -> None:
        """Looks around for ever, beside gossip, which goes on and renews our advert however long those take that are asked; ``asked`` after each time."""
        while True:
            if await self.look_around(*own()):
                asked()
            await asyncio.sleep(max(MIN_PAUSE_S, min(pause_s * self._rng.uniform(0.75, 1.25), self._next_look_s())))

    async def look_around(self, own: identity_pb2.Envelope, own_addresses: Sequence[str]) -> bool:
        """Asks whom it is time to ask: entries while lonely, else sometimes an orchestrator for the newest document, and with it an entry that may lead to
        listed ones that are not known here. Whether anybody was.
        """
        now = self._time.monotonic()
        if self._is_lonely(now):
            if now < self._retry.at:
                return False
            was_asked = await self._ask_entries(own, own_addresses)
            self._retry.later(self._time.monotonic(), self._rng)
            return was_asked
        if self._is_apart():
            if now < self._retry_apart.at:
                return False
            await self._ask(self._entries(own_addresses), own)
            self._retry_apart.later(self._time.monotonic(), self._rng)
            return True
        self._retry_apart.pause_s = RETRY_FIRST_S
        if now < self._document_at or not (known := _entries_of(self._orchestrators())):
            return False
        self._document_at = now + self._document_s * self._rng.uniform(0.75, 1.25)
        missing = self._missing(own_addresses)
        await self._ask([self._rng.choice(known), *self._rng.sample(missing, min(1, len(missing)))], own)
        return True

    def save_what_is_due(self, group: asyncio.TaskGroup) -> None:
        """Saves the cache now and then, and soon where few are saved, in ``group``; called after every round of gossip, which waits for no disk."""
        now = self._time.monotonic()
        if (now >= self._cache_at or self._few_are_saved(now)) and (self._saving is None or self._saving.done()):
            self._cache_at = now + self._cache_s
            self._saving = group.create_task(self.save_cache())

    def _next_look_s(self) -> float:
        """Seconds until the entries may be asked again, if that is needed."""
        return max(0.0, self._retry.at - self._time.monotonic()) if self.trouble else float("inf")

    def _few_are_saved(self, now: float) -> bool:
        if len(self._saved) >= FEW_SAVED or now < self._save_again_at:
            return False
        return not self._saved.issuperset(_entries_of(self._view.members()))

    def _is_lonely(self, now: float) -> bool:
        if self._listed() and not self._view.members():
            return True
        return now - self._answered_at > LONELY_S or not (self._orchestrators() or self._listed())

    def _is_apart(self) -> bool:
        """Whether this listed orchestrator knows none of the others. PNodes that entered by it are not enough: those of the others know nothing of it."""
        others = self._policy().orchestrator_ids - {self._own_id}
        return self._listed() and bool(others) and others.isdisjoint(advert.node_id for advert in self._view.members())

    def _missing(self, own_addresses: Sequence[str]) -> list[Entry]:
        """Entries that may lead this listed orchestrator to others that it does not know. Parts of a network that were apart for longer than adverts live know
        nothing of each other; where each has two orchestrators nobody in them is lonely or apart.
        """
        others = self._policy().orchestrator_ids - {self._own_id, *(advert.node_id for advert in self._view.members())}
        if not others or not self._listed():
            return []
        document = [parse_entry(text) for text in self._policy().document.bootstrap]
        places = {(entry.host, entry.port) for entry in _entries_of(self._view.members())}
        every = merge(self._given, document, [peer.entry for peer in self._cached if peer.entry.node_id in others])
        unknown = [
            entry
            for entry in every
            if entry.node_id in others or (entry.node_id is None and (entry.host, entry.port) not in places)
        ]
        return [entry for entry in unknown if join_address(entry.host, entry.port) not in own_addresses]

    def _is_led(self) -> bool:
        """Whether somebody is known by whom all others are found: an orchestrator; for a listed one, another of those where there are others."""
        if self._listed():
            return bool(self._view.members()) and not self._is_apart()
        return bool(self._orchestrators())

    def _entries(self, own_addresses: Sequence[str]) -> list[Entry]:
        """All that may be asked, none of them this node. Those met earlier and those that others told take turns. Where an address is known
        otherwise, the others' word on it does not count: with an id that is not there it would make the entry useless.
        """
        document = [parse_entry(text) for text in self._policy().document.bootstrap]
        known, cached = merge(_entries_of(self._orchestrators()), self._given, document), [peer.entry for peer in self._cached]
        places = {(entry.host, entry.port) for entry in (*known, *cached)}
        told = [entry for entries in reversed(self._told.values()) for entry in entries if (entry.host, entry.port) not in places]
        in_turn = [entry for pair in zip_longest(cached, told) for entry in pair if entry is not None]
        every = merge(known, in_turn)
        return [e for e in every if e.node_id != self._own_id and join_address(e.host, e.port) not in own_addresses]

    async def _ask_entries(self, own: identity_pb2.Envelope, own_addresses: Sequence[str]) -> bool:
        entries = self._entries(own_addresses)
        if not entries:
            alone = not self._view.members() and not self._listed()
            self.trouble = "no bootstrap entry is known: pass --bootstrap ID@HOST:PORT of any node" if alone else ""
            return False
        failures = await self._ask(entries, own)
        if failures is not None:
            reasons = "; ".join(_reason(entry, error) for entry, error in failures[:3])
            self.trouble = f"none of {len(entries)} bootstrap entries answered well ({reasons}); trying again"
        elif not self._orchestrators() and not self._listed():
            self.trouble = "none of the network's orchestrators has been heard of yet; asking again"
        else:
            self.trouble = ""
        return True

    async def _ask(self, entries: Sequence[Entry], own: identity_pb2.Envelope) -> list[tuple[Entry, DcnrError]] | None:
        """Joins by these entries, a few at once, until one is believed and leads to the others; None if one answered well, else why none did.

        An answer that is worth nothing, a replayed document without adverts or our own under another name, hides nobody behind it.
        """
        request = membership_pb2.JoinRequest(network_id=self._policy().network_id, advert=own)
        answers: list[Introduction] = []
        failures: list[tuple[Entry, DcnrError]] = []
        good = False
        for batch in in_batches(entries):
            found, silent = await introduce(self._dialer, batch, request, self._time)
            others = [answer for answer in found if answer.node_id != self._own_id]
            answers += others
            failures += silent
            good = self._believe(others, failures) or good
            if good and self._is_led():
                break
        if answers and not self._view.members():
            good = self._believe(await self._ask_the_time(answers, request), failures) or good
        if good:
            self.heard_from_others()
        return None if good else failures

    def _believe(self, answers: Iterable[Introduction], failures: list[tuple[Entry, DcnrError]]) -> bool:
        """Takes in what they say; whether one of them said something good. Why not, goes to ``failures``."""
        good = False
        for answer in answers:
            try:
                self._heard.adopt(document_in(answer.response, self._time.wall(), self._policy().network_id))
            except DcnrError as error:
                failures.append((answer.entry, error))
                continue
            good = True
            self._heard.take(answer.response.adverts)
        return good

    async def _ask_the_time(self, answers: list[Introduction], request: membership_pb2.JoinRequest) -> list[Introduction]:
        """They answered, and no advert of theirs is believed: the clock here may be wrong, so all say what time it is; where they are too few, some of those
        that they name too. Who answered of this network.

        Strangers' time counts in no other case: where one honest node answers and the clock here is about right, its advert is believed.
        """
        named = _named_by(answers, {self._own_id, *(answer.node_id for answer in answers)})
        if len(answers) < MIN_NODES and named:
            further, _ = await introduce(self._dialer, self._rng.sample(named, min(AT_ONCE, len(named))), request, self._time)
            answers = [*answers, *further]
        ours = [answer for answer in answers if _is_of(answer, request.network_id)]
        for answer in ours:
            self._time.met(answer.node_id, answer.said)
        return ours

    def _orchestrators(self) -> list[VerifiedAdvert]:
        return [a for a in self._view.members() if a.is_orchestrator]

    def _listed(self) -> bool:
        return self._policy().is_orchestrator(self._own_id)


def _reason(entry: Entry, error: DcnrError) -> str:
    """Why an entry did not answer well, with its address once."""
    address = join_address(entry.host, entry.port)
    return error.message if address in error.message else f"{address}: {error.message}"


def _is_of(answer: Introduction, network_id: str) -> bool:
    """Whether it has a document of that network, be it one that has expired by our clock."""
    try:
        document_in(answer.response, None, network_id)
    except DcnrError:
        return False
    return True


def _named_by(answers: Iterable[Introduction], without: set[str]) -> list[Entry]:
    """The first address of each node in the adverts of these answers, whether or not those are in force: who is there shows its key."""
    found: dict[str, Entry] = {}
    for envelope in [envelope for answer in answers for envelope in answer.response.adverts[:MAX_ADVERTS_PER_EXCHANGE]]:
        try:
            advert = parse(membership_pb2.Advert, envelope.payload, MAX_ADVERT_BYTES)
            if advert.node_id not in without and advert.control_addresses:
                found[advert.node_id] = parse_entry(f"{advert.node_id}@{advert.control_addresses[0]}")
        except DcnrError:
            continue
    return [found[node_id] for node_id in sorted(found)]


def _entries_of(adverts: Iterable[VerifiedAdvert]) -> list[Entry]:
    """The first address of each node as an entry."""
    found: list[Entry] = []
    for advert in adverts:
        for address in advert.advert.control_addresses[:1]:
            try:
                found.append(parse_entry(f"{advert.node_id}@{address}"))
            except InvalidInput:  # an address that is good for dialling but not as an entry
                continue
    return found
