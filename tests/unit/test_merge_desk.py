"""Goal: the core of a primary hears only of deltas that a sibling of the plan signed for this job, and every question is answered once."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from dcnr.errors import Corrupt, DcnrError, Unavailable
from dcnr.ids import ReplicaId, digest_of
from dcnr.intervals import IntervalSet
from dcnr.limits import MAX_CHUNK_BYTES
from dcnr.v1 import identity_pb2, model_pb2, vnode_pb2
from pnode.anchors import Anchor
from pnode.chain import Standing
from pnode.hosted import Neighbours, Planned
from pnode.merge_calls import serve_merge
from pnode.merge_desk import ANCHOR_GAP_S, MAX_WAITING, Answer, MergeDesk
from pnode.uplink import Uplink
from trust.delegation import make_delegation
from trust.envelope import seal
from trust.identity import NodeKey
from vnode.merge_events import MergeAsked
from vnode.state import StateInfo
from vnode.vocabulary import Peer, Role, Verdict

NETWORK, NOW, BATCHES = "5" * 40, 1_800_000_000.0, 20
HELPER, HELPING, STRANGER = (NodeKey.generate() for _ in range(3))
DATA = b"some weights"
ANCHOR = Anchor(b"anchor", digest_of(b"anchor"), StateInfo("a", "m", "", "", 1, 1, BATCHES, 0, IntervalSet.empty()), ())


class StoppedClock:
    """Time that stands still unless a test moves it."""

    now_s = 5.0

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return NOW


def check(data: bytes, codec: str) -> Any:
    if len(data) != len(DATA):
        raise Corrupt("not of this stage", code="bad_delta")
    return data, codec


class Counter:
    """A desk whose core only listens."""

    def __init__(self) -> None:
        self.heard: list[MergeAsked] = []
        self.news = asyncio.Event()
        self.full, self.clock = False, StoppedClock()
        self.desk = MergeDesk(
            Standing(NETWORK, "m", "j", "a", Peer(ReplicaId("a.0"), 3), "6" * 40), num_batches=BATCHES, max_bytes=1000, clock=self.clock,
            executor=ThreadPoolExecutor(1), check=check, post=self.hear, full=lambda: self.full,
        )  # fmt: skip
        self.plan(
            self.planned("a.0", "6" * 40, Role.PRIMARY), *(self.planned(f"a.{k}", HELPER.node_id, Role.CONTRIBUTOR) for k in (1, 2))
        )

    def hear(self, asked: MergeAsked) -> None:
        self.heard.append(asked)
        self.news.set()

    def planned(self, replica: str, pnode_id: str, role: Role) -> Planned:
        return Planned(ReplicaId(replica), pnode_id, role, 1.0)

    def plan(self, *siblings: Planned) -> None:
        self.desk.plan(Neighbours({}, {}, 1, Role.PRIMARY, siblings))

    async def ask(self, opening: vnode_pb2.MergeOpen, *, caller: str = HELPER.node_id, data: bytes = DATA) -> Answer:
        async def weights(size_bytes: int) -> AsyncIterator[bytes]:
            assert size_bytes <= 1000
            yield data

        async with self.desk.asked(opening, caller, weights) as answer:
            return answer

    async def until_heard(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.heard) < count:
                self.news.clear()
                await self.news.wait()


def opening(delta: identity_pb2.Envelope | None = None, **changes: Any) -> vnode_pb2.MergeOpen:
    message = vnode_pb2.MergeOpen(network_id=NETWORK, model="m", job_id="j", contributor="a.1", incarnation=7, primary="a.0")
    for name, value in changes.items():
        setattr(message, name, value)
    if delta is not None:
        message.delta.CopyFrom(delta)
    return message


def delta(
    *, worker: NodeKey = HELPING, node: NodeKey = HELPER, incarnation: int = 7, begun: float = NOW, **changes: Any
) -> identity_pb2.Envelope:
    message = model_pb2.Delta(
        network_id=NETWORK, model="m", job_id="j", vnode="a", replica="a.1", incarnation=7, sequence=4, anchor_digest="c" * 64, batches=[3, 2],
        losses=[1.0, 0.5], codec="raw", digest=digest_of(DATA), size_bytes=len(DATA),
        delegation=make_delegation(node, NETWORK, HELPING.public_der, incarnation, ["127.0.0.1:2"], begun),
    )  # fmt: skip
    for name, value in changes.items():
        field = getattr(message, name)
        if isinstance(value, list):
            del field[:]
            field.extend(value)
        else:
            setattr(message, name, value)
    return seal(identity_pb2.DOMAIN_DELTA, message, worker)


def run(story: Callable[[Counter], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await story(Counter())

    asyncio.run(bounded())


def test_a_delta_of_a_sibling_reaches_the_core_whole_and_is_answered() -> None:
    async def story(counter: Counter) -> None:
        asked = asyncio.ensure_future(counter.ask(opening(delta())))
        await counter.until_heard(1)
        heard = counter.heard[0]
        assert (heard.source, heard.sequence, heard.batches) == (Peer(ReplicaId("a.1"), 7), 4, IntervalSet.span(2, 4))
        brought = counter.desk.brought(heard.request)
        assert (brought.weights, brought.num_batches) == ((DATA, "raw"), 2)
        counter.desk.answer(heard.request, Verdict.MERGED, "", "", ANCHOR)
        assert await asked == Answer(Verdict.MERGED, "", "", 4, ANCHOR)

    run(story)


def test_a_delta_that_has_outlived_its_delegation_is_asked_about_and_answered_like_any_other() -> None:
    """Its contributor makes no other before this one is answered: refused for its age it would be brought for ever."""

    async def story(counter: Counter) -> None:
        asked = asyncio.ensure_future(counter.ask(opening(delta(begun=NOW - 48 * 3600))))
        await counter.until_heard(1)
        assert counter.heard[0].sequence == 4
        counter.desk.answer(counter.heard[0].request, Verdict.MERGED, "", "", ANCHOR)
        assert (await asked).verdict is Verdict.MERGED

    run(story)


@pytest.mark.parametrize("measured", ["", "d" * 64])
def test_a_delta_that_was_measured_against_an_anchor_is_answered_with_the_verdict_alone(measured: str) -> None:
    """Whoever did not say what it was measured against goes on from the anchor that it is answered with."""

    async def story(counter: Counter) -> None:
        asked = asyncio.ensure_future(counter.ask(opening(delta(measured_digest=measured))))
        await counter.until_heard(1)
        counter.desk.answer(counter.heard[0].request, Verdict.MERGED, "", "", ANCHOR)
        assert (await asked).anchor == (None if measured else ANCHOR)

    run(story)


def test_who_has_brought_a_delta_is_given_the_next_anchor_at_once() -> None:
    async def story(counter: Counter) -> None:
        for number, brought in enumerate((None, delta(measured_digest="d" * 64), None), start=1):
            asked = asyncio.ensure_future(counter.ask(opening(brought)))
            await counter.until_heard(number)
            counter.desk.answer(counter.heard[-1].request, Verdict.MERGED if brought else Verdict.ANCHOR, "", "", ANCHOR)
            await asked

    run(story)


def test_the_anchor_alone_can_be_asked_for() -> None:
    async def story(counter: Counter) -> None:
        asked = asyncio.ensure_future(counter.ask(opening()))
        await counter.until_heard(1)
        heard = counter.heard[0]
        assert (heard.sequence, heard.batches, heard.delta) == (None, IntervalSet.empty(), None)
        counter.desk.answer(heard.request, Verdict.ANCHOR, "", "", ANCHOR)
        assert (await asked).sequence == 0

    run(story)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (opening(delta(), job_id="other"), "wrong_job"),
        (opening(delta(), network_id="6" * 40), "wrong_job"),
        (opening(delta(), contributor="a.9"), "unknown_replica"),
        (opening(delta(), contributor="a.0"), "unknown_replica"),
        (opening(delta(job_id="other")), "wrong_job"),
        (opening(delta(vnode="b", replica="b.1")), "wrong_job"),
        (opening(delta(replica="a.2")), "unknown_replica"),
        (opening(delta(worker=STRANGER)), "wrong_signer"),
        (opening(delta(node=STRANGER)), "wrong_pnode"),
        (opening(delta(incarnation=6)), "stale_incarnation"),
        (opening(delta(), incarnation=8), "stale_incarnation"),
        (opening(delta(batches=[3, BATCHES])), "foreign_batches"),
        (opening(delta(batches=[3, 3])), "bad_delta"),
        (opening(delta(batches=[3])), "bad_delta"),
        (opening(delta(losses=[1.0, float("nan")])), "bad_delta"),
        (opening(delta(codec="fp16")), "bad_delta"),
        (opening(delta(sequence=0)), "bad_delta"),
        (opening(delta(digest="x")), "bad_delta"),
        (opening(delta(size_bytes=1001)), "delta_too_large"),
        (opening(delta(digest=digest_of(b"else"))), "wrong_digest"),
        (opening(seal(identity_pb2.DOMAIN_COMMIT, delta().payload, HELPING)), "wrong_domain"),
    ],
)  # fmt: skip
def test_what_does_not_hold_never_reaches_the_core(asked: vnode_pb2.MergeOpen, code: str) -> None:
    async def story(counter: Counter) -> None:
        with pytest.raises(DcnrError) as refused:
            await counter.ask(asked)
        assert refused.value.code == code
        assert counter.heard == []

    run(story)


def test_a_sibling_asks_from_its_own_pnode_and_with_its_newest_incarnation() -> None:
    async def story(counter: Counter) -> None:
        with pytest.raises(DcnrError) as elsewhere:
            await counter.ask(opening(delta()), caller=STRANGER.node_id)
        assert elsewhere.value.code == "wrong_pnode"
        newer = asyncio.ensure_future(counter.ask(opening(incarnation=9)))
        await counter.until_heard(1)
        with pytest.raises(DcnrError) as older:
            await counter.ask(opening(delta()))
        assert (older.value.code, len(counter.heard)) == ("stale_incarnation", 1)
        newer.cancel()
        counter.plan(counter.planned("a.0", "6" * 40, Role.PRIMARY))
        with pytest.raises(DcnrError) as gone:
            await counter.ask(opening(incarnation=9))
        assert gone.value.code == "unknown_replica"

    run(story)


def test_every_byte_of_a_delta_counts() -> None:
    async def story(counter: Counter) -> None:
        whole = delta().SerializeToString(deterministic=True)
        rng = random.Random(3)
        for at in rng.sample(range(len(whole)), 60):
            data = bytearray(whole)
            data[at] ^= 1 << rng.randrange(8)
            try:
                damaged = identity_pb2.Envelope.FromString(bytes(data))
            except Exception:  # noqa: BLE001  not even a message
                continue
            with pytest.raises(DcnrError):
                await counter.ask(opening(damaged))
        assert counter.heard == []

    run(story)


def test_more_than_a_few_siblings_wait_elsewhere_and_all_end_with_the_replica() -> None:
    async def story(counter: Counter) -> None:
        names = [f"a.{number}" for number in range(1, MAX_WAITING + 2)]
        counter.plan(*(counter.planned(name, HELPER.node_id, Role.CONTRIBUTOR) for name in names))
        waiting = [asyncio.ensure_future(counter.ask(opening(contributor=name))) for name in names[:MAX_WAITING]]
        await counter.until_heard(MAX_WAITING)
        with pytest.raises(Unavailable) as busy:
            await counter.ask(opening(contributor=names[-1]))
        assert busy.value.code == "overloaded"
        counter.desk.defer(counter.heard[0].request, Unavailable("not now", code="not_primary"))
        with pytest.raises(Unavailable) as deferred:
            await waiting[0]
        assert deferred.value.code == "not_primary"
        counter.full = True
        with pytest.raises(Unavailable):
            await counter.ask(opening(contributor=names[0]))
        counter.desk.close()
        ended = await asyncio.gather(*waiting[1:], return_exceptions=True)
        assert {getattr(error, "code", "") for error in ended} == {"released"}

    run(story)


def test_a_sibling_that_sends_little_by_little_takes_one_place_however_often_it_calls() -> None:
    async def story(counter: Counter) -> None:
        async def endless(size_bytes: int) -> AsyncIterator[bytes]:
            yield DATA[:1]
            await asyncio.Event().wait()

        async def trickled() -> None:
            async with counter.desk.asked(opening(delta()), HELPER.node_id, endless):
                raise AssertionError("there is nothing to answer")

        trickling = [asyncio.ensure_future(trickled()) for _ in range(MAX_WAITING)]
        asked = asyncio.ensure_future(counter.ask(opening(delta(replica="a.2"), contributor="a.2")))
        await counter.until_heard(1)
        assert counter.heard[0].source.replica == "a.2"
        done, _ = await asyncio.wait(trickling[:-1])
        assert {getattr(one.exception(), "code", "") for one in done} == {"replaced"}
        assert not trickling[-1].done(), "the newest goes on"
        counter.desk.answer(counter.heard[0].request, Verdict.MERGED, "", "", ANCHOR)
        await asked
        trickling[-1].cancel()

    run(story)


def test_two_anchors_in_a_row_are_given_to_each_sibling_every_few_seconds_only() -> None:
    async def story(counter: Counter) -> None:
        async def given(name: str, **changes: Any) -> None:
            number = len(counter.heard) + 1
            asked = asyncio.ensure_future(counter.ask(opening(contributor=name, **changes)))
            await counter.until_heard(number)
            counter.desk.answer(counter.heard[-1].request, Verdict.ANCHOR, "", "", ANCHOR)
            await asked

        for name in ("a.1", "a.2"):
            await given(name)
            counter.clock.now_s += 1.0
            await given(name)
            with pytest.raises(Unavailable) as refused:
                await counter.ask(opening(contributor=name, incarnation=9))
            assert refused.value.code == "overloaded"
            counter.clock.now_s += ANCHOR_GAP_S - 1.0
            await given(name, incarnation=9)

    run(story)


def test_an_answer_that_is_not_read_is_let_go_of_when_its_sibling_asks_again() -> None:
    """Goal: anchors that are being sent are no more than there are siblings, also while what ends an older call waits for a reader."""

    async def story(counter: Counter) -> None:
        async def messages() -> AsyncIterator[vnode_pb2.MergeRequest]:
            yield vnode_pb2.MergeRequest(open=opening(delta()))
            yield vnode_pb2.MergeRequest(chunk=DATA)

        async def unread(kept: asyncio.Event) -> DcnrError:
            """As the server's guard writes: the first part of the anchor, and then the refusal, are taken by nobody."""
            responses = serve_merge(messages(), HELPER.node_id, lambda name: counter.desk, Uplink(counter.clock))
            try:
                async for response in responses:
                    if response.WhichOneof("kind") == "chunk":
                        try:
                            kept.set()
                            await asyncio.Event().wait()
                        except asyncio.CancelledError as cancelled:
                            await responses.athrow(cancelled)
            except DcnrError as error:
                return error
            raise AssertionError("it ended as if it had been read")

        calls, anchors = [], []
        for number in (1, 2, 3):
            kept = asyncio.Event()
            calls.append(asyncio.ensure_future(unread(kept)))
            await counter.until_heard(number)
            data = bytes(2 * MAX_CHUNK_BYTES + number)
            anchors.append(data)
            counter.desk.answer(counter.heard[-1].request, Verdict.MERGED, "", "", replace(ANCHOR, data=data))
            del data
            await kept.wait()
        ended = await asyncio.gather(*calls[:2])
        gc.collect()
        assert [error.code for error in ended] == ["replaced", "replaced"]
        alone = sys.getrefcount(bytes(MAX_CHUNK_BYTES))
        assert [sys.getrefcount(anchors[number]) - alone for number in (0, 1)] == [1, 1], "this list holds them, and nobody else"
        assert not calls[2].done()
        calls[2].cancel()

    run(story)


def test_whose_weights_come_while_the_replica_ends_hears_so_at_once() -> None:
    """Its core answers no more: the sibling would wait for as long as any question may."""

    async def story(counter: Counter) -> None:
        async def closing(size_bytes: int) -> AsyncIterator[bytes]:
            counter.desk.close()
            yield DATA

        with pytest.raises(Unavailable) as ended:
            async with asyncio.timeout(5.0), counter.desk.asked(opening(delta()), HELPER.node_id, closing):
                raise AssertionError("nobody answers")
        assert (ended.value.code, counter.heard) == ("released", [])

    run(story)
