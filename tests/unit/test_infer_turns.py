"""Goal: a question that comes while the calls of a place end has a call of its own; nobody waits for a call that is over."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from dcnr.system import SystemClock
from pnode.infer_places import Wish
from pnode.infer_together import Together, Waiting
from pnode.infer_turns import AT_ONCE, Turns
from pnode.infer_words import Made

ASKED = [Made("a", np.zeros((1, 2), np.float32))]
SECONDS = 20.0


def test_a_question_that_comes_in_the_step_in_which_all_calls_end_is_answered() -> None:
    async def story() -> None:
        gate, all_began, began = asyncio.Event(), asyncio.Event(), list[int]()
        compute: Any = SimpleNamespace(forward=lambda batch, inputs, mode: SimpleNamespace(output=inputs[0]))
        together = Together(compute, 1, SystemClock())

        async def call() -> Sequence[Waiting]:
            began.append(len(began))
            if len(began) == AT_ONCE:
                all_began.set()
            await gate.wait()
            return together.work(3)

        turns = Turns(together, call)

        async def late() -> None:
            await gate.wait()
            await turns.computed(ASKED, Wish())

        async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(turns.computed(ASKED, Wish()))
            await all_began.wait()
            group.create_task(late())  # behind all calls at the gate, in the same step of the loop
            await asyncio.sleep(0)
            gate.set()
        assert len(began) == AT_ONCE + 1

    asyncio.run(story())
