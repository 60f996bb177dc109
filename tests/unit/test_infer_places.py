"""Goal: questions at a training replica wait for one step, a step for few questions, and whoever waits when the replica ends, or leaves, harms nobody."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dcnr.errors import NotFound
from dcnr.system import SystemClock
from pnode.infer_live import LivePlace
from pnode.infer_places import Wish
from pnode.infer_reads import Reads
from pnode.infer_turns import AT_ONCE
from pnode.infer_words import Made
from pnode.pace import Pace

CLOCK = SystemClock()
ASKED = [Made("a", np.zeros((1, 2), np.float32))]
NUM_QUESTIONS = 3 * AT_ONCE


class Replica:
    """A replica's thread, which a gate holds up, with the order of what ran on it."""

    def __init__(self) -> None:
        self.thread, self.gate, self.ran = ThreadPoolExecutor(1), threading.Event(), list[str]()
        self.thread.submit(self.gate.wait)
        self.num_calls = 0
        prepared: Any = SimpleNamespace(stage=SimpleNamespace(id="a"), reads=Reads({"a": ("a",)}), batch_size=8, compute=self)
        host: Any = SimpleNamespace(model="m", num_learned=3, on_thread=self.on_thread)
        self.place = LivePlace(prepared, host, Pace(CLOCK, time.process_time), CLOCK)

    def forward(self, batch: int, inputs: Any, mode: Any) -> Any:
        """As `vnode.compute.Compute`."""
        self.ran.append("question")
        return SimpleNamespace(output=inputs[0])

    def readout(self, output: Any) -> Any:
        """As `vnode.compute.Compute`."""
        return output

    async def on_thread(self, work: Callable[[], Any]) -> tuple[Any, float]:
        """As `pnode.host.ReplicaHost`."""
        self.num_calls += 1
        return await asyncio.get_running_loop().run_in_executor(self.thread, work), 0.0

    def asked(self, group: asyncio.TaskGroup) -> list[asyncio.Task[Any]]:
        return [group.create_task(self.place.compute(ASKED, Wish())) for _ in range(NUM_QUESTIONS)]


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_step_waits_for_few_questions_and_every_question_is_answered() -> None:
    async def story() -> None:
        replica = Replica()
        async with asyncio.TaskGroup() as group:
            asked = replica.asked(group)
            await settled()
            step = asyncio.get_running_loop().run_in_executor(replica.thread, replica.ran.append, "step")
            replica.gate.set()
            await step
        assert replica.ran.index("step") <= AT_ONCE
        assert [task.result().step for task in asked] == [3] * NUM_QUESTIONS
        replica.thread.shutdown()

    asyncio.run(story())


def test_no_more_calls_are_queued_than_what_waits_needs() -> None:
    async def story() -> None:
        replica = Replica()
        async with asyncio.TaskGroup() as group:
            asked = replica.asked(group)
            answers = [group.create_task(replica.place.compute(ASKED, Wish(answers=True)))]
            await settled()
            assert replica.num_calls == 2  # 13 samples, 8 of them a batch
            replica.gate.set()
        assert [task.result().num_together for task in asked] == [8] * 8 + [4] * 4
        assert answers[0].result().num_together == 1
        assert replica.num_calls == 3
        replica.thread.shutdown()

    asyncio.run(story())


def test_who_leaves_is_not_waited_for_and_takes_nobody_along() -> None:
    async def story() -> None:
        replica = Replica()
        async with asyncio.TaskGroup() as group:
            asked = replica.asked(group)
            await settled()
            for task in asked[::2]:
                task.cancel()
            await settled()
            replica.gate.set()
        assert [task.result().num_together for task in asked[1::2]] == [6] * 6
        replica.thread.shutdown()

    asyncio.run(story())


def test_who_waits_when_the_replica_ends_hears_that_it_is_not_here() -> None:
    async def story() -> None:
        replica = Replica()

        async def refused() -> None:
            with pytest.raises(NotFound) as gone:
                await replica.place.compute(ASKED, Wish())
            assert gone.value.code == "not_here"

        async with asyncio.TaskGroup() as group:
            for _ in range(NUM_QUESTIONS):
                group.create_task(refused())
            await settled()
            replica.thread.shutdown(wait=False, cancel_futures=True)
            replica.gate.set()
        assert replica.ran == []

    asyncio.run(story())
