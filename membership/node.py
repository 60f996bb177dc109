"""A node's membership: it finds others, is found, and knows who is here; the same for PNodes and orchestrators.

Gossip in the background: every second or two an exchange with a few partners, at once when the own advert changes. While nobody answers, the bootstrap
entries are asked again, with growing pauses, for ever; `Membership.trouble` says why. Look-ups go to the view first, then to the DHT.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from dcnr.errors import DcnrError, InvalidInput, NotRunning
from dcnr.ids import NodeId, check_node_id
from dcnr.ports import Clock, Random
from dcnr.rpc.dialer import Dialer
from dcnr.v1 import identity_pb2, membership_pb2
from membership.agreeing import Agreeing
from membership.dht import DhtDirectory
from membership.dht_directory import DirectoryNode
from membership.doubts import Doubts
from membership.exchanges import Exchanges, Told
from membership.gossip import LEAVING_LIFETIME_S, MAX_SUSPECTS_PER_EXCHANGE, Gone, GoneReason, GossipEvent, View
from membership.network_time import NetworkTime
from membership.own_advert import OwnAdvert
from membership.partners import Partners
from membership.prober import Prober
from membership.probing import Findings
from membership.publishing import Publisher
from membership.record_verify import verify_dht_record
from membership.seeking import Heard, Presented, Seeker
from membership.service import Gossip, MembershipServicer
from trust.addresses import join_address, split_address
from trust.envelope import parse_envelope
from trust.identity import NodeKey
from trust.in_force import InForce
from trust.network import NetworkPolicy
from trust.records import VerifiedAdvert, VerifiedLocation, advert_key, location_key, open_advert, open_location

MIN_PAUSE_S: Final = 0.05
"""Between two rounds, however much there is to tell."""
MISDATED_S: Final = 30.0
"""An own advert that was issued in the future, or is older than it may be, by more than this is made anew at once."""
DENIAL_S: Final = 3.0
"""Who is called dead makes a newer advert at once where its last one is so old, else when it is: claims cost the network no flood of adverts."""
DHT_TICK_S: Final = 2.0
DHT_ENOUGH_CONTACTS: Final = 4
DHT_BOOTSTRAP: Final = 8
LEAVE_TIMEOUT_S: Final = 2.0
LEAVE_PARTNERS: Final = 4
_log = structlog.get_logger("membership")

Subscriber = Callable[[GossipEvent], None]


@dataclass(frozen=True, slots=True)
class MembershipSettings:
    """Intervals in seconds."""

    exchange_s: float = 1.5
    num_partners: int = 2
    advert_lifetime_s: float = 300.0
    advert_renew_s: float = 120.0
    document_s: float = 60.0
    """How often an orchestrator is asked for a newer network document."""
    cache_s: float = 30.0


class Membership:
    """See the module. Methods are called from the event loop that `start` ran in."""

    def __init__(
        self,
        *,
        key: NodeKey,
        network: InForce,
        kind: membership_pb2.NodeKind.ValueType,
        dialer: Dialer,
        clock: Clock,
        rng: Random,
        bootstrap: Iterable[str] = (),
        cache_path: Path | None = None,
        incarnation: int | None = None,
        directory: DirectoryNode | None = None,
        settings: MembershipSettings | None = None,
    ) -> None:
        self._key, self._network, self._rng, self._settings = key, network, rng, settings or MembershipSettings()
        policy = network.policy
        self._time = NetworkTime(clock)
        self._view = View(
            key.node_id, policy.network_id, is_orchestrator=lambda n: network.policy.is_orchestrator(n), salt=rng.randbytes(16)
        )
        self._own = OwnAdvert(key, policy.network_id, kind, int(clock.wall() * 1000) if incarnation is None else incarnation)
        self._partners = Partners(dialer, self._time)
        self._prober = Prober(dialer, self._partners, rng, members=self._view.members, in_trouble=self._view.in_trouble)
        self._doubts = Doubts(self._prober, self._time, self._bury)
        self._seeker = Seeker(
            self._view,
            own_id=key.node_id,
            policy=lambda: network.policy,
            dialer=dialer,
            time=self._time,
            rng=rng,
            bootstrap=bootstrap,
            cache_path=cache_path,
            document_s=self._settings.document_s,
            cache_s=self._settings.cache_s,
            heard=Heard(self._take, self._adopt),
        )
        told = Told(self._take, self._suspect, self.suspect)
        self._exchanges = Exchanges(
            self._view, self._partners, self._time, rng, self._seeker, Agreeing(network, self._partners, self._time), told
        )
        self._directory = directory or DhtDirectory(
            key.node_id, clock=self._time, rng=rng, verify=verify_dht_record(policy.network_id), single_host=policy.single_host
        )
        self._directory_runs = False
        self._publisher = Publisher(key, policy.network_id, directory=self._directory, time=self._time)
        gossip = Gossip(self._view, network, self._take, self._seeker.hear_of, self._seeker.entries_for_others, self._suspect)
        self.servicer = MembershipServicer(gossip, dialer=dialer, clock=clock, time=self._time, rng=rng)
        self._subscribers: list[Subscriber] = []
        network.follow(lambda amended: self._tell(self._view.reconsider(self._time.wall())))
        self._wake = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._renew_at = self._issued_at = float("-inf")
        self.dht_lookups = 0

    # Life

    async def start(self, control_address: str, dht_host: str | None = None, dht_port: int = 0) -> None:
        """Begins to gossip as a node that is reached at ``control_address``. ``dht_host`` None: without a directory. Raises Unavailable."""
        if self._runner is not None:
            raise InvalidInput("membership has been started already", code="already_started")
        self._own.set_default("control_addresses", [control_address])
        if dht_host is not None:
            port = await self._directory.start(dht_host, dht_port)
            self._directory_runs = True
            self._own.set_default("dht_address", _dht_address(control_address, dht_host, port))
        self._seeker.load_cache()
        self._issue()
        self._runner = asyncio.create_task(self._run(), name="membership")

    async def stop(self) -> None:
        """Says good-bye to a few partners, ends all tasks and connections, remembers the nodes met. May be called twice."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.cancel()
            await asyncio.wait([runner])
            self._issue(LEAVING_LIFETIME_S)
            try:
                async with asyncio.timeout(LEAVE_TIMEOUT_S):
                    await self._exchanges.last(self._view.partners(self._rng, LEAVE_PARTNERS, self._time.monotonic()))
            except TimeoutError:
                pass
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_TIMEOUT_S):
                    await self._seeker.save_cache()
        await self._doubts.close()
        await self._partners.close()
        if self._directory_runs:
            self._directory_runs = False
            await self._directory.stop()

    # Who is here

    @property
    def node_id(self) -> NodeId:
        """Our own id."""
        return self._key.node_id

    @property
    def own_advert(self) -> identity_pb2.Envelope:
        """Our advert as others see it. Raises NotRunning before `start`."""
        if self._view.own is None:
            raise NotRunning("membership has not been started", code="membership_stopped")
        return self._view.own.envelope

    @property
    def dht_address(self) -> str:
        """Where our directory node is reached; empty without one."""
        return self._own.dht_address if self._directory_runs else ""

    @property
    def observed_address(self) -> str:
        """Our address as the last partner saw it; empty at first."""
        return self._partners.observed_address

    @property
    def trouble(self) -> str:
        """Why this node is not well connected, or its clock not right; empty if all is well."""
        runner = self._runner
        if runner is not None and runner.done():
            return "membership has stopped because of an internal error; see the log"
        return "; ".join(told for told in (self._seeker.trouble, self._time.trouble) if told)

    def find(self, node_id: str) -> VerifiedAdvert | None:
        """The newest advert known here."""
        return self._view.find(node_id, self._time.wall())

    async def resolve(self, node_id: str) -> VerifiedAdvert | None:
        """The newest advert known here, else the directory's."""
        found = self.find(check_node_id(node_id))
        if found is not None or not self._directory_runs:
            return found
        self.dht_lookups += 1
        record = await self._directory.get(advert_key(node_id))
        if record is None:
            return None
        try:
            advert = open_advert(parse_envelope(record), network_id=self._network.policy.network_id, now_wall=self._time.wall())
        except DcnrError:  # expired between the directory's check and ours
            return None
        self._tell(self._view.believe(advert, self._time.wall()))
        return advert

    async def probe(self, node_id: str) -> Findings | None:
        """What this node and a few others find when they try to reach it now, within `probing.PROBE_BUDGET_S`; None for a node not known here."""
        advert = self.find(node_id)
        return await self._prober.probe(advert) if advert is not None else None

    def suspect(self, node_id: str) -> None:
        """Says that a PNode seems dead (its control stream broke, say): it is probed, and gone from all views soon if nobody reaches it."""
        advert = self.find(node_id)
        if advert is not None and not advert.is_orchestrator:
            self._doubts.about([advert])

    async def publish_location(self, model: str, replica: str, delegation: identity_pb2.Envelope) -> int:
        """Says in the directory that this node hosts a replica, until `withdraw_location`; how many nodes keep it. Raises InvalidInput, NotRunning."""
        return await self._publisher.publish_location(model, replica, delegation)

    def withdraw_location(self, model: str, replica: str) -> None:
        """Lets the location expire."""
        self._publisher.withdraw_location(model, replica)

    async def locate(self, model: str, replica: str, pnode_id: str) -> VerifiedLocation | None:
        """What a PNode, which the plan names, says in the directory of a replica that it hosts."""
        if not self._directory_runs:
            return None
        self.dht_lookups += 1
        record = await self._directory.get(location_key(self._network.policy.network_id, model, replica, pnode_id))
        if record is None:
            return None
        try:
            return open_location(parse_envelope(record), network_id=self._network.policy.network_id, now_wall=self._time.wall())
        except DcnrError:
            return None

    def members(self) -> list[VerifiedAdvert]:
        """All other nodes known, by id."""
        return self._view.members()

    def orchestrators(self) -> list[VerifiedAdvert]:
        """Other orchestrators that the network document lists, by id."""
        return [a for a in self._view.members() if a.is_orchestrator]

    def pnodes(self) -> list[VerifiedAdvert]:
        """Other PNodes, by id."""
        return [a for a in self._view.members() if not a.is_orchestrator]

    @property
    def clock(self) -> Clock:
        """This machine's clock, its wall clock corrected to network time."""
        return self._time

    def network_time(self) -> float:
        """Seconds since 1970 as the network believes."""
        return self._time.wall()

    def subscribe(self, callback: Subscriber) -> Callable[[], None]:
        """Calls back, from the event loop, with every `Joined`, `Updated` and `Gone`; the result ends that. ``callback`` must not raise."""
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    def update_self(self, **fields: Any) -> None:
        """Changes our advert (`membership.own_advert.ADVERT_FIELDS`); others hear of it at once. Before `start` the fields are kept for the first advert."""
        self._own.update(fields)
        if self._runner is not None:
            self._issue()

    # Background

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._gossip(group))
                group.create_task(self._seeker.run(self._presented, self._wake.set, pause_s=self._settings.exchange_s))
                if self._directory_runs:
                    group.create_task(self._keep_directory())
        except Exception as error:
            _log.error("membership_failed", exc_info=error)
            raise

    async def _gossip(self, group: asyncio.TaskGroup) -> None:
        while True:
            self._wake.clear()
            now = self._time.monotonic()
            if not self._time.is_unsure:
                self._tell(self._view.expire(self._time.wall()))
            if not -MISDATED_S < self._own_age_s() < self._settings.advert_renew_s + MISDATED_S:
                self._issue()
            elif now >= self._renew_at:
                self._renew()
            await self._exchanges.round(group, self._view.partners(self._rng, self._settings.num_partners, now))
            await self._partners.keep(self._view.circle.ids)
            self._seeker.save_what_is_due(group)
            await asyncio.sleep(MIN_PAUSE_S)
            try:
                async with asyncio.timeout(self._settings.exchange_s * self._rng.uniform(0.75, 1.25)):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _keep_directory(self) -> None:
        while True:
            if self._directory.stats().num_contacts < DHT_ENOUGH_CONTACTS:
                met = {node_id for _, _, node_id in self._directory.export_contacts()}
                strange = [a.advert.dht_address for a in self._view.members() if a.advert.dht_address and a.node_id not in met]
                if strange:  # a small network has no more than these
                    chosen = self._rng.sample(strange, min(DHT_BOOTSTRAP, len(strange)))
                    await self._directory.bootstrap([split_address(address) for address in chosen])
            if self._directory.stats().num_contacts:
                await self._publisher.refresh(self.own_advert)
            await asyncio.sleep(min(DHT_TICK_S, self._settings.exchange_s) * self._rng.uniform(0.75, 1.25))

    # Small parts

    def _issue(self, lifetime_s: float | None = None) -> None:
        """Makes the next advert of our own the one that others hear of, in the directory too."""
        self._renew(lifetime_s)
        self._publisher.advert_changed()

    def _renew(self, lifetime_s: float | None = None) -> None:
        """As `_issue`, where it says the same for longer: what the directory keeps of it lives for longer than that, and is published again in its own time."""
        self._own.rise_above(self._view.own_seen)
        envelope = self._own.make(self._time.wall(), lifetime_s or self._settings.advert_lifetime_s)
        self._view.set_own(envelope, self._time.wall())
        self._issued_at = self._time.monotonic()
        self._renew_at = self._issued_at + self._settings.advert_renew_s * self._rng.uniform(0.75, 1.0)
        self._wake.set()

    def _presented(self) -> Presented:
        return self.own_advert, self._own.control_addresses

    def _own_age_s(self) -> float:
        """By network time: where that moved, or this machine slept, others may take our advert for expired or not issued yet."""
        return self._time.wall() - self._view.own.advert.issued_unix_ms / 1000 if self._view.own is not None else 0.0

    def _take(self, envelopes: Iterable[identity_pb2.Envelope]) -> None:
        self._tell(self._view.offer_all(envelopes, self._time.wall()))
        if self._runner is not None and self._view.own_seen > self._own.order:
            self._issue()

    def _suspect(self, named: Sequence[membership_pb2.KnownNode]) -> None:
        """Somebody calls nodes dead: they are probed. Where it is ourselves, a newer advert says otherwise, now or within `DENIAL_S` or so."""
        self._doubts.claimed(self._view.suspected(named))
        own = (item for item in named[:MAX_SUSPECTS_PER_EXCHANGE] if item.node_id == self.node_id)
        if self._runner is not None and any((item.incarnation, item.sequence) == self._own.order for item in own):
            self._renew_at = min(self._renew_at, self._issued_at + DENIAL_S)
            if self._time.monotonic() >= self._renew_at:
                self._issue()

    def _bury(self, advert: VerifiedAdvert) -> None:
        self._tell(self._view.bury(advert.node_id, advert.order, self._time.wall()))

    def _tell(self, events: Iterable[GossipEvent]) -> None:
        for event in events:
            if self._directory_runs and isinstance(event, Gone) and event.reason is not GoneReason.CROWDED_OUT:
                self._directory.doubt(event.advert.node_id)
            for subscriber in list(self._subscribers):
                subscriber(event)

    def _adopt(self, policy: NetworkPolicy) -> None:
        self._network.take(policy.history, now_wall=self._time.wall())


def _dht_address(control_address: str, dht_host: str, port: int) -> str:
    """The directory's address as others reach it: an IP address and port, or empty where none is known."""
    for host in (dht_host, split_address(control_address)[0]):
        try:
            if not ipaddress.ip_address(host).is_unspecified:
                return join_address(host, port)
        except ValueError:
            continue
    return ""
