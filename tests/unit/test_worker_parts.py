"""Goal: the worker's small parts keep their word: the pipe is bounded, only newest statements wait, chains take back what nobody saw, slow links get int8."""

from __future__ import annotations

import asyncio
import socket

import pytest

from dcnr import limits
from dcnr.codecs import codecs_sent
from dcnr.errors import Corrupt, RemoteFault, Unavailable
from dcnr.ids import ReplicaId
from dcnr.intervals import IntervalSet
from dcnr.system import SystemClock
from dcnr.v1 import common_pb2, local_pb2, orchestrator_pb2, vnode_pb2
from pnode import frames
from pnode.exchange import Control
from pnode.hosted import codec_in_force
from pnode.making import Making
from pnode.pipe import LocalPipe
from pnode.reasons import news_of
from pnode.rpc import HeldPort
from pnode.sending import heard_event
from pnode.worker import Worker
from trust.delegation import make_delegation
from trust.identity import NodeKey
from vnode.events import SendNeed
from vnode.registry import default_registry
from vnode.vocabulary import TRAIN_LANE, Lane

NONE = IntervalSet.empty()


async def send_often(pipe: LocalPipe[local_pb2.ToWorker]) -> None:
    for _ in range(10):
        await pipe.send(local_pb2.FromWorker(), timeout_s=1)


def test_the_pipe_carries_whole_messages_and_says_when_the_other_end_is_gone() -> None:
    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        daemon = await LocalPipe.over(ours, local_pb2.FromWorker)
        worker = await LocalPipe.over(theirs, local_pb2.ToWorker)
        for epoch in range(100):
            await daemon.send(local_pb2.ToWorker(head_seen=local_pb2.HeadSeen(epoch=epoch)))
        for epoch in range(100):
            message = await worker.receive()
            assert message is not None
            assert message.head_seen.epoch == epoch
        await daemon.close()
        assert await worker.receive() is None
        with pytest.raises(Unavailable):
            await send_often(worker)
        await worker.close()

    asyncio.run(scenario())


def test_a_worker_judges_delegations_by_the_networks_time_and_not_by_its_own_clock() -> None:
    """Its machine's clock is two days behind: by that, the delegation that its daemon has just signed would begin in the future."""
    behind_s = 2 * limits.DELEGATION_LIFETIME_S

    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        daemon = await LocalPipe.over(ours, local_pb2.FromWorker)
        pipe = await LocalPipe.over(theirs, local_pb2.ToWorker)
        worker = Worker(
            pipe, NodeKey.generate(), SystemClock(), local_pb2.WorkerHello(device="cpu"), Making(), registry=default_registry()
        )
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(worker.run(HeldPort("127.0.0.1", 0)))
            hello = await daemon.receive()
            assert hello is not None
            delegation = make_delegation(
                NodeKey.generate(), "5" * 40, hello.hello.public_key, 1, ["127.0.0.1:1"], SystemClock().wall() + behind_s
            )
            await daemon.send(local_pb2.ToWorker(delegation=delegation, network_time_offset_s=behind_s))
            news = await daemon.receive()
            assert news is not None
            assert news.WhichOneof("kind") == "report"
            await daemon.close()
        await pipe.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x02\xff\xff"])
def test_the_pipe_refuses_what_is_too_long_or_no_message(data: bytes) -> None:
    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        worker = await LocalPipe.over(theirs, local_pb2.ToWorker)
        ours.sendall(data)
        with pytest.raises(Corrupt):
            await worker.receive()
        await worker.close()
        ours.close()

    asyncio.run(scenario())


def need(sequence: int, wanted: IntervalSet, evicted: IntervalSet, lane: Lane = TRAIN_LANE) -> vnode_pb2.LinkMessage:
    return frames.statement_message(1, SendNeed(0, ReplicaId("a.1"), sequence, lane, wanted, NONE, evicted))


def test_only_the_newest_need_of_a_lane_waits_and_no_eviction_is_forgotten() -> None:
    async def scenario() -> None:
        control = Control()
        for sequence in range(1, 50):
            control.put(need(sequence, IntervalSet.span(sequence, 100), IntervalSet.span(sequence, sequence + 1)))
        control.put(need(50, IntervalSet.span(0, 4), NONE, Lane("validation", 1)))
        first, second = control.take(), control.take()
        assert first is not None
        assert second is not None
        assert control.take() is None
        assert first.need.sequence == 49
        assert frames.intervals_of(first.need.evicted) == IntervalSet.span(49, 50), (
            "evicted batches that came meanwhile are not asked for"
        )
        control.put(need(51, IntervalSet.span(0, 9), IntervalSet.span(3, 5)))
        control.put(need(52, IntervalSet.span(0, 9), NONE))
        merged = control.take()
        assert merged is not None
        assert frames.intervals_of(merged.need.evicted) == IntervalSet.span(3, 5)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "message",
    [
        vnode_pb2.LinkMessage(need=vnode_pb2.Need(lane=vnode_pb2.Lane(split="elsewhere"))),
        vnode_pb2.LinkMessage(need=vnode_pb2.Need(lane=vnode_pb2.Lane(split="train", round=1))),
        vnode_pb2.LinkMessage(window=vnode_pb2.Window(lane=vnode_pb2.Lane(split="train"), end=2**63)),
        vnode_pb2.LinkMessage(ack=vnode_pb2.Ack(floor=2**63)),
        vnode_pb2.LinkMessage(ack=vnode_pb2.Ack(floor_vnode="../up")),
        vnode_pb2.LinkMessage(frame=vnode_pb2.FrameHeader()),
        vnode_pb2.LinkMessage(opened=vnode_pb2.EdgeOpened()),
    ],
)
def test_statements_that_no_receiver_makes_are_faults(message: vnode_pb2.LinkMessage) -> None:
    with pytest.raises(RemoteFault):
        heard_event(0.0, 1, message)


@pytest.mark.parametrize("field", ["wanted", "forward_only", "evicted", "durable"])
def test_batches_that_are_no_set_are_no_statement(field: str) -> None:
    overlapping = common_pb2.IntervalSet(intervals=[common_pb2.Interval(first=0, end=5), common_pb2.Interval(first=4, end=9)])
    need = vnode_pb2.Need(lane=vnode_pb2.Lane(split="train"))
    if field != "durable":
        getattr(need, field).CopyFrom(overlapping)
    durable = vnode_pb2.LinkMessage(durable=vnode_pb2.Durable(batches=overlapping))
    with pytest.raises(Corrupt) as refused:
        heard_event(0.0, 1, durable if field == "durable" else vnode_pb2.LinkMessage(need=need))
    assert refused.value.code == "bad_intervals"


@pytest.mark.parametrize(
    ("wanted", "link_bytes_s", "step_s", "expected"),
    [
        ("auto", 0.0, 0.01, "raw"),  # not measured, or everything is local
        ("auto", 500e6, 0.01, "raw"),  # faster than frames come
        ("auto", 100e6, 0.001, "raw"),  # too fast to be worth the work
        ("auto", 6e6, 0.01, "int8"),  # a home link
        ("auto", 6e6, 10.0, "raw"),  # slow, but frames are rarer still
        ("raw", 6e6, 0.01, "raw"),
        ("bf16", 0.0, 0.01, "bf16"),
    ],
)
def test_the_codec_in_force_follows_the_link(wanted: str, link_bytes_s: float, step_s: float, expected: str) -> None:
    assert codec_in_force(wanted, link_bytes_s=link_bytes_s, frame_bytes=1_000_000, step_s=step_s) == expected
    assert expected in codecs_sent(wanted), "receivers and auditors take it"


def test_progress_waits_for_the_next_beat_and_what_decisions_wait_for_does_not() -> None:
    """A replica that was evaluated once reported every second to every orchestrator from then on."""
    report = orchestrator_pb2.ReplicaReport(replica="v1.1", num_learned=10, loss=1.5)
    report.exits.add(split="validation", round=1, count=4, complete=True)
    later = orchestrator_pb2.ReplicaReport()
    later.CopyFrom(report)
    later.num_learned, later.loss = 14, 1.25
    assert news_of(report, has_learned_all=False) == news_of(later, has_learned_all=False)
    assert news_of(report, has_learned_all=False) != news_of(later, has_learned_all=True), "nothing is left to learn"
    evaluated = orchestrator_pb2.ReplicaReport()
    evaluated.CopyFrom(report)
    evaluated.exits.add(split="test", count=2)
    assert news_of(report, has_learned_all=False) != news_of(evaluated, has_learned_all=False)
    named = orchestrator_pb2.ReplicaReport()
    named.CopyFrom(report)
    named.durable.intervals.add(first=0, end=8)
    assert news_of(report, has_learned_all=False) != news_of(named, has_learned_all=False)
