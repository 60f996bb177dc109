"""Goal: who contributed is read from the plans of a job once, however many checkpoints are judged at a time, and an honest merge is never refused for that."""

from __future__ import annotations

import asyncio

import pytest

from dcnr.errors import NotFound, Refused
from dcnr.v1 import model_pb2
from orchestrator.learners import Learners, Merge, Signer

JOB = "job"
PRIMARY = "middle.0"


def plan(number: int, *contributors: str) -> model_pb2.Plan:
    """Its digest is its number; one primary, and those beside it."""
    found = model_pb2.Plan(job_id=JOB, parent_digest=str(number - 1) if number else "")
    found.assignments.add(vnode="middle", replica=PRIMARY, pnode_id="p0", role=model_pb2.ROLE_PRIMARY, weight=1)
    for replica in contributors:
        found.assignments.add(vnode="middle", replica=replica, pnode_id=f"of {replica}", role=model_pb2.ROLE_CONTRIBUTOR, weight=1)
    return found


PLANS = {str(number): plan(number, f"middle.{number + 1}") for number in range(5)}


def merge(number: int) -> Merge:
    return Merge(PRIMARY, f"middle.{number + 1}", f"of middle.{number + 1}", 2)


class Reading:
    """Plans that come one after another, when they are let go."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.gate = asyncio.Event()

    async def __call__(self, digest: str) -> model_pb2.Plan:
        self.asked.append(digest)
        await self.gate.wait()
        return PLANS[digest]


def test_checks_at_one_time_read_the_same_plans_and_all_pass() -> None:
    async def story() -> None:
        learners, reading = Learners(JOB), Reading()
        checks = [asyncio.create_task(learners.check([merge(at)], PLANS["4"], "4", reading)) for at in (0, 1, 0)]
        await asyncio.sleep(0)
        reading.gate.set()
        await asyncio.gather(*checks)
        await learners.check([merge(at) for at in range(5)], PLANS["4"], "4", reading)
        assert set(reading.asked) == {"3", "2", "1", "0"}

    asyncio.run(story())


def test_a_plan_read_by_another_check_takes_no_older_plan_with_it() -> None:
    """Two newest plans are open, and two checks read the later of them: the other stays to be read."""

    async def story() -> None:
        learners, reading = Learners(JOB), Reading()
        reading.gate.set()
        await learners.check([merge(4)], PLANS["4"], "4", reading)
        reading.gate.clear()
        beside = plan(9, "middle.9")
        beside.parent_digest = "1"
        checks = [asyncio.create_task(learners.check([merge(0)], beside, "9", reading)) for _ in range(2)]
        await asyncio.sleep(0)
        reading.gate.set()
        await asyncio.gather(*checks)
        await learners.check([merge(3), merge(2)], PLANS["4"], "4", reading)

    asyncio.run(story())


def test_a_plan_of_no_known_digest_adds_its_parent_once() -> None:
    async def story() -> None:
        learners, reading = Learners(JOB), Reading()
        reading.gate.set()
        for _ in range(3):
            await learners.check([merge(4)], PLANS["4"], "", reading)
        await learners.check([merge(0)], PLANS["4"], "", reading)
        with pytest.raises(Refused):
            await learners.check([merge(7)], PLANS["4"], "", reading)
        assert reading.asked == ["3", "2", "1", "0"]

    asyncio.run(story())


@pytest.mark.parametrize(
    ("stated", "code"),
    [
        (merge(7), "unplanned_merge"),
        (Signer(PRIMARY, "of middle.1"), "unplanned_replica"),
        (Signer("middle.7", "p0"), "unplanned_replica"),
        (Signer("middle.1", "of middle.1"), "unplanned_replica"),
    ],
)
def test_what_no_plan_had_is_refused(stated: Signer | Merge, code: str) -> None:
    async def story() -> None:
        learners, reading = Learners(JOB), Reading()
        reading.gate.set()
        with pytest.raises(Refused) as caught:
            await learners.check([stated], PLANS["4"], "4", reading)
        assert caught.value.code == code
        assert reading.asked == ["3", "2", "1", "0"]

    asyncio.run(story())


def test_who_led_in_an_older_plan_signed_its_commits() -> None:
    async def story() -> None:
        learners, reading = Learners(JOB), Reading()
        reading.gate.set()
        newest = model_pb2.Plan(job_id=JOB, parent_digest="4")
        newest.assignments.add(vnode="middle", replica="middle.9", pnode_id="p9", role=model_pb2.ROLE_PRIMARY, weight=1)
        await learners.check([Signer("middle.9", "p9")], newest, "5", reading)
        assert reading.asked == []
        await learners.check([Signer("middle.9", "p9"), Signer(PRIMARY, "p0")], newest, "5", reading)
        assert reading.asked == ["4"]

    asyncio.run(story())


def test_a_plan_that_is_lost_is_no_plan() -> None:
    async def lost(digest: str) -> model_pb2.Plan:
        raise NotFound("no such object")

    async def story(stated: Signer | Merge, code: str) -> None:
        with pytest.raises(Refused, match="not in the store") as caught:
            await Learners(JOB).check([stated], PLANS["4"], "4", lost)
        assert caught.value.code == code

    asyncio.run(story(merge(0), "unplanned_merge"))
    asyncio.run(story(Signer("middle.9", "p9"), "unplanned_replica"))
