"""The PNodes' control streams: beats come in, and go into the inventory at once; desired states, news of the head and of durable checkpoints go out.

Every orchestrator delivers the desired states of the plan under the head, unchanged and as their holder signed them. A stream that ends is a fact
about its PNode; a slow reader loses its stream, never anybody else's time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from dcnr import limits
from dcnr.errors import DcnrError, Refused, RemoteFault, Stale, TimedOut
from dcnr.v1 import identity_pb2, membership_pb2, orchestrator_pb2
from membership.probing import Findings, Verdict
from orchestrator.audit_inbox import AuditInbox
from orchestrator.beat_bounds import MAX_REASON, MAX_REPLICAS, shown_text
from orchestrator.builds import builds_of, lacks_of_jobs
from orchestrator.checkpoints import is_fenced
from orchestrator.inventory import Transition
from orchestrator.runtime import ModelRuntime, Shared
from orchestrator.smallest import too_small
from orchestrator.view import ModelView
from trust.rates import Rate, TokenBuckets
from trust.records import VerifiedAdvert, open_advert

MAX_WAITING: Final = 64
"""Messages to one PNode that it has not read; then its stream is closed."""
REVIEW_S: Final = 1.0
HEAD_NEWS_S: Final = 2.0
"""A renewal alone is told at most this often."""
IDLE_HEAD_NEWS_S: Final = 15.0
"""To a PNode that was never given anything to host, and so has no horizon to keep, a renewal alone is told at most this often; so is a manifest to one that
serves nothing either: with thousands of PNodes nearly all that orchestrators sent were checkpoints of others."""
GRANT_RENEWED_S: Final = 600.0
REACH_S: Final = 1.0
"""How long the first message waits to find out whether the PNode can be reached."""
MAX_REACH_CHECKS: Final = 32
BEATS_PER_S: Final = 2000.0
RETURNS_PER_S: Final = 100.0
"""Should all streams break at once: each that is opened again costs milliseconds of the processor here, and who has to wait too long comes once more."""
BEAT_RATE: Final = Rate(per_s=30.0, burst=120.0)
"""Per PNode: news goes out at most every 50 ms."""
REPORTS_PER_BEAT: Final = 256
"""So many reports in a beat cost as much as one beat more: each is looked at. A machine that hosts all that a plan may give it has a quarter."""
EVENT_RATE: Final = Rate(per_s=4.0, burst=256.0)
"""Per PNode; what comes faster is not written down."""
SILENT_S: Final = 60.0
"""A stream that brings no beat for so long is closed: it holds one of the places for calls."""


@dataclass(slots=True)
class _Stream:
    """What one PNode has been sent."""

    pnode_id: str
    address: str
    outbox: asyncio.Queue[orchestrator_pb2.OrchestratorMessage] = field(default_factory=lambda: asyncio.Queue(MAX_WAITING))
    heads: dict[str, tuple[tuple[object, ...], float]] = field(default_factory=dict)
    desired: dict[str, bytes] = field(default_factory=dict)
    durable: dict[str, str] = field(default_factory=dict)
    serves: bool = False
    """It was asked for seats on this stream, or reports some: it has to know the newest manifest."""
    builds: frozenset[str] | None = None
    """What it can build, as it said first."""
    events: int = 0
    advert: VerifiedAdvert | None = None
    """The last one that a beat brought and that holds: nearly every beat brings it again."""


class AttachService:
    """``models`` are the runtimes by name; ``reach`` dials a PNode at its own addresses and says whether it answered; ``probe`` also asks a few others."""

    def __init__(
        self,
        shared: Shared,
        models: Mapping[str, ModelRuntime],
        *,
        head_url: Callable[[str], tuple[str, int]],
        reach: Callable[[str, list[str]], Any],
        probe: Callable[[str], Awaitable[Findings | None]] | None = None,
    ) -> None:
        self._shared, self._models = shared, models
        self._head_url, self._reach, self._indirectly = head_url, reach, probe
        self._grants: dict[str, tuple[tuple[str, int], float]] = {}
        self._checking = 0
        self._beat_rate, self._event_rate = TokenBuckets(BEAT_RATE), TokenBuckets(EVENT_RATE)
        self._audits = AuditInbox(shared, models)
        self._readers: dict[str, asyncio.Task[None]] = {}
        self._probes: set[asyncio.Task[None]] = set()

    async def attach(self, peer_id: str, address: str, requests: Any) -> AsyncIterator[orchestrator_pb2.OrchestratorMessage]:
        """Serves one stream until it ends; it counts as soon as its greeting is good. Raises RemoteFault, Refused, InvalidInput for a bad one."""
        first = await self._first(requests)
        greeting = self._greeting(peer_id, first)
        stream = _Stream(peer_id, address, builds=builds_of(first))
        shared, reason = self._shared, "the stream was closed"
        reader: asyncio.Task[None] | None = None
        put = partial(self._put, stream)
        shared.inventory.advertised(greeting.advert, shared.clock.monotonic(), greeting.owner)
        shared.inventory.attached(peer_id, shared.clock.monotonic(), address, stream.builds)
        shared.mailbox.opened(peer_id, put)  # who counts as here can be told something: it hears of it after its welcome
        try:
            shared.nodes_changed.fire()
            shared.history.say("node_attached", peer_id, "its control stream is open", address=address)
            welcome = await self._welcome(stream, greeting.advert)
            if welcome.reachable:
                shared.inventory.probed(peer_id, shared.clock.monotonic(), reachable=True)
            yield orchestrator_pb2.OrchestratorMessage(welcome=welcome)
            for envelope in first.heads[:4]:
                self._shown(envelope)
            reader = asyncio.create_task(self._read(stream, requests))
            older, self._readers[peer_id] = self._readers.get(peer_id), reader
            if older is not None:
                older.cancel()  # a PNode has one stream here: the newest
            async for message in self._messages(stream, reader):
                yield message
            if reader.cancelled():
                reason = "a newer stream took its place"
                return
            if (error := reader.exception()) is not None:
                reason = shown_text(str(error), MAX_REASON)
                raise error
            reason = "the PNode closed it"
        except asyncio.CancelledError:
            reason = "the connection broke"
            raise
        finally:
            if reader is not None:
                reader.cancel()
                if self._readers.get(peer_id) is reader:
                    del self._readers[peer_id]
            shared.mailbox.closed(peer_id, put)
            left = shared.inventory.is_leaving(peer_id)
            reason = "it left politely" if left else reason
            shared.inventory.detached(peer_id, shared.clock.monotonic(), reason)
            shared.nodes_changed.fire()
            shared.history.say("node_left" if left else "node_detached", peer_id, reason)

    def interval_s(self) -> float:
        """The beat interval that is told: two seconds, more when very many are attached."""
        return max(limits.HEARTBEAT_S, self._shared.inventory.num_attached() / BEATS_PER_S)

    # Incoming

    async def _first(self, requests: Any) -> orchestrator_pb2.Hello:
        try:
            async with asyncio.timeout(limits.CALL_TIMEOUT_S):
                message = await anext(aiter(requests))
        except (TimeoutError, StopAsyncIteration):
            raise TimedOut("a control stream without a greeting", code="no_hello") from None
        if message.WhichOneof("kind") != "hello":
            raise RemoteFault("a control stream begins with Hello", code="no_hello")
        return message.hello  # type: ignore[no-any-return]

    def _greeting(self, peer_id: str, hello: orchestrator_pb2.Hello) -> VerifiedAdvert:
        verified = open_advert(hello.advert, network_id=self._shared.policy.network_id, now_wall=self._shared.clock.wall())
        if verified.node_id != peer_id or verified.is_orchestrator:
            raise Refused("only a PNode itself opens its control stream", code="not_a_pnode")
        record = self._shared.inventory.nodes().get(peer_id)
        if record is not None and verified.order[0] < record.incarnation:
            raise Stale("a later life of this PNode is known", code="stale_incarnation")
        return verified

    async def _welcome(self, stream: _Stream, advert: membership_pb2.Advert) -> orchestrator_pb2.Welcome:
        reachable = False
        if self._checking < MAX_REACH_CHECKS and advert.control_addresses:
            self._checking += 1
            try:
                async with asyncio.timeout(REACH_S):
                    reachable = bool(await self._reach(stream.pnode_id, list(advert.control_addresses)))
            except TimeoutError:
                reachable = False
            finally:
                self._checking -= 1
        return orchestrator_pb2.Welcome(
            orchestrator_id=self._shared.key.node_id,
            beat_interval_s=self.interval_s(),
            time_unix_ms=int(self._shared.clock.wall() * 1000),
            observed_address=stream.address,
            reachable=reachable,
            state=orchestrator_pb2.NODE_STATE_JOINING,
        )

    async def _read(self, stream: _Stream, requests: Any) -> None:
        messages = aiter(requests)
        while True:
            try:
                async with asyncio.timeout(SILENT_S):
                    message = await anext(messages)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise TimedOut(f"no beat for {SILENT_S:g} s", code="silent") from None
            match message.WhichOneof("kind"):
                case "beat":
                    self._beat(stream, message.beat)
                case "evidence" | "audit_report":
                    self._audits.heard(stream.pnode_id, message)
                case _:
                    raise RemoteFault("a control stream greets once", code="second_hello")

    def _beat(self, stream: _Stream, beat: orchestrator_pb2.Beat) -> None:
        shared = self._shared
        now = shared.clock.monotonic()
        cost = 1.0 + min(len(beat.replicas), MAX_REPLICAS) / REPORTS_PER_BEAT
        if self._beat_rate.wait_s(stream.pnode_id, now, cost=cost):
            raise RemoteFault("beats come faster than any news could", code="beats_too_often")
        beat = shared.heard(stream.pnode_id, beat)
        interval_s = self.interval_s()
        accused = shared.inventory.beat(stream.pnode_id, now, beat, interval_s)
        if beat.HasField("advert"):
            self._new_advert(stream, beat.advert, now)
        for event in beat.events:
            if event.sequence > stream.events:
                stream.events = event.sequence
                if not self._event_rate.wait_s(stream.pnode_id, now):
                    shared.history.heard(stream.pnode_id, event)
        self._note_exits(stream, beat)
        stream.serves = stream.serves or bool(beat.seats)
        for node_id in accused:
            self.probe(node_id)
        judgement = shared.inventory.judgement(stream.pnode_id)
        views = [one.view for one in self._models.values()]
        record = shared.inventory.nodes().get(stream.pnode_id)
        ack = orchestrator_pb2.BeatAck(
            sequence=beat.sequence,
            beat_interval_s=interval_s,
            longest_pause_s=shared.inventory.num_attached() / RETURNS_PER_S,
            state=judgement.state,
            reason=judgement.reason,
            evidence=judgement.evidence,
            lacks=lacks_of_jobs(stream.builds, views),
            too_small=too_small(record.capability, views) if record is not None else "",
        )
        self._put(stream, orchestrator_pb2.OrchestratorMessage(beat_ack=ack))

    def _note_exits(self, stream: _Stream, beat: orchestrator_pb2.Beat) -> None:
        """Results count only from the PNode that the plan names for the replica."""
        if not any(report.exits for report in beat.replicas):
            return  # nearly every beat: not worth a walk over the plan
        for runtime in self._models.values():
            view = runtime.view
            if view is None or view.plan is None or view.job is None or view.job.request.job_id != view.plan.job_id:
                continue
            mine = {item.replica: item.vnode for item in view.hosted_by(stream.pnode_id)}
            for report in beat.replicas:
                if report.replica in mine and not is_fenced(view, mine[report.replica], report.replica):
                    good = [item for item in report.exits if item.vnode == mine[report.replica]]
                    runtime.exits.heard(view.job.request_digest, good)

    def _new_advert(self, stream: _Stream, envelope: identity_pb2.Envelope, now: float) -> None:
        now_wall, verified = self._shared.clock.wall(), stream.advert
        if verified is None or verified.envelope != envelope or verified.advert.expires_unix_ms <= now_wall * 1000:
            try:
                verified = open_advert(envelope, network_id=self._shared.policy.network_id, now_wall=now_wall)
            except DcnrError:
                return
            if verified.node_id != stream.pnode_id:
                return
            stream.advert = verified
        self._shared.inventory.advertised(verified.advert, now, verified.owner)

    def probe(self, node_id: str) -> None:
        """A look, our own and that of a few others, at a PNode that a neighbour cannot reach, or of which a beat is missing."""
        record = self._shared.inventory.nodes().get(node_id)
        if record is None or not record.address or len(self._probes) >= MAX_REACH_CHECKS:
            return

        async def look(address: str) -> None:
            asked_at = self._shared.clock.monotonic()
            reachable = await self._reaches(node_id, address)
            if reachable is not None:
                now = self._shared.clock.monotonic()
                if self._shared.inventory.probed(node_id, now, reachable=reachable, asked_at=asked_at):
                    self._shared.nodes_changed.fire()

        task = asyncio.create_task(look(record.address))
        self._probes.add(task)
        task.add_done_callback(self._probes.discard)

    async def _reaches(self, node_id: str, address: str) -> bool | None:
        """Whether we or a few others reach it; None where nobody answers us at all: then the trouble may be here, and says nothing of it."""
        found = await self._indirectly(node_id) if self._indirectly is not None else None
        if found is not None:
            return None if found.verdict is Verdict.UNKNOWN else found.verdict is Verdict.REACHED
        try:
            async with asyncio.timeout(2 * REACH_S):
                return bool(await self._reach(node_id, [address]))
        except TimeoutError:
            return False

    def _shown(self, envelope: identity_pb2.Envelope) -> None:
        for runtime in self._models.values():
            runtime.shown(envelope)

    # Outgoing

    def _put(self, stream: _Stream, message: orchestrator_pb2.OrchestratorMessage) -> None:
        """Raises RemoteFault. Before its first seats a PNode is told of the newest manifest, to which it holds what it is to serve."""
        before: list[orchestrator_pb2.OrchestratorMessage] = []
        if not stream.serves and message.seats.vnodes:
            stream.serves = True
            before = [news for name, runtime in self._models.items() for news in self._head_news(stream, name, runtime)]
        try:
            for one in (*before, message):
                stream.outbox.put_nowait(one)
        except asyncio.QueueFull:
            raise RemoteFault("the PNode does not read its control stream", code="slow_reader") from None

    async def _messages(self, stream: _Stream, reader: asyncio.Task[None]) -> AsyncIterator[orchestrator_pb2.OrchestratorMessage]:
        """What is to be said, until the reader is done."""
        seen = -1
        news: asyncio.Task[int] | None = None
        getting: asyncio.Task[orchestrator_pb2.OrchestratorMessage] | None = None
        try:
            while not reader.done():
                news = news or asyncio.create_task(self._shared.news.wait(seen, REVIEW_S))
                getting = getting or asyncio.create_task(stream.outbox.get())
                await asyncio.wait({news, getting, reader}, return_when=asyncio.FIRST_COMPLETED)
                if getting.done():
                    yield getting.result()
                    getting = None
                if news.done():
                    seen, news = news.result(), None
                    for message in await self._news(stream):
                        yield message
        finally:
            for task in (news, getting):
                if task is not None:
                    task.cancel()

    async def _news(self, stream: _Stream) -> list[orchestrator_pb2.OrchestratorMessage]:
        found: list[orchestrator_pb2.OrchestratorMessage] = []
        for name, runtime in list(self._models.items()):
            found.extend(self._head_news(stream, name, runtime))
            view = runtime.view
            if view is None or view.plan is None:
                continue
            try:
                envelope = await runtime.loader.desired(view, stream.pnode_id)
            except DcnrError as error:
                runtime.trouble = f"a desired state cannot be read: {error.message}"
                continue
            if envelope is not None and stream.desired.get(name) != envelope.payload:
                stream.desired[name] = envelope.payload
                found.append(orchestrator_pb2.OrchestratorMessage(desired=envelope))
            found.extend(self._durable_news(stream, view))
        return found

    def _head_news(self, stream: _Stream, name: str, runtime: ModelRuntime) -> list[orchestrator_pb2.OrchestratorMessage]:
        head, now = runtime.head, self._shared.clock.monotonic()
        if head is None:
            return []
        works = name in stream.desired
        manifest = head.manifest_digest if works or stream.serves else ""
        key = (head.epoch, head.holder, head.plan_digest, manifest, head.active.job_id, head.active.state)
        told, pause_s = stream.heads.get(name), HEAD_NEWS_S if works else IDLE_HEAD_NEWS_S
        if told is not None and told[0][:-1] == key and (told[0][-1] == head.sequence or now - told[1] < pause_s):
            return []
        stream.heads[name] = ((*key, head.sequence), now)
        url, expires_unix_ms = self._grant(name, now)
        envelope = identity_pb2.Envelope.FromString(runtime.head_bytes)
        news = orchestrator_pb2.HeadNews(head=envelope, head_url=url, url_expires_unix_ms=expires_unix_ms)
        return [orchestrator_pb2.OrchestratorMessage(head=news)]

    def _grant(self, model: str, now: float) -> tuple[str, int]:
        """The grant for a head, signed anew every few minutes and shared by all streams."""
        known = self._grants.get(model)
        if known is None or now - known[1] > GRANT_RENEWED_S:
            known = self._grants[model] = (self._head_url(model), now)
        return known[0]

    def _durable_news(self, stream: _Stream, view: ModelView) -> list[orchestrator_pb2.OrchestratorMessage]:
        digest = view.head.manifest_digest
        if stream.durable.get(view.model) == digest or view.plan is None:
            return []
        stream.durable[view.model] = digest
        mine = view.hosted_by(stream.pnode_id)
        checkpoints = [found for item in mine if (found := view.working(item.vnode)) is not None]
        if not checkpoints:
            return []
        news = orchestrator_pb2.DurableNews(model=view.model, manifest_digest=digest, checkpoints=checkpoints)
        return [orchestrator_pb2.OrchestratorMessage(durable=news)]


def tell_transitions(shared: Shared, now: float) -> list[Transition]:
    """Judges the nodes that may have changed; each change of state becomes an event."""
    changes = shared.inventory.tick(now)
    for change in changes:
        name = orchestrator_pb2.NodeState.Name(change.after).removeprefix("NODE_STATE_").lower()
        before = orchestrator_pb2.NodeState.Name(change.before).removeprefix("NODE_STATE_").lower()
        shared.history.say("node_state_changed", change.node_id, change.reason, state=name, before=before)
    return changes
