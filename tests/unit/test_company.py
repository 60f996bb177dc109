"""Goal: questions wait for each other only while every machine of their way has something to do, never for long, and each of them is sent exactly once, in
order, unless nobody waits for it any more.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcnr.question_strands import Room, Strands
from dcnr.question_wire import Chunk, Words, read_messages
from dcnr.system import SystemClock
from dcnr.v1 import vnode_pb2
from orchestrator import company
from orchestrator.company import MOST_S, SHARE, Company, Fits
from orchestrator.infer_streams import InferStream

MACHINES = 3
SMALL = Fits(num_samples=2, batch_size=8, num_machines=MACHINES)
WITHIN_S = 30.0
NOBODY: Any = None


def name(number: int) -> bytes:
    return number.to_bytes(16)


def busy(took_s: float = 1.0) -> tuple[Company[int], int]:
    """As many calls under way as there are machines, each of one question; and the number of the next question. One call took so long."""
    found: Company[int] = Company()
    assert found.enters(name(0), 0, SMALL, 0.0) == [0]
    assert found.over(name(0), took_s) == []
    found.waited(100.0)
    for number in range(1, MACHINES + 1):
        assert found.enters(name(number), number, SMALL, took_s) == [number]
    return found, MACHINES + 1


def test_without_load_nothing_waits() -> None:
    found: Company[int] = Company()
    for number in range(0, 30, MACHINES):
        for one in range(number, number + MACHINES):
            assert found.enters(name(one), one, SMALL, float(one)) == [one]
            assert found.due_s is None
        for one in range(number, number + MACHINES):
            assert found.over(name(one), one + 0.5) == []


def test_what_waits_goes_together_when_a_call_has_ended() -> None:
    found, number = busy()
    for one in range(number, number + 3):
        assert found.enters(name(one), one, SMALL, 1.0) == []
    assert found.over(name(2), 1.01) == [number, number + 1, number + 2]
    assert found.enters(name(number + 3), number + 3, SMALL, 1.01) == []  # they are one call, in the place of the one that ended
    assert found.over(name(number), 1.02) == found.over(name(number + 1), 1.02) == []
    assert found.over(name(number + 2), 1.02) == [number + 3]


def test_a_whole_batch_waits_for_nobody_and_no_call_is_larger() -> None:
    found, number = busy()
    whole = Fits(8, 8, MACHINES)
    assert found.enters(name(number), number, whole, 1.0) == [number]
    assert found.enters(name(number + 1), number + 1, SMALL, 1.0) == []
    assert found.enters(name(number + 2), number + 2, whole, 1.0) == [number + 1, number + 2]
    assert [found.enters(name(one), one, SMALL, 1.0) for one in range(20, 24)] == [[], [], [], [20, 21, 22, 23]]


@pytest.mark.parametrize("took_s", [0.01, 0.2, 60.0])
def test_nobody_waits_for_more_than_a_share_of_what_calls_take(took_s: float) -> None:
    found, number = busy(took_s)
    assert found.enters(name(number), number, SMALL, 100.0) == []
    due_s = 100.0 + min(MOST_S, SHARE * took_s)
    assert found.due(due_s - 1e-4) == []
    assert found.enters(name(number + 1), number + 1, SMALL, due_s - 1e-4) == []  # who comes later does not make it longer
    assert found.due_s == pytest.approx(due_s)
    assert found.due(due_s + 1e-9) == [number, number + 1]


def test_nobody_waits_where_stages_let_nobody_wait() -> None:
    found, number = busy()
    for _ in range(400):
        found.waited(0.003)
    assert found.enters(name(number), number, SMALL, 1.0) == []
    assert found.due(1.002) == []
    assert found.due(1.0031) == [number]


@given(st.lists(st.tuples(st.sampled_from(["enters", "over", "due"]), st.integers(0, 40), st.integers(1, 8)), max_size=120))
def test_each_is_sent_once_and_in_order(steps: list[tuple[str, int, int]]) -> None:
    found: Company[int] = Company()
    now_s, entered, dropped, sent = 0.0, list[int](), set[int](), list[int]()
    for number, (what, which, samples) in enumerate(steps):
        now_s += 0.01 * which
        if what == "enters":
            entered.append(number)
            sent += found.enters(name(number), number, Fits(samples, 8, MACHINES), now_s)
        elif what == "over" and entered:
            one = entered[which % len(entered)]
            dropped |= {one} if found.holds(name(one)) else set()
            sent += found.over(name(one), now_s)
        else:
            sent += found.due(now_s)
        assert not any(found.holds(name(one)) for one in sent)
    if found.due_s is not None:
        sent += found.due(found.due_s)
    assert sent == [one for one in entered if one not in dropped]


class Silent:
    """A worker that takes several messages as one and hears; a `Connection` and its call."""

    def __init__(self) -> None:
        self.channel = SimpleNamespace(stream_stream=lambda path: lambda metadata: self)
        self.heard: asyncio.Queue[list[bytes]] = asyncio.Queue()
        self._has_begun = False

    async def fresh_metadata(self) -> tuple[()]:
        return ()

    async def write(self, data: bytes) -> None:
        self.heard.put_nowait([one.request.id for one in read_messages(data) if not isinstance(one, Chunk)])

    async def read(self) -> bytes:
        if self._has_begun:
            await asyncio.Event().wait()
        self._has_begun = True
        return vnode_pb2.InferMessage(takes_several=True).SerializeToString()

    def cancel(self) -> None:
        pass

    async def close(self) -> None:
        pass


def asked(number: int) -> Words:
    return Words(vnode_pb2.InferMessage(request=vnode_pb2.InferRequest(id=name(number))))


def test_a_stream_sends_together_what_waited_and_nothing_that_nobody_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        worker: Any = Silent()
        stream = InferStream("p", worker, SystemClock(), Strands(NOBODY, "", SystemClock(), Room(0)))
        running = asyncio.create_task(stream.run())
        async with asyncio.timeout(WITHIN_S):
            assert await worker.heard.get() == [b""]  # how a stream begins
            monkeypatch.setattr(company, "MOST_S", 0.0)
            for number in range(MACHINES):
                stream.ask(asked(number), SMALL)
                assert await worker.heard.get() == [name(number)]
            await asyncio.sleep(0)
            stream.forget(name(0))
            stream.ask(asked(10), SMALL)
            assert await worker.heard.get() == [name(10)]
            stream.waited(1e6)
            monkeypatch.setattr(company, "MOST_S", 3600.0)
            monkeypatch.setattr(company, "SHARE", 1e9)
            for number in range(11, 14):
                stream.ask(asked(number), SMALL)
            stream.cancel(name(12))
            stream.forget(name(12))
            stream.ask(asked(20), None)  # has no company
            assert await worker.heard.get() == [name(20)]
            stream.forget(name(10))
            assert await worker.heard.get() == [name(11), name(13)]
            monkeypatch.setattr(company, "SHARE", 0.0)
            stream.ask(asked(14), SMALL)  # its time comes by itself
            assert await worker.heard.get() == [name(14)]
            assert worker.heard.empty()
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(story())
