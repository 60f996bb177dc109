"""Control streams: this PNode opens them, to several orchestrators at once, each on a connection of its own that no bulk ever shares.

A stream that brings no answer to a beat for three told intervals counts as broken and is opened again, with growing pauses and jitter. Beats wait for
nothing: what orchestrators say is handled by a task of its own, one message after the other, so work that follows from it never delays a beat.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import structlog

from dcnr import limits
from dcnr.client import Known
from dcnr.errors import DcnrError, TimedOut, Unavailable
from dcnr.ids import NodeId
from dcnr.ports import Clock, Random
from dcnr.rpc.connection import Connection
from dcnr.rpc.dialer import Dialer
from dcnr.rpc.errors import calls_let_go, error_from_rpc
from dcnr.v1 import local_pb2, orchestrator_pb2
from dcnr.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from pnode.told_heads import Told, ToldHeads

ATTACHED = 3
"""Orchestrators to be attached to at once; the holders of all models are always among them once they are known."""
FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 5.0
CROWDED_PAUSE_S = 300.0
"""The longest pause that an orchestrator with very many PNodes can ask for."""
REVIEW_S = 0.5
MAX_WAITING = 256
"""Messages not handled yet; a stream that brings more is opened again later, and everything is told anew."""
MAX_WORDS = 16
"""Answers that wait for a stream; the oldest give way, and whoever asked asks again."""
TRYING_S = 10.0
"""An orchestrator that has not welcomed us for so long no longer takes the place of another one."""
SMOOTHING = 0.25
"""Of the newest round trip in the moving average."""
_log = structlog.get_logger("pnode")


@dataclass(slots=True)
class _Stream:
    task: asyncio.Task[None]
    nudge: asyncio.Event
    address: str = ""
    attached: bool = False
    since_s: float = 0.0
    reason: str = "connecting"
    stale: bool = False
    seen_as: orchestrator_pb2.BeatAck = field(default_factory=orchestrator_pb2.BeatAck)
    """The newest answer to a beat: how that orchestrator sees this PNode."""
    round_trip_s: float = 0.0
    """From a beat to its answer; 0: not known yet."""
    heads: ToldHeads = field(default_factory=ToldHeads)
    words: deque[orchestrator_pb2.PNodeMessage] = field(default_factory=lambda: deque(maxlen=MAX_WORDS))


class ControlStreams:
    """Keeps the streams. ``beat`` composes a heartbeat for a given sequence number; ``on_message`` takes what orchestrators say."""

    def __init__(
        self, dialer: Dialer, known: Known, *, hello: Callable[[], orchestrator_pb2.Hello], beat: Callable[[int], orchestrator_pb2.Beat],
        on_message: Callable[[NodeId, orchestrator_pb2.OrchestratorMessage], Awaitable[None]],
        holders: Callable[[], Collection[NodeId]], clock: Clock, rng: Random,
    ) -> None:  # fmt: skip
        self._dialer, self._known = dialer, known
        self._hello, self._beat, self._on_message, self._holders = hello, beat, on_message, holders
        self._clock, self._rng = clock, rng
        self._streams: dict[NodeId, _Stream] = {}
        self._goes_on = set[NodeId]()
        """Who signed heads of terms that are over, since the last review: it is to be shown the later ones, and no other may have a stream to it."""
        self._inbox: asyncio.Queue[tuple[NodeId, orchestrator_pb2.OrchestratorMessage]] = asyncio.Queue(MAX_WAITING)

    async def run(self) -> None:
        """Runs until cancelled; then every stream is closed."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._handle())
            while True:
                self._review(group)
                await asyncio.sleep(REVIEW_S)

    async def _handle(self) -> None:
        """Handles what all orchestrators say, in the order of its coming; not cut off by the end of a stream."""
        while True:
            node_id, message = await self._inbox.get()
            try:
                await self._on_message(node_id, message)
            except Exception as error:  # noqa: BLE001  RPC boundary: what one orchestrator says never ends the daemon
                if (stream := self._streams.get(node_id)) is not None:
                    stream.reason = f"a message could not be handled: {type(error).__name__}"
                _log.error("control_message_failed", orchestrator=node_id, exc_info=error)

    def renew(self) -> None:
        """Opens every stream to who is known anew: after a sleep of this machine the old ones may be dead, and nobody has noticed; and under another network
        document it is told anew what was not obeyed before.
        """
        for stream in self._streams.values():
            stream.stale = True
            stream.nudge.set()

    def told(self, node_id: NodeId, told: Told | None) -> None:
        """That orchestrator told a head: where it stays with a term that is over, its stream is opened anew, and it is shown what is known here. So is
        whoever goes on in that term: others that hear of the later one cannot end it.
        """
        stream = self._streams.get(node_id)
        if stream is not None and told is not None and stream.heads.told(told, self._clock.monotonic()):
            self._goes_on.add(told.holder)
            stream.stale = True
            stream.nudge.set()

    def nudge(self) -> None:
        """There is news: beat at once on every stream."""
        for stream in self._streams.values():
            stream.nudge.set()

    def say(self, node_id: NodeId, message: orchestrator_pb2.PNodeMessage) -> bool:
        """An answer for one orchestrator, on its stream as soon as that is open; False where there is none."""
        stream = self._streams.get(node_id)
        if stream is None:
            return False
        stream.words.append(message)
        stream.nudge.set()
        return True

    @property
    def attached(self) -> tuple[NodeId, ...]:
        """Orchestrators whose stream is open."""
        return tuple(sorted(node_id for node_id, stream in self._streams.items() if stream.attached))

    def contacts(self) -> list[local_pb2.Contact]:
        """For the status screen."""
        now = self._clock.monotonic()
        return [
            local_pb2.Contact(
                node_id=node_id, address=stream.address, attached=stream.attached, since_s=now - stream.since_s, reason=stream.reason,
                state=stream.seen_as.state, state_reason=stream.seen_as.reason, evidence=stream.seen_as.evidence,
                round_trip_s=stream.round_trip_s, lacks=stream.seen_as.lacks, too_small=stream.seen_as.too_small,
            )
            for node_id, stream in sorted(self._streams.items())
        ]  # fmt: skip

    def _review(self, group: asyncio.TaskGroup) -> None:
        for node_id in [node_id for node_id, stream in self._streams.items() if stream.task.done()]:
            del self._streams[node_id]
        known = {node_id for node_id, _ in self._known()}
        wanted = sorted(known.intersection(self._goes_on.union(self._holders())) - set(self._streams))
        self._goes_on.clear()
        since = self._clock.monotonic() - TRYING_S
        room = ATTACHED - sum(item.attached or item.since_s > since for item in self._streams.values()) - len(wanted)
        others = sorted(known - set(self._streams) - set(wanted))
        wanted.extend(self._rng.sample(others, max(0, min(room, len(others)))))
        for node_id in wanted:
            nudge = asyncio.Event()
            self._streams[node_id] = _Stream(group.create_task(self._keep(node_id)), nudge, since_s=self._clock.monotonic())

    async def _keep(self, node_id: NodeId) -> None:
        """Opens the stream again and again while the orchestrator is known."""
        pause_s = FIRST_PAUSE_S
        await asyncio.sleep(0)
        stream = self._streams[node_id]
        while (addresses := dict(self._known()).get(node_id)) is not None:
            tried_s = self._clock.monotonic()
            try:
                await self._attach(node_id, addresses, stream)
            except DcnrError as error:
                stream.reason = error.message
            except Exception as error:  # noqa: BLE001  RPC boundary: what one orchestrator says never ends the daemon
                stream.reason = f"the stream failed: {type(error).__name__}"
                _log.error("control_stream_failed", orchestrator=node_id, exc_info=error)
            if stream.attached:
                stream.since_s = self._clock.monotonic()
            longest_s = longest_pause(stream.seen_as.longest_pause_s)
            pause_s = pause_after(pause_s, self._clock.monotonic() - tried_s, attached=stream.attached, longest_s=longest_s)
            stream.attached = False
            await asyncio.sleep(pause_s * self._rng.uniform(0.5, 1.0))

    async def _attach(self, node_id: NodeId, addresses: Sequence[str], stream: _Stream) -> None:
        stream.stale = False  # who is told to begin anew from here on does, also while it connects
        connection = await self._dialer.connect(node_id, addresses, own_connection=True)
        try:
            with calls_let_go():
                await self._talk(node_id, connection, stream)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        except asyncio.InvalidStateError as error:
            raise TimedOut("the control stream ended", code="stream_ended") from error
        finally:
            await connection.close()

    async def _talk(self, node_id: NodeId, connection: Connection, stream: _Stream) -> None:
        stub: Any = OrchestratorServiceStub(connection.channel)
        call = stub.Attach(metadata=await connection.fresh_metadata())
        stream.address = connection.address
        interval_s = limits.HEARTBEAT_S
        sequence, beat_at = 0, 0.0
        await _write(call, orchestrator_pb2.PNodeMessage(hello=self._hello()))
        reading = asyncio.create_task(_read(call))
        try:
            due = heard = self._clock.monotonic()
            while True:
                now = self._clock.monotonic()
                if now - heard > limits.SILENT_BEATS * interval_s:
                    raise TimedOut(f"no answer for {now - heard:.1f} s", code="orchestrator_silent")
                if stream.stale:
                    raise Unavailable("it is opened anew", code="stream_renewed")
                is_nudged = stream.nudge.is_set()
                stream.nudge.clear()  # before the welcome too, else it would be looked at again and again; the first beat tells all news
                if stream.attached and (now >= due or is_nudged):
                    sequence += 1
                    message = orchestrator_pb2.PNodeMessage(beat=self._beat(sequence))
                    message.beat.round_trip_s, beat_at = stream.round_trip_s, self._clock.monotonic()
                    await _write(call, message)
                    while stream.words:
                        await _write(call, stream.words.popleft())
                    due = now + interval_s * self._rng.uniform(0.8, 1.0)
                nudged = asyncio.create_task(stream.nudge.wait())
                await asyncio.wait(
                    {reading, nudged}, timeout=max(0.05, min(due - now, interval_s)), return_when=asyncio.FIRST_COMPLETED
                )
                nudged.cancel()
                if not reading.done():
                    continue
                answer = reading.result()
                if answer is None:
                    raise TimedOut("the orchestrator closed the control stream", code="stream_ended")
                reading = asyncio.create_task(_read(call))
                heard = self._clock.monotonic()
                match answer.WhichOneof("kind"):
                    case "welcome":
                        stream.attached, stream.reason, stream.since_s = True, "", heard
                        interval_s = _bounded(answer.welcome.beat_interval_s)
                    case "beat_ack":
                        interval_s, stream.seen_as = _bounded(answer.beat_ack.beat_interval_s), answer.beat_ack
                        if answer.beat_ack.sequence == sequence:
                            stream.round_trip_s = _averaged(stream.round_trip_s, heard - beat_at)
                        continue
                try:
                    self._inbox.put_nowait((node_id, answer))
                except asyncio.QueueFull:
                    raise Unavailable("what it says is not handled in time", code="slow_reader") from None
        finally:
            reading.cancel()
            call.cancel()


def pause_after(pause_s: float, lasted_s: float, *, attached: bool, longest_s: float) -> float:
    """After a try that lasted so long, with ``pause_s`` before it: the shortest where the stream was of use for a while. An orchestrator that has no time for
    all who come takes as long to fail, and would have ten times as many tries if those began at once again. Pure.
    """
    return FIRST_PAUSE_S if attached and lasted_s > LONGEST_PAUSE_S else min(longest_s, pause_s * 2)


def longest_pause(told_s: float) -> float:
    """Between two tries, by what the orchestrator said while this PNode was attached to it (0: nothing). Pure."""
    return min(CROWDED_PAUSE_S, max(LONGEST_PAUSE_S, told_s))


def attached_first(
    known: Sequence[tuple[NodeId, Sequence[str]]], attached: Collection[NodeId]
) -> list[tuple[NodeId, Sequence[str]]]:
    """Those that have a stream of this PNode before all others, which may not know it. Pure."""
    return sorted(known, key=lambda one: one[0] not in attached)


async def _write(call: Any, message: orchestrator_pb2.PNodeMessage) -> None:
    """Raises TimedOut where the other end takes nothing for `limits.CALL_TIMEOUT_S`."""
    try:
        async with asyncio.timeout(limits.CALL_TIMEOUT_S):
            await call.write(message)
    except TimeoutError:
        raise TimedOut(f"it takes nothing for {limits.CALL_TIMEOUT_S:g} s", code="orchestrator_silent") from None


async def _read(call: Any) -> orchestrator_pb2.OrchestratorMessage | None:
    answer = await call.read()
    return answer if isinstance(answer, orchestrator_pb2.OrchestratorMessage) else None  # else the end of the stream


def _averaged(known_s: float, newest_s: float) -> float:
    return known_s + SMOOTHING * (newest_s - known_s) if known_s else newest_s


def _bounded(interval_s: float) -> float:
    return min(30.0, max(0.2, interval_s)) if interval_s > 0 else limits.HEARTBEAT_S
