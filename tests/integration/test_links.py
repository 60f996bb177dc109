"""Goal: whole, signed tensors cross a real Link in every size; whatever is tampered with, stale, oversized or broken reaches no replica."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from links_rig import CLOCK, MIB, NETWORK, Recorder, _flipped, _header, eventually, rig, run

from dcnr import limits
from dcnr.errors import NotFound, RemoteFault
from dcnr.ids import ReplicaId, VNodeId
from dcnr.intervals import IntervalSet
from dcnr.tensor import EncodedTensor, TensorHeader, tensor_digest
from dcnr.v1 import identity_pb2, vnode_pb2
from pnode import sending
from pnode.exchange import SILENCE_S
from pnode.frames import check_reason
from pnode.hub import LinkHub
from pnode.outbox import BACKLOG_BYTES, Outbox
from pnode.receiving import Edge, ReceivingExchange
from pnode.sending import SendingExchange
from pnode.spool import Frame, Spool
from trust.identity import NodeKey
from vnode import events as ev
from vnode.signed_frames import FrameNumber, statement
from vnode.vocabulary import TRAIN_LANE, Lane, Mode, Peer


class Stuck:
    """Takes a few messages, then nothing; its reader never ends."""

    def __init__(self, *said: vnode_pb2.LinkMessage) -> None:
        self.incoming: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.written = 0
        self.free = asyncio.Event()
        for message in said:
            self.incoming.put_nowait(message.SerializeToString())

    async def read(self) -> bytes | None:
        return await self.incoming.get()

    async def write(self, message: bytes) -> None:
        self.written += 1
        if self.written > 3:
            await self.free.wait()


def opening(edge: int, source: str = "a.1") -> vnode_pb2.LinkMessage:
    asked = vnode_pb2.OpenEdge(
        network_id=NETWORK, model="m", job_id="j", source_replica=source, target_replica="b.1", target_incarnation=1
    )
    return vnode_pb2.LinkMessage(edge=edge, open=asked)


def closing(edge: int) -> vnode_pb2.LinkMessage:
    return vnode_pb2.LinkMessage(edge=edge, closed=vnode_pb2.EdgeClosed(code="released"))


@pytest.mark.parametrize("num_bytes", [4096, 1 * MIB, 4 * MIB, 64 * MIB])
def test_frames_of_every_size_arrive_as_they_were_sent(tmp_path: Path, num_bytes: int) -> None:
    array = np.random.Generator(np.random.Philox(key=1)).standard_normal((num_bytes // 4096, 1024), dtype=np.float32)

    async def scenario() -> None:
        async with rig(tmp_path) as r:
            (up,) = await r.target.until(ev.EdgeUp)
            assert up.source == Peer(ReplicaId("a.1"), 3)
            await r.send(9, array)
            (arrived,) = await r.target.until(ev.FrameArrived)
            assert (arrived.edge, arrived.lane, arrived.batch) == (0, TRAIN_LANE, 9)
            np.testing.assert_array_equal(arrived.tensor, array)
            (sent,) = await r.source.until(ev.FrameSent)
            assert (sent.link, sent.batch) == (1, 9)

    run(scenario)


def test_statements_arrive_and_a_frame_that_is_gone_is_missing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with rig(tmp_path) as r:
            await r.target.until(ev.EdgeUp)
            a, some = r.source.peer.replica, IntervalSet.of((1, 4), (9, 11))
            r.hub.say(r.target, ev.SendNeed(0, a, 1, TRAIN_LANE, some, IntervalSet.empty(), some))
            r.hub.say(r.target, ev.SendWindow(0, a, 2, TRAIN_LANE, 17))
            r.hub.say(r.target, ev.SendAck(0, a, 3, 5, 4, VNodeId("b")))
            r.hub.say(r.target, ev.SendDurable(0, a, some))
            (need,) = await r.source.until(ev.NeedHeard)
            assert (need.sequence, need.wanted, need.evicted) == (1, some, some)
            (window,) = await r.source.until(ev.WindowHeard)
            (ack,) = await r.source.until(ev.AckHeard)
            (durable,) = await r.source.until(ev.DurableHeard)
            assert (window.end, ack.floor, ack.floor_vnode, durable.batches) == (17, 4, "b", some)
            r.source.ways[1].send(TRAIN_LANE, 77, Mode.TRAIN)
            (missing,) = await r.source.until(ev.FrameMissing)
            assert missing.batch == 77

    run(scenario)


@pytest.mark.parametrize(
    ("alter", "code"),
    [
        (_flipped, "tensor_digest"),
        (_header(digest="0" * 64), "tensor_digest"),
        (_header(shape=(1 << 20, 1024)), "bad_tensor_header"),
        (_header(shape=(1 << 40, 1024)), "bad_tensor_header"),
        (_header(shape=(2, 512)), "bad_frame"),
        (_header(dtype="int32"), "bad_frame"),
        (_header(codec="zip"), "bad_tensor_header"),
    ],
)
def test_a_frame_that_is_not_what_it_says_breaks_the_link_and_reaches_nobody(
    tmp_path: Path, alter: Callable[[Frame], Frame], code: str
) -> None:
    async def scenario() -> None:
        async with rig(tmp_path, alter=alter) as r:
            await r.target.until(ev.EdgeUp)
            await r.send(1, np.ones((1, 1024), np.float32))
            await r.target.until(ev.EdgeDown)
            await r.until_told(code)
            assert not [event for event in r.target.events if isinstance(event, ev.FrameArrived)]

    run(scenario)


@pytest.mark.parametrize(
    ("value", "code"), [(float("nan"), "not_finite"), (1.01 * limits.MAX_TENSOR_RMS, "norm_bound"), (3e38, "norm_bound")]
)
def test_values_that_are_not_finite_or_far_too_large_reach_nobody(tmp_path: Path, value: float, code: str) -> None:
    async def scenario() -> None:
        async with rig(tmp_path) as r:
            await r.target.until(ev.EdgeUp)
            await r.send(1, np.full((1, 1024), value, np.float32))
            await r.target.until(ev.EdgeDown)
            await r.until_told(code)
            assert not [event for event in r.target.events if isinstance(event, ev.FrameArrived)]

    run(scenario)


def test_the_largest_values_that_may_travel_arrive(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with rig(tmp_path) as r:
            await r.target.until(ev.EdgeUp)
            await r.send(1, np.full((1, 1024), 0.99 * limits.MAX_TENSOR_RMS, np.float32))
            await r.target.until(ev.FrameArrived)

    run(scenario)


def test_a_signature_of_another_key_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with rig(tmp_path, signing=NodeKey.generate()) as r:
            await r.target.until(ev.EdgeUp)
            await r.send(1, np.ones((1, 1024), np.float32))
            await r.target.until(ev.EdgeDown)
            await r.until_told("bad_signature")

    run(scenario)


def test_bytes_exchanged_on_the_way_with_their_digest_are_not_what_was_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a relay would: the header says truly what comes, and the signature is over what was sent."""
    sent: list[Frame] = []

    def exchanged(frame: Frame) -> Frame:
        sent.append(frame)
        changed = _flipped(frame).encoded.payload
        return _header(digest=tensor_digest(changed))(replace(frame, encoded=EncodedTensor(frame.encoded.header, changed)))

    def as_sent(source: Peer, target: ReplicaId, number: FrameNumber, header: TensorHeader, step: int) -> bytes:
        return statement(source, target, number, sent[-1].encoded.header, step)

    monkeypatch.setattr(sending, "statement", as_sent)

    async def scenario() -> None:
        async with rig(tmp_path, alter=exchanged) as r:
            await r.target.until(ev.EdgeUp)
            await r.send(1, np.ones((1, 1024), np.float32))
            await r.target.until(ev.EdgeDown)
            await r.until_told("bad_signature")
            assert not [event for event in r.target.events if isinstance(event, ev.FrameArrived)]

    run(scenario)


def test_another_incarnation_than_the_delegated_one_opens_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with rig(tmp_path, claimed=2) as r:
            await r.until_told("stale_incarnation")
            assert not r.target.events

    run(scenario)


def test_a_stale_target_is_refused_with_its_reason_and_asked_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with rig(tmp_path, stale_below=6) as r:
            await eventually(lambda: bool(r.lost))
            assert not r.target.events
            assert r.lost[0] == ("a.1", r.lost[0][1], False)
            r.source.stale_below = 0
            await r.target.until(ev.EdgeUp)

    run(scenario)


def test_a_broken_stream_is_noticed_at_once_on_both_sides_and_opened_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with rig(tmp_path) as r:
            await r.target.until(ev.EdgeUp)
            await r.server.stop(0)
            await r.target.until(ev.EdgeDown, within_s=SILENCE_S - 1)
            await r.source.until(ev.LinkDown, within_s=SILENCE_S - 1)
            await eventually(lambda: any(broken for _, _, broken in r.lost))

    run(scenario)


def test_a_receiver_that_stops_reading_costs_a_bounded_number_of_frames(tmp_path: Path) -> None:
    async def scenario() -> None:
        loads: list[int] = []

        class Counting:
            def newest(self, lane: Lane, batch: int) -> None:
                return None

            async def frame(self, lane: Lane, batch: int) -> Frame:
                loads.append(batch)
                return await outbox.frame(lane, batch)

        executor = ThreadPoolExecutor(1)
        outbox = Outbox(Spool(tmp_path, max_bytes=64 * MIB), executor, lambda: "raw", hot_bytes=1 * MIB)
        source = Recorder(Peer(ReplicaId("a.1"), 1), Counting())
        stream = Stuck(opening(1))
        exchange = SendingExchange(CLOCK, NodeKey.generate(), lambda name: source, "p")
        running = asyncio.ensure_future(exchange.run(stream))
        await source.until(ev.LinkUp)
        for batch in range(40):
            await outbox.keep(TRAIN_LANE, batch, np.full((64, 1024), batch, np.float32), batch)
            source.ways[1].send(TRAIN_LANE, batch, Mode.TRAIN)
        await eventually(lambda: stream.written >= 4)
        assert len(loads) <= 3 + 1 + sending.FRAMES_AHEAD
        assert outbox.held_bytes <= 1 * MIB + BACKLOG_BYTES
        await eventually(lambda: outbox.held_bytes <= 1 * MIB)
        stream.incoming.put_nowait(None)
        await running
        assert isinstance(source.events[-1], ev.LinkDown)
        executor.shutdown()
        outbox.close()

    run(scenario)


def test_a_receiver_that_stops_reading_cannot_have_refusals_pile_up() -> None:
    """Goal: edges that are refused at once count for nothing but their unread answers, and those end the Link."""

    def nothing(name: str) -> Recorder:
        raise NotFound("this replica is not hosted here", code="not_here")

    async def scenario() -> None:
        stream = Stuck(*(opening(edge, "z.9") for edge in range(1, 20_001)))
        with pytest.raises(RemoteFault, match="too many"):
            await SendingExchange(CLOCK, NodeKey.generate(), nothing, "p").run(stream)
        assert stream.incoming.qsize() >= 20_000 - 2 * sending.MAX_EDGES

    run(scenario)


def test_what_was_not_read_of_edges_that_come_and_go_is_forgotten_with_them() -> None:
    """Goal: at both ends of a Link on which the other side reads nothing, but goes on to end edges."""

    async def scenario() -> None:
        source, num = Recorder(Peer(ReplicaId("a.1"), 1), None), 2 * sending.MAX_EDGES
        stream = Stuck(*(message for edge in range(1, num) for message in (opening(edge), closing(edge))))
        stream.incoming.put_nowait(None)
        serving = SendingExchange(CLOCK, NodeKey.generate(), lambda name: source, "p")
        await serving.run(stream)
        assert len(source.ways) == num - 1
        assert len(serving._control._waiting) == 0

        target = Recorder(Peer(ReplicaId("b.1"), 1), None)
        edges = [Edge(number, target, 0, ReplicaId("a.1"), 1, b"", identity_pb2.Envelope()) for number in range(1, num)]
        with ThreadPoolExecutor(1) as executor:
            asking = ReceivingExchange(CLOCK, executor, lambda edge, code: asking.open(edges[edge.number]))
            asking.open(edges[0])
            stream = Stuck(*(closing(edge) for edge in range(1, num - 1)))
            stream.incoming.put_nowait(None)
            await asking.run(stream)
            assert asking.holds(edges[-1])
            assert len(asking._control._waiting) == 1
            asking.close(edges[-1], "released")
            assert len(asking._control._waiting) == 0, "the other side has never heard of it"

    run(scenario)


def test_a_sender_that_waits_for_its_disk_gives_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "BEAT_S", 0.01)

    class Slow:
        """An outbox whose frames come when the test says so, and then are gone."""

        def __init__(self) -> None:
            self.ready = asyncio.Event()

        def newest(self, lane: Lane, batch: int) -> None:
            return None

        async def frame(self, lane: Lane, batch: int) -> Frame:
            await self.ready.wait()
            raise NotFound("gone", code="not_in_spool")

    class Counting:
        def __init__(self) -> None:
            self.incoming: asyncio.Queue[bytes | None] = asyncio.Queue()
            self.beats = 0

        async def read(self) -> bytes | None:
            return await self.incoming.get()

        async def write(self, message: bytes) -> None:
            self.beats += message == b""

    async def scenario() -> None:
        slow, stream = Slow(), Counting()
        source = Recorder(Peer(ReplicaId("a.1"), 1), slow)
        stream.incoming.put_nowait(opening(1).SerializeToString())
        running = asyncio.ensure_future(SendingExchange(CLOCK, NodeKey.generate(), lambda name: source, "p").run(stream))
        await source.until(ev.LinkUp)
        source.ways[1].send(TRAIN_LANE, 1, Mode.TRAIN)
        await eventually(lambda: stream.beats >= 3)
        slow.ready.set()
        await source.until(ev.FrameMissing)
        stream.incoming.put_nowait(None)
        await running

    run(scenario)


def test_local_replicas_hand_over_the_tensor_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        executor = ThreadPoolExecutor(1)
        outbox = Outbox(Spool(tmp_path, max_bytes=4 * MIB), executor, lambda: "raw")
        source = Recorder(Peer(ReplicaId("a.1"), 1), outbox)
        target = Recorder(Peer(ReplicaId("b.1"), 1), None)
        hub = LinkHub(CLOCK, "p", None, lambda *_: None)  # type: ignore[arg-type]
        hub.add(source)
        hub.add(target)
        hub.want(target, 0, {ReplicaId("a.1"): "p"})
        tensor = np.ones((2, 1024), np.float32)
        await outbox.keep(TRAIN_LANE, 4, tensor, 0)
        source.ways[1].send(TRAIN_LANE, 4, Mode.TRAIN)
        (arrived,) = await target.until(ev.FrameArrived)
        assert arrived.tensor is tensor
        hub.remove(source)
        assert isinstance(target.events[-1], ev.EdgeDown)
        assert isinstance(source.events[-1], ev.LinkDown)
        executor.shutdown()
        outbox.close()

    run(scenario)


def test_reasons_from_the_wire_are_codes() -> None:
    assert check_reason(vnode_pb2.EdgeClosed(code="not_here")) == "not_here"
    for bad in ("", "two words", "x" * 41, "<b>"):
        with pytest.raises(Exception, match="readable"):
            check_reason(vnode_pb2.EdgeClosed(code=bad))
