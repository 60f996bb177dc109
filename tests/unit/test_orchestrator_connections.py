"""Goal: who comes and goes leaves no connections at whoever called it, who does not know a caller ends none of its calls, who is silent is tried seldom."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from call_rig import GivenCall

from dcnr.client import MAX_GONE, Orchestrators
from dcnr.errors import Corrupt, DcnrError, NotFound, Refused, Unavailable
from dcnr.ids import NodeId
from dcnr.rpc.errors import status_of, trailing_metadata_of
from pnode.control import CROWDED_PAUSE_S, FIRST_PAUSE_S, LONGEST_PAUSE_S, attached_first, longest_pause, pause_after
from pnode.links import RETRY_MAX_S, RETRY_MIN_S, STEADY_S, wait_after


def test_only_the_newest_few_connections_to_nodes_that_are_known_no_more_are_kept() -> None:
    async def story() -> None:
        now_known, open_ = list[NodeId](), set[NodeId]()

        async def connect(node_id: NodeId, addresses: object) -> Any:
            async def close() -> None:
                open_.remove(node_id)

            open_.add(node_id)
            return SimpleNamespace(closed=False, close=close)

        dialer: Any = SimpleNamespace(connect=connect)
        orchestrators = Orchestrators(dialer, lambda: [(node_id, ()) for node_id in now_known])
        lasting, coming = NodeId("f" * 40), [NodeId(f"{number:040x}") for number in range(100)]
        for node_id in (lasting, *coming):
            now_known[:] = [lasting, node_id]
            await orchestrators.connection(node_id, ())
        assert open_ == {lasting, *coming[-1 - MAX_GONE :]}
        await orchestrators.close()
        assert not open_

    asyncio.run(story())


def test_who_opens_connections_at_once_does_not_trip_over_what_the_others_close() -> None:
    async def story() -> None:
        gone, open_ = [NodeId(f"{number:040x}") for number in range(MAX_GONE + 4)], set[NodeId]()
        new = [NodeId(f"{number:040x}") for number in range(100, 103)]
        now_known = [*gone]

        async def connect(node_id: NodeId, addresses: object) -> Any:
            async def close() -> None:
                open_.remove(node_id)
                await asyncio.sleep(0)  # as a channel takes a turn of the loop

            open_.add(node_id)
            return SimpleNamespace(closed=False, close=close)

        dialer: Any = SimpleNamespace(connect=connect)
        orchestrators = Orchestrators(dialer, lambda: [(node_id, ()) for node_id in now_known])
        for node_id in gone:
            await orchestrators.connection(node_id, ())
        now_known[:] = new
        await asyncio.gather(*(orchestrators.connection(node_id, ()) for node_id in new))
        assert open_ == {*new, *gone[-MAX_GONE:]}

    asyncio.run(story())


FIRST, SECOND = NodeId("1" * 40), NodeId("2" * 40)
UNKNOWN = Unavailable("who is that", code="unknown_caller", remedy="attach first")
AWAY = Unavailable("the store is away", code="store_unavailable")
DEAD = Unavailable("no answer", code="unreachable")
ELSEWHERE, WRONG = Refused("not placed there", code="not_hosted"), Refused("not yours", code="not_allowed")
NOT_THERE, DAMAGED = NotFound("no such thing", code="job_not_found"), Corrupt("not what it should be", code="wrong_digest")


def asked(answers: dict[NodeId, str | DcnrError]) -> tuple[NodeId, str]:
    """Who answers, and what, where each orchestrator says this."""

    async def connect(node_id: NodeId, addresses: object) -> Any:
        async def call(method: object, request: object, timeout_s: float) -> str:
            answer = answers[node_id]
            if isinstance(answer, DcnrError):
                raise answer
            return answer

        async def close() -> None:
            return None

        return SimpleNamespace(closed=False, channel=None, call=call, close=close)

    dialer: Any = SimpleNamespace(connect=connect)
    orchestrators = Orchestrators(dialer, lambda: [(node_id, ()) for node_id in answers])
    return asyncio.run(orchestrators.answered(lambda channel: SimpleNamespace(Grant=None), "Grant", None))


def test_where_one_does_not_know_the_caller_the_next_is_asked() -> None:
    assert asked({FIRST: UNKNOWN, SECOND: "granted"}) == (SECOND, "granted")


def test_where_one_does_not_see_the_caller_in_the_plan_the_next_is_asked() -> None:
    """Its view may lag behind, for as long as the store is slow for it alone."""
    assert asked({FIRST: ELSEWHERE, SECOND: "granted"}) == (SECOND, "granted")


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        (UNKNOWN, UNKNOWN, UNKNOWN), (UNKNOWN, AWAY, AWAY), (AWAY, UNKNOWN, AWAY),
        (ELSEWHERE, ELSEWHERE, ELSEWHERE), (ELSEWHERE, DEAD, ELSEWHERE), (DEAD, ELSEWHERE, ELSEWHERE),
        (ELSEWHERE, UNKNOWN, ELSEWHERE), (UNKNOWN, ELSEWHERE, ELSEWHERE), (ELSEWHERE, AWAY, AWAY), (AWAY, ELSEWHERE, AWAY),
        (WRONG, "granted", WRONG), (NOT_THERE, DEAD, NOT_THERE), (DEAD, NOT_THERE, NOT_THERE), (NOT_THERE, AWAY, AWAY),
        (AWAY, NOT_THERE, AWAY), (NOT_THERE, UNKNOWN, NOT_THERE), (DAMAGED, DAMAGED, DAMAGED),
    ],
)  # fmt: skip
def test_where_nobody_does_better_the_caller_hears_what_to_do(first: DcnrError, second: DcnrError | str, told: DcnrError) -> None:
    """What one says that knows the caller comes first, then what one says that does not see it in the plan."""
    with pytest.raises(DcnrError) as raised:
        asked({FIRST: first, SECOND: second})
    assert raised.value is told


@pytest.mark.parametrize("first", [NOT_THERE, DAMAGED])
def test_what_one_does_not_find_or_calls_damaged_another_one_may_have(first: DcnrError) -> None:
    """Goal: one that is stale, or lies, makes nobody believe that something is not there."""
    assert asked({FIRST: first, SECOND: "granted"}) == (SECOND, "granted")


class Told(grpc.aio.AioRpcError):
    """An error as a stream brings it."""

    def __init__(self, error: DcnrError) -> None:
        super().__init__(
            status_of(error), grpc.aio.Metadata(), grpc.aio.Metadata(*trailing_metadata_of(error)), details=error.message
        )


@pytest.mark.parametrize("first", [NOT_THERE, DAMAGED, ELSEWHERE])
def test_a_stream_that_one_does_not_find_another_one_gives(first: DcnrError) -> None:
    async def story() -> None:
        asked = list[NodeId]()

        async def connect(node_id: NodeId, addresses: object) -> Any:
            async def read(request: object, **_: object) -> AsyncIterator[str]:
                asked.append(node_id)
                if node_id == FIRST:
                    raise Told(first)
                yield "a part"

            async def fresh() -> tuple[()]:
                return ()

            return SimpleNamespace(
                closed=False, channel=lambda *said, **given: GivenCall(read(*said, **given)), fresh_metadata=fresh
            )

        dialer: Any = SimpleNamespace(connect=connect)
        both: list[tuple[NodeId, tuple[str, ...]]] = [(FIRST, ()), (SECOND, ())]
        orchestrators = Orchestrators(dialer, lambda: both)

        async def parts() -> list[str]:
            stream = orchestrators.stream(lambda channel: SimpleNamespace(Read=channel), "Read", None, timeout_s=1.0)
            return [part async for part in stream]

        assert await parts() == ["a part"]
        assert asked == [FIRST, SECOND]
        both.pop()
        with pytest.raises(type(first)):
            await parts()

    asyncio.run(story())


def test_bulk_goes_first_to_those_that_this_pnode_is_attached_to() -> None:
    known = [(NodeId(str(number) * 40), (f"10.0.0.{number}:7700",)) for number in range(5)]
    assert attached_first(known, (known[3][0], known[4][0])) == [*known[3:], *known[:3]]
    assert attached_first(known, ()) == known


@pytest.mark.parametrize("lasted_s", [0.01, LONGEST_PAUSE_S + 0.1, 60.0])
def test_an_orchestrator_that_welcomes_nobody_is_tried_more_and_more_seldom_however_long_a_try_takes(lasted_s: float) -> None:
    pauses = [FIRST_PAUSE_S]
    for _ in range(6):
        pauses.append(pause_after(pauses[-1], lasted_s, attached=False, longest_s=LONGEST_PAUSE_S))
    assert pauses[:4] == [0.25, 0.5, 1.0, 2.0]
    assert pauses[-1] == LONGEST_PAUSE_S


def test_a_stream_that_was_of_use_is_opened_again_at_once_and_one_that_breaks_as_soon_as_it_is_open_is_not() -> None:
    assert pause_after(4.0, LONGEST_PAUSE_S + 1.0, attached=True, longest_s=LONGEST_PAUSE_S) == FIRST_PAUSE_S
    assert pause_after(2.0, 0.5, attached=True, longest_s=LONGEST_PAUSE_S) == 4.0


@pytest.mark.parametrize(
    ("told_s", "longest_s"),
    [(0.0, LONGEST_PAUSE_S), (100.0, 100.0), (1e9, CROWDED_PAUSE_S), (-1.0, LONGEST_PAUSE_S), (math.nan, LONGEST_PAUSE_S)],
)
def test_an_orchestrator_with_very_many_pnodes_has_them_come_back_in_longer_and_longer_pauses_that_have_an_end(
    told_s: float, longest_s: float
) -> None:
    """Ten thousand that come again every five seconds are more than it can open sessions for, so that it would have none of them for ever."""
    pauses = [FIRST_PAUSE_S]
    for _ in range(12):
        pauses.append(pause_after(pauses[-1], 0.5, attached=False, longest_s=longest_pause(told_s)))
    assert pauses[:4] == [0.25, 0.5, 1.0, 2.0], "a single stream that broke is opened as soon as before"
    assert pauses[-1] == longest_s


def test_a_worker_that_cannot_be_dialled_is_dialled_more_and_more_seldom_however_long_that_takes() -> None:
    wait_s = RETRY_MIN_S
    for _ in range(8):
        wait_s = wait_after(wait_s, STEADY_S + 1.0, was_up=False)
    assert wait_s == RETRY_MAX_S
    assert wait_after(wait_s, STEADY_S + 1.0, was_up=True) == RETRY_MIN_S
    assert wait_after(1.0, 0.5, was_up=True) == 2.0
