"""Goal: a picture of a job is built once for all who watch it in an interval, and no stranger watches often, or much."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from dcnr.errors import Unavailable
from dcnr.v1 import common_pb2, orchestrator_pb2
from orchestrator.access import Caller
from orchestrator.watchers import AT_ONCE, PER_CALLER, PER_SUBNET, Watchers, interval_of

JOB = ("m", "job")


def caller(number: int = 0, *, pnode: bool = False, maintainer: bool = False) -> Caller:
    return Caller(f"{number:040x}", maintainer=maintainer, orchestrator=False, pnode=pnode)


class Build:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> orchestrator_pb2.WatchJobResponse:
        self.count += 1
        return orchestrator_pb2.WatchJobResponse(job=orchestrator_pb2.JobView(num_batches=self.count))


def test_many_watchers_one_picture_per_interval() -> None:
    watchers, build = Watchers(), Build()
    with ExitStack() as places:
        for number in range(100):
            places.enter_context(watchers.place(caller(number), str(number), JOB, is_bounded=True))
        for beat in range(5):
            pictures = [watchers.picture(JOB, 1.0, beat + number / 1000, build) for number in range(100)]
            assert len({id(one) for one in pictures}) == 1
        assert build.count == 5
        other = watchers.picture(("m", "other"), 1.0, 4.5, build)
        assert other.plain.job.num_batches == 6
    assert watchers.picture(JOB, 1.0, 4.5, build).plain.job.num_batches == 7, "nothing is kept of what nobody watches"


def test_who_has_heard_the_same_gets_the_same_message() -> None:
    asked: list[int] = []

    def events(after: int) -> list[common_pb2.Event]:
        asked.append(after)
        return [common_pb2.Event(sequence=number) for number in range(after + 1, 8)]

    picture = Watchers().picture(JOB, 1.0, 0.0, Build())
    assert picture.message(5, events) is picture.message(5, events)
    assert [one.sequence for one in picture.message(6, events).events] == [7]
    assert asked == [5, 6]
    for after in range(1000):
        picture.message(after, events)
    assert len(picture._messages) < 100


def test_streams_are_bounded_per_caller_per_subnet_and_in_all() -> None:
    watchers = Watchers()
    with ExitStack() as places:

        def enter(who: Caller, subnet: str, *, is_bounded: bool = True) -> None:
            places.enter_context(watchers.place(who, subnet, JOB, is_bounded=is_bounded))

        for _ in range(PER_CALLER):
            enter(caller(1), "there")
        with pytest.raises(Unavailable):
            enter(caller(1), "elsewhere")
        for number in range(PER_SUBNET - PER_CALLER):
            enter(caller(2 + number), "there")
        with pytest.raises(Unavailable):
            enter(caller(99), "there")
        for number in range(AT_ONCE - PER_SUBNET):
            enter(caller(100 + number), str(number))
        with pytest.raises(Unavailable):
            enter(caller(9), "nowhere")
        enter(caller(10, maintainer=True), "there", is_bounded=False)
    with watchers.place(caller(1), "there", JOB, is_bounded=True):
        pass
    assert not watchers._callers
    assert not watchers._subnets


def test_strangers_watch_at_most_once_a_second() -> None:
    assert [interval_of(caller(), wanted_s) for wanted_s in (0.0, 0.01, 5.0, 1e9)] == [1.0, 1.0, 5.0, 60.0]
    assert interval_of(caller(pnode=True), 0.01) == 1.0
    assert interval_of(caller(maintainer=True), 0.01) == 0.2
