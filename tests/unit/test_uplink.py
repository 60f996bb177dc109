"""Goal: all bulk of a worker together leaves at its share of the line, no faster and no slower, whoever sends it and in whatever pieces; who has little to say
waits for one piece of each of the others at most.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine

import pytest

from dcnr.limits import MAX_CHUNK_BYTES, MIB
from pnode.merge_calls import paced
from pnode.uplink import BURST_S, MIN_CHUNK_BYTES, PACED_S, Uplink
from simulation.control_clock import SimClock
from simulation.control_loop import ProcessLoop
from simulation.kernel import Kernel, Process

RATE = 100_000.0
TINY_S = 1e-6


class Line:
    """An uplink on virtual time, and what left when."""

    def __init__(self, bytes_s: float = RATE) -> None:
        self.kernel = Kernel(1)
        self.errors: list[BaseException] = []
        self._loop = ProcessLoop(self.kernel, Process(self.kernel, "worker"), self.errors.append)
        self.uplink = Uplink(SimClock(self.kernel, 0.0, 500.0))
        self.uplink.limit(bytes_s)
        self.left: list[tuple[float, int, str]] = []

    @property
    def now_s(self) -> float:
        return self.kernel.now_s

    async def send(self, num_bytes: int, name: str = "") -> None:
        await self.uplink.take(num_bytes)
        self.left.append((self.now_s, num_bytes, name))

    def run(self, *stories: Callable[[], Coroutine[object, object, None]], for_s: float = 10_000.0) -> None:
        """All of them beside each other."""
        for story in stories:
            self._loop.spawn(story())
        self.kernel.run_until(self.now_s + for_s, lambda: False)
        assert not self.errors

    def most_in(self, window_s: float) -> int:
        """Bytes that left within any window of that length that ends with a piece; each piece takes its own time before it counts as gone."""
        return max(sum(size for at, size, _ in self.left if end - window_s < at <= end) for end, _, _ in self.left)


@pytest.mark.parametrize("num_senders", [1, 7])
def test_senders_of_all_sizes_keep_the_rate_together_and_use_all_of_it(num_senders: int) -> None:
    line, rng = Line(), random.Random(num_senders)
    sizes = [[rng.choice([1, 300, 4_096, 60_000, 250_000]) for _ in range(120)] for _ in range(num_senders)]

    def sender(mine: list[int]) -> Callable[[], Coroutine[object, object, None]]:
        async def story() -> None:
            for size in mine:
                await line.send(size)

        return story

    line.run(*(sender(mine) for mine in sizes))
    total, last_s = sum(map(sum, sizes)), line.left[-1][0]
    assert sum(size for _, size, _ in line.left) == total
    assert last_s == pytest.approx(total / RATE - BURST_S, abs=TINY_S), "the line is never idle, and only the first burst is free"
    for window_s in (0.1, 1.0, 10.0, 60.0):
        assert line.most_in(window_s) <= RATE * (window_s + BURST_S) + max(map(max, sizes))


def test_an_hour_without_bulk_is_caught_up_on_for_half_a_second_only() -> None:
    line = Line()

    async def story() -> None:
        await line.send(50_000)
        await asyncio.sleep(3600.0)
        for _ in range(100):
            await line.send(10_000)

    line.run(story)
    burst = [at for at, _, _ in line.left[1:]]
    assert sum(at - burst[0] < TINY_S for at in burst) == BURST_S * RATE / 10_000
    assert burst[-1] - burst[0] == pytest.approx(1_000_000 / RATE - BURST_S, abs=TINY_S)


def test_who_has_little_to_say_waits_for_one_piece_of_each_of_the_others() -> None:
    line, others = Line(), 4

    async def anchor() -> None:
        async for chunk in paced(bytes(40 * MIB), line.uplink, lambda num_bytes, wait_s: None):
            line.left.append((line.now_s, len(chunk), "anchor"))

    async def commit() -> None:
        for _ in range(50):
            await asyncio.sleep(5.0)
            began_s = line.now_s
            await line.send(500, "commit")
            assert line.now_s - began_s <= others * PACED_S + 500 / RATE + TINY_S

    line.run(*[anchor] * others, commit, for_s=600.0)
    assert sum(name == "commit" for _, _, name in line.left) == 50
    assert sum(size for _, size, _ in line.left) == pytest.approx(RATE * 600.0, rel=0.01), "and the bulk has the rest of the line"


def test_a_new_limit_holds_from_the_next_piece_on_and_none_waits_for_nothing() -> None:
    line = Line(0.0)

    async def story() -> None:
        for _ in range(1000):
            await line.send(MIB)
        assert line.now_s == 0.0
        line.uplink.limit(RATE)
        await asyncio.sleep(60.0)
        for _ in range(10):
            await line.send(50_000)
        assert line.now_s == pytest.approx(60.0 + 500_000 / RATE - BURST_S, abs=TINY_S)
        line.uplink.limit(RATE / 10)
        began_s = line.now_s
        await line.send(50_000)
        assert line.now_s - began_s == pytest.approx(10 * 50_000 / RATE, abs=TINY_S)
        line.uplink.limit(-1.0)
        await line.send(100 * MIB)
        assert line.now_s - began_s == pytest.approx(10 * 50_000 / RATE, abs=TINY_S)

    line.run(story)
    assert len(line.left) == 1012


@pytest.mark.parametrize(
    ("bytes_s", "chunk"), [(0.0, MAX_CHUNK_BYTES), (1.0, MIN_CHUNK_BYTES), (RATE, 100_000), (1e12, MAX_CHUNK_BYTES)]
)
def test_a_piece_takes_a_second_of_the_line_at_most(bytes_s: float, chunk: int) -> None:
    assert Line(bytes_s).uplink.chunk_bytes == chunk
