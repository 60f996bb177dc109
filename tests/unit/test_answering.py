"""Goal: where one machine of a way dies, the next way is the same one but for that machine; who breaks one way after the other does not stay for ever."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from dcnr.specs import TensorSpec
from dcnr.stages import INPUT, Stage, StageInput
from dcnr.system import SystemClock
from dcnr.v1 import identity_pb2
from orchestrator.answering import Answering
from orchestrator.figures import Figures
from orchestrator.questions import Question
from orchestrator.routing import Avoid, Candidate, Table, Way
from orchestrator.trying import Answer, WayFailed

SPEC = TensorSpec("float32", (4,))
STAGES = tuple(
    Stage(name, "linear", {}, (before,), (SPEC,), (), (StageInput(before, SPEC),), "cross_entropy", {}, "sgd", {}, SPEC, SPEC, 4)
    for name, before in zip("abcd", (INPUT, "a", "b", "c"), strict=True)
)
TABLE = Table(
    "m", STAGES, {one.id: [Candidate(name + one.id, one.id, identity_pb2.Envelope(), state_digest="d") for name in "pqrs"] for one in STAGES}
)  # fmt: skip
NOTHING: Any = None


class Breaking(Answering):
    """The first way loses the machine of its third stage; the next one answers."""

    def __init__(self, seed: int) -> None:
        shared: Any = SimpleNamespace(clock=SystemClock())
        super().__init__(shared, streams=NOTHING, workers=NOTHING, rng=random.Random(seed), figures=Figures())
        self.ways: list[Way] = []

    async def _try(self, model: str, question: Question, way: Way, deadline_s: float) -> Answer:
        self.ways.append(way)
        if len(self.ways) == 1:
            raise WayFailed("killed", code="stream_broken", pnode_id=way.hops[2].pnode_id, is_gone=True)
        return NOTHING  # type: ignore[no-any-return]


def test_the_rest_of_a_broken_way_stays() -> None:
    for seed in range(20):
        answering = Breaking(seed)
        asyncio.run(answering.answered("m", lambda: [TABLE], Question({}, 1, "d", True, 30.0, 1), Avoid()))
        broken, next_one = ([hop.pnode_id for hop in way.hops] for way in answering.ways)
        assert [one == other for one, other in zip(broken, next_one, strict=True)] == [True, True, False, True]


class Lying(Breaking):
    """The machine that computes the first stage of the first way says each time that the next stage is at fault, or that it has forgotten the text."""

    def __init__(self, seed: int, code: str) -> None:
        super().__init__(seed)
        self._code = code

    async def _try(self, model: str, question: Question, way: Way, deadline_s: float) -> Answer:
        self.ways.append(way)
        liar = self.ways[0].hops[0].pnode_id
        if liar in way.pnodes:
            raise WayFailed("lied", code=self._code, pnode_id=liar if self._code == "no_cache" else way.hops[1].pnode_id)
        return NOTHING  # type: ignore[no-any-return]


@pytest.mark.parametrize("code", ["no_cache", "bad_frame"])
def test_who_breaks_one_way_after_the_other_does_not_stay(code: str) -> None:
    for seed in range(20):
        answering = Lying(seed, code)
        asyncio.run(answering.answered("m", lambda: [TABLE], Question({}, 1, "d", True, 30.0, 1), Avoid()))
        assert len(answering.ways) < 16
