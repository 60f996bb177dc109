"""Goal: large weights of siblings come one after the other, and those first of which most has come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from test_merge_desk import ANCHOR, DATA, HELPER, Counter, delta, opening, run

from dcnr.errors import Unavailable
from pnode.merge_desk import Answer
from vnode.vocabulary import Verdict


def test_large_weights_come_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every sibling of a large VNode would put its weights into this machine's memory at once."""
    monkeypatch.setattr("pnode.merge_desk.MAX_WEIGHTS_BYTES", len(DATA) + 1)

    async def story(counter: Counter) -> None:
        first = asyncio.ensure_future(counter.ask(opening(delta())))
        await counter.until_heard(1)
        other = opening(delta(replica="a.2"), contributor="a.2")
        with pytest.raises(Unavailable) as refused:
            await counter.ask(other)
        assert refused.value.code == "overloaded"
        alone = asyncio.ensure_future(counter.ask(opening(contributor="a.2")))
        await counter.until_heard(2)
        for heard in counter.heard:
            counter.desk.answer(heard.request, Verdict.MERGED, "", "", ANCHOR)
        await first
        await alone
        second = asyncio.ensure_future(counter.ask(other))
        await counter.until_heard(3)
        counter.desk.answer(counter.heard[2].request, Verdict.MERGED, "", "", ANCHOR)
        assert (await second).sequence == 4

    run(story)


def test_of_large_weights_those_go_on_of_which_most_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever announces much and sends little keeps nobody out, and what is here at once stays bounded."""
    monkeypatch.setattr("pnode.merge_desk.MAX_WEIGHTS_BYTES", len(DATA) - 1)

    async def story(counter: Counter) -> None:
        more, begun = asyncio.Event(), asyncio.Event()

        async def slow(size_bytes: int) -> AsyncIterator[bytes]:
            yield DATA[:1]
            begun.set()
            await more.wait()
            yield DATA[1:2]

        async def trickled() -> None:
            async with counter.desk.asked(opening(delta()), HELPER.node_id, slow):
                raise AssertionError("too much was here")

        async def whole(size_bytes: int) -> AsyncIterator[bytes]:
            yield DATA[:-1]
            more.set()
            with pytest.raises(Unavailable) as refused:
                await trickling
            assert refused.value.code == "overloaded"
            yield DATA[-1:]

        async def brought() -> Answer:
            async with counter.desk.asked(opening(delta(replica="a.2"), contributor="a.2"), HELPER.node_id, whole) as answer:
                return answer

        trickling = asyncio.ensure_future(trickled())
        await begun.wait()
        bringing = asyncio.ensure_future(brought())
        await counter.until_heard(1)
        counter.desk.answer(counter.heard[0].request, Verdict.MERGED, "", "", ANCHOR)
        assert (await bringing).verdict is Verdict.MERGED

    run(story)
