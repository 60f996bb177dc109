"""Goal: checkpoints and merges together take a quarter of what was measured, never more than the owner's limit, and that limit alone holds back who leaves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.pacing import BYTES_PER_MBIT, Sent
from dcnr.limits import MIB, UPLINK_SHARE
from dcnr.settings import LimitSettings
from dcnr.v1 import local_pb2, model_pb2, orchestrator_pb2
from pnode.crew import Crew
from pnode.line import Line
from pnode.measured import WINDOW_S
from pnode.models import Hosted
from pnode.telling import Condition
from pnode.uplink import Uplink

PRIMARY, CONTRIBUTOR = model_pb2.ROLE_PRIMARY, model_pb2.ROLE_CONTRIBUTOR
RELEASING, ACTIVE = orchestrator_pb2.ASSIGNMENT_STATE_RELEASING, orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE


class Clock:
    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.now_s


def hosted(name: str, role: model_pb2.Role.ValueType = PRIMARY, siblings: int = 1, **more: Any) -> Hosted:
    others = [model_pb2.Neighbour(replica=f"{name}{index}") for index in range(siblings)]
    return Hosted(model_pb2.DesiredAssignment(replica=name, role=role, siblings=others, **more), "m")


class Rig:
    """A machine with one primary that has no siblings, unless a test has it otherwise."""

    def __init__(self, upload_mbit: float = 0.0) -> None:
        self.clock, self.now = Clock(), Condition(0.0)
        self.hosted, self.unnamed, self.told = [hosted("a.1")], set[str](), list[str]()
        self.line = Line(
            LimitSettings(upload_mbit=upload_mbit), self.clock, hosted=lambda: self.hosted, leaves=lambda: self.now.is_leaving,
            unnamed=lambda: self.unnamed, tell=lambda kind, reason: self.told.append(f"{kind}: {reason}"),
        )  # fmt: skip

    def measured(self, mbit: float, num_bytes: int = 8 * MIB, held: float = 0.0) -> None:
        seconds = num_bytes / (mbit * BYTES_PER_MBIT)
        self.line.sent(Sent(num_bytes, seconds, held * seconds))
        self.line.review()

    @property
    def rates(self) -> tuple[float, float]:
        """Of a checkpoint that begins now and of what replicas exchange, in Mbit/s as they are in force; 0: no limit."""
        return self.rates_of(8 * MIB)

    def rates_of(self, num_bytes: int) -> tuple[float, float]:
        self.line.review()
        paces = [self.line.up, *self.line.held(num_bytes)]
        checkpoints = min((pace.limit_bytes_s for pace in paces if pace.limit_bytes_s), default=0.0)
        return checkpoints / BYTES_PER_MBIT, self.line.exchange_bytes_s / BYTES_PER_MBIT


def test_nothing_measured_is_as_it_always_was() -> None:
    rig = Rig()
    assert (rig.rates, rig.line.uplink_mbit, rig.line.review()) == ((0.0, 0.0), 0.0, False)
    rig.measured(50.0, num_bytes=4 * MIB - 1)
    assert (rig.rates, rig.line.uplink_mbit, rig.told) == ((0.0, 0.0), 0.0, [])
    limited = Rig(20.0)
    assert (limited.rates, limited.line.uplink_mbit) == ((20.0, 20.0 * UPLINK_SHARE), 20.0)
    limited.measured(20.0, held=0.9)
    assert (limited.rates, limited.line.uplink_mbit) == ((20.0, 20.0 * UPLINK_SHARE), 20.0)


@pytest.mark.parametrize(
    ("roles", "rates"),
    [
        ([], (10.0, 10.0)),
        ([hosted("a.1"), hosted("b.1")], (10.0, 10.0)),
        ([hosted("a.1", siblings=3)], (5.0, 5.0)),
        ([hosted("a.1"), hosted("b.2", CONTRIBUTOR, 2)], (5.0, 5.0)),
        ([hosted("b.2", CONTRIBUTOR, 2)], (10.0, 10.0)),
    ],
    ids=["nothing", "primaries alone", "a primary that merges", "a primary, and a contributor of another", "a contributor alone"],
)
def test_the_share_is_halved_where_this_machine_does_both(roles: list[Hosted], rates: tuple[float, float]) -> None:
    rig = Rig()
    rig.hosted = roles
    rig.measured(40.0)
    assert rig.rates == rates


@pytest.mark.parametrize(
    ("upload_mbit", "measured_mbit", "rates", "told"),
    [
        (20.0, 100.0, (20.0, 5.0), 20.0),
        (20.0, 40.0, (10.0, 5.0), 20.0),
        (20.0, 8.0, (2.0, 2.0), 8.0),
        (0.0, 8.0, (2.0, 2.0), 8.0),
    ],
)
def test_the_owners_limit_is_never_passed(
    upload_mbit: float, measured_mbit: float, rates: tuple[float, float], told: float
) -> None:
    rig = Rig(upload_mbit)
    rig.measured(measured_mbit)
    assert (rig.rates, rig.line.uplink_mbit) == (rates, told)


def test_one_upload_an_hour_is_free_and_a_rate_is_told_once() -> None:
    rig = Rig()
    rig.measured(40.0)
    rig.measured(40.1)
    rig.measured(20.0)
    assert rig.rates == (10.0, 10.0)
    rig.clock.now_s += WINDOW_S + 1.0
    assert rig.rates == (0.0, 5.0), "the next checkpoint measures; what is exchanged keeps the newest rate that is known"
    rig.measured(30.0)
    assert rig.rates == (7.5, 7.5)
    assert [line.partition(" Mbit/s")[0] for line in rig.told] == [f"uplink_measured: {mbit}" for mbit in (40, 20, 30)]


def test_a_free_upload_that_measures_nothing_is_the_only_one_of_its_hour() -> None:
    """It broke off, or its line is too slow for it: those after it are held back by what was measured last, and come through."""
    rig = Rig()
    rig.measured(40.0)
    rig.clock.now_s += WINDOW_S + 1.0
    assert rig.rates_of(1000) == (10.0, 10.0), "a commit measures nothing, and takes nobody's turn"
    assert rig.rates == (0.0, 10.0)
    rig.clock.now_s += 60.0
    rig.measured(10.0, held=0.9)
    assert rig.rates == (10.0, 10.0)
    rig.clock.now_s += WINDOW_S
    assert rig.rates == (0.0, 10.0)


def test_the_worker_is_told_when_its_rate_is_another_one() -> None:
    rig = Rig()
    rig.line.sent(Sent(8 * MIB, 2.0, 0.0))
    assert [rig.line.review(), rig.line.review()] == [True, False]
    rig.hosted.append(hosted("b.2", CONTRIBUTOR, 2))
    assert [rig.line.review(), rig.line.review()] == [True, False]


LEAVING: dict[str, Any] = {
    "SIGTERM": lambda rig: setattr(rig.now, "draining", True),
    "pause": lambda rig: setattr(rig.now, "halting", True),
    "a move": lambda rig: rig.hosted.append(hosted("b.1", hand_over_s=15.0)),
    "a release": lambda rig: rig.now.worker.replicas.update(
        {"b.1": orchestrator_pb2.ReplicaReport(replica="b.1", state=RELEASING)}
    ),
    "a last state": lambda rig: rig.unnamed.add("b.1"),
}


@given(st.sampled_from(sorted(LEAVING)), st.sampled_from([0.0, 20.0]), st.floats(0.1, 1000.0), st.booleans())
def test_who_leaves_is_held_back_by_the_owners_limit_alone(how: str, upload_mbit: float, mbit: float, merges: bool) -> None:
    rig = Rig(upload_mbit)
    rig.hosted = [hosted("a.1", siblings=2 if merges else 1)]
    rig.unnamed.add("a.1")
    rig.now.worker.replicas["a.1"] = orchestrator_pb2.ReplicaReport(replica="a.1", state=ACTIVE)
    rig.measured(mbit)
    [running] = rig.line.held(8 * MIB)
    assert running.limit_bytes_s > 0.0
    LEAVING[how](rig)
    order = rig.line.drain(15.0)
    assert running.limit_bytes_s == 0.0, "also the upload that is under way"
    assert rig.line.held(8 * MIB) == ()
    assert rig.rates == (upload_mbit, upload_mbit * UPLINK_SHARE)
    assert (order.within_s, order.bulk_bytes_s) == (15.0, rig.line.exchange_bytes_s)


def test_an_order_to_hand_over_sets_the_workers_rate() -> None:
    async def story() -> None:
        crew, uplink = Crew.__new__(Crew), Uplink(Clock())
        uplink.limit(1000.0)
        crew._members, crew._clock = {}, Clock()
        crew._calls = type("Calls", (), {"uplink": uplink})()
        crew._outlets = type("Outlets", (), {"news": staticmethod(lambda: None)})()  # type: ignore[assignment]
        await crew.drain(local_pb2.WorkerDrain(within_s=1.0, bulk_bytes_s=5000.0))
        assert uplink.bytes_s == 5000.0
        await crew.drain(local_pb2.WorkerDrain(within_s=1.0))
        assert uplink.bytes_s == 0.0

    asyncio.run(story())
