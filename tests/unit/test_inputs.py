"""Goal: shards of evaluations are fetched while somebody who has them is still there, and where they are missing training does not wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dcnr.errors import Unavailable
from dcnr.ids import Digest
from pnode.inputs import EVALUATION_WAIT_S, Inputs
from vnode.vocabulary import TRAIN_LANE, Lane

VALIDATION = Lane("validation", 3)


class Samples:
    """Two batches per shard; only what was declared present can be read."""

    def __init__(self) -> None:
        self.here: set[str] = set()

    def read_input(self, lane: Lane, batch: int) -> np.ndarray:
        return np.zeros(1)

    def read_target(self, lane: Lane, batch: int) -> np.ndarray:
        return np.zeros(1)

    def missing(self, lane: Lane, batch: int, *, with_input: bool) -> Sequence[Digest]:
        return [Digest(name) for name in [f"{lane.split}{batch // 2}"] if name not in self.here]

    def present(self, digest: Digest) -> None:
        self.here.add(digest)


def test_shards_of_evaluations_are_asked_for_when_training_has_begun() -> None:
    async def story() -> None:
        wishes: list[str] = []
        with ThreadPoolExecutor(1) as executor:
            inputs = Inputs(Samples(), executor, wishes.extend, with_input=False, evaluations={"validation": 5, "test": 1})
            first = asyncio.create_task(inputs.ready(TRAIN_LANE, 1))
            await asyncio.sleep(0)
            assert wishes == ["train0"], "what training needs comes first"
            inputs.shard_ready("train0", "")
            await first
            await inputs.ready(TRAIN_LANE, 1)
            assert sorted(set(wishes)) == ["test0", "train0", "validation0", "validation1", "validation2"]

    asyncio.run(story())


def test_an_evaluation_without_its_shards_fails_soon() -> None:
    async def story() -> None:
        with ThreadPoolExecutor(1) as executor:
            inputs = Inputs(Samples(), executor, lambda digests: None, with_input=False)
            began_s = asyncio.get_running_loop().time()
            with pytest.raises(Unavailable, match="shards are missing"):
                await inputs.ready(VALIDATION, 0, EVALUATION_WAIT_S)
            assert asyncio.get_running_loop().time() - began_s < EVALUATION_WAIT_S + 2.0

    asyncio.run(story())
