"""Goal: the pure parts of the gateway: rates, pages, errors, figures, the sharing of questions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcnr.errors import ERROR_CLASSES, InvalidInput, InvariantBroken, Unavailable
from dcnr.v1 import membership_pb2, model_pb2, orchestrator_pb2
from gateway.buckets import take
from gateway.errors import CODES, from_typed
from gateway.feeds import Feed, Item
from gateway.metrics import CATALOGUE, PROXIED, SERVING, Metrics
from gateway.paging import page
from gateway.stats import quantile, stats_of
from gateway.views import FOR_EVER_S, FRESH_S, NOW_S, Fresh
from trust.rates import Rate, TokenBuckets


class Hand:
    """A clock moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


@given(st.lists(st.floats(0.0, 3.0), max_size=60), st.floats(0.2, 20.0), st.integers(1, 10))
def test_no_name_gets_more_than_its_rate(pauses: list[float], rate: float, burst: int) -> None:
    buckets, now, let_in = TokenBuckets(Rate(rate, burst)), 0.0, 0
    for pause in pauses:
        now += pause
        allowance = take(buckets, "a", now)
        let_in += allowance.allowed
        assert 0 <= allowance.remaining <= allowance.limit == burst
        assert allowance.allowed or "Retry-After" in allowance.headers()
    assert let_in <= burst + now * rate + 1e-6


def test_names_do_not_share_and_are_forgotten_when_too_many() -> None:
    buckets = TokenBuckets(Rate(0.001, 1.0), max_names=2)

    def let_in(name: str) -> bool:
        return take(buckets, name, 0.0).allowed

    assert [let_in(name) for name in ("a", "a", "b", "b", "a")] == [True, False, True, False, False]
    assert let_in("c"), "b is forgotten: it was used longest ago"
    assert not let_in("a")
    assert let_in("b")


@given(st.sets(st.text("abc", min_size=1, max_size=6), max_size=40), st.integers(1, 7), st.booleans())
def test_pages_give_every_row_once(names: set[str], limit: int, by_name: bool) -> None:
    rows, cursor, seen = sorted(names), "", []
    for _ in range(len(rows) + 1):
        taken, cursor = page(rows, str, cursor=cursor, limit=limit, by_name=by_name)
        assert len(taken) <= limit
        seen += taken
        if not cursor:
            break
    assert seen == rows


def test_a_row_that_goes_between_two_pages() -> None:
    _, cursor = page(["a", "b", "c"], str, cursor="", limit=2, by_name=True)
    assert page(["a", "c"], str, cursor=cursor, limit=2, by_name=True) == (["c"], "")
    with pytest.raises(InvalidInput, match="gone"):
        page(["a", "c"], str, cursor=cursor, limit=2, by_name=False)
    for wrong in ("x", "====", "YWZ0ZXI", "Ω", "A" * 300):
        with pytest.raises(InvalidInput):
            page(["a"], str, cursor=wrong, limit=1, by_name=True)


@pytest.mark.parametrize("cls", ERROR_CLASSES)
def test_every_typed_error_has_its_answer_with_its_status(cls: type) -> None:
    made = from_typed(cls("what happened", code="why", remedy="do this", fact=7))
    assert (made.status, CODES[made.code].status) == (cls.http_status, cls.http_status)
    if cls is InvariantBroken:
        assert made.body() == {"error": {"code": "INTERNAL", "message": "internal error", "details": {}}}
    else:
        assert made.body()["error"]["details"] == {"reason": "why", "remedy": "do this", "fact": "7"}
    assert ("Retry-After" in made.headers) == issubclass(cls, Unavailable)


def test_figures() -> None:
    def node(state: int, attached: bool) -> orchestrator_pb2.NodeView:
        return orchestrator_pb2.NodeView(kind=membership_pb2.NODE_KIND_PNODE, state=state, attached=attached)  # type: ignore[arg-type]

    orchestrator = orchestrator_pb2.NodeView(kind=membership_pb2.NODE_KIND_ORCHESTRATOR, attached=True)
    states = [model_pb2.JOB_STATE_COMPLETED] * 3 + [
        model_pb2.JOB_STATE_FAILED,
        model_pb2.JOB_STATE_QUEUED,
        model_pb2.JOB_STATE_RUNNING,
    ]
    busy = orchestrator_pb2.JobView(job_id="j", state=model_pb2.JOB_STATE_RUNNING, num_batches=9)
    for rate, learned in ((2.0, 5), (3.0, 4)):
        vnode = busy.vnodes.add()
        vnode.report.num_learned = learned
        vnode.replicas.add().report.rate = rate
    figures = orchestrator_pb2.ServingFigures.DESCRIPTOR.fields
    told = {field.name: number for number, field in enumerate(figures, 10) if field.name != "failed"}
    served = orchestrator_pb2.ServingFigures(failed={"busy": 7}, **told)  # type: ignore[arg-type]
    passed = {field.name: number for number, field in enumerate(orchestrator_pb2.ProxyFigures.DESCRIPTOR.fields, 90)}
    status = orchestrator_pb2.GetStatusResponse(
        node_id="o", holder_id="h", serving=served, proxied=orchestrator_pb2.ProxyFigures(**passed)
    )
    stats = stats_of(
        as_of_unix_ms=1, network_name="n", status=status,
        nodes=[node(orchestrator_pb2.NODE_STATE_ACTIVE, True), node(orchestrator_pb2.NODE_STATE_OFFLINE, False), orchestrator],
        jobs=[orchestrator_pb2.JobView(state=state) for state in states], at_work=[busy], seconds=[0.1 * n for n in range(1, 101)],
    )  # fmt: skip
    assert (stats.nodes_by_state["NODE_STATE_ACTIVE"], stats.num_attached, stats.num_orchestrators) == (1, 1, 1)
    assert (stats.queue_depth, stats.num_ended, stats.success_rate, stats.failure_rate) == (1, 4, 0.75, 0.25)
    assert (stats.training[0].batches_per_s, stats.training[0].num_learned) == (2.0, 4)
    assert (stats.request_seconds.p50, stats.request_seconds.p95) == (pytest.approx(5.0), pytest.approx(9.5))
    assert quantile([], 0.5) == 0.0
    shown = Metrics().rendered(stats).decode()
    families = {line.split()[2].removesuffix("_total") for line in shown.splitlines() if line.startswith("# TYPE")}
    assert {name.removesuffix("_created") for name in families} == set(CATALOGUE), "the catalogue names every family, and no other"
    for family, number in [
        *((SERVING[field], number) for field, number in told.items()),
        *((PROXIED[field], number) for field, number in passed.items()),
    ]:
        assert f'{family}{{orchestrator="o"}} {float(number)}' in shown, "every figure that an orchestrator tells is shown"
    assert 'dcnr_questions_failed{code="busy",orchestrator="o"} 7.0' in shown


def test_a_question_is_asked_once_for_all_who_wait() -> None:
    async def story() -> None:
        clock, asked, go = Hand(), [0], asyncio.Event()
        fresh = Fresh(clock, max_kept=2)

        async def ask() -> int:
            asked[0] += 1
            await go.wait()
            return asked[0]

        async def fails() -> int:
            raise Unavailable("away")

        waiting = [asyncio.create_task(fresh.get("k", ask)) for _ in range(5)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        go.set()
        assert await asyncio.gather(*waiting[1:]) == [1] * 4
        assert await fresh.get("k", ask) == 1, "still fresh"
        clock.now += FRESH_S * 2
        assert await fresh.get("k", ask) == 2
        assert [await fresh.get("now", ask, NOW_S) for _ in range(2)] == [3, 4]
        for _ in range(2):
            with pytest.raises(Unavailable):
                await fresh.get("broken", fails)
        for name in ("x", "y"):
            await fresh.get(name, ask, FOR_EVER_S)
        assert await fresh.get("k", ask, FOR_EVER_S) == 7, "no more than two are kept"

    asyncio.run(story())


def test_a_feed_goes_on_where_its_connection_was_closed_by_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC then cancels the call, which is no end of the feed; an end of the feed is one."""
    monkeypatch.setattr("gateway.feeds.AGAIN_S", 0.0)
    begun = 0

    async def source() -> AsyncIterator[Item]:
        nonlocal begun
        begun += 1
        if begun == 1:
            raise asyncio.CancelledError
        yield Item("event", {}, "one")

    async def run() -> None:
        feed = Feed(source)
        await asyncio.wait_for(feed.run(), 30)
        assert feed.ended
        assert [frame.kind for frame in feed.since(0, 0)[0]] == ["event"]

    asyncio.run(run())
    assert begun == 2
