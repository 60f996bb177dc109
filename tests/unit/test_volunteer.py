"""Goal: what the owner wants holds: pauses end when they should and survive a restart, rates are kept, a sleep is noticed, old models make room."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from dataservice.pacing import BYTES_PER_MBIT, Pace
from dcnr.cli.times import seconds_for, seconds_until
from dcnr.errors import InvalidInput, Refused
from dcnr.ids import NodeId
from dcnr.settings import PNodeSettings
from dcnr.v1 import model_pb2
from pnode.authority import Term
from pnode.budget import Limits
from pnode.home import Home
from pnode.lent import options_of
from pnode.models import Model, Models
from pnode.orders import Orders
from pnode.pausing import Pausing
from pnode.provision import Job
from pnode.waking import STOOD_S, Gaps


class Clock:
    """Both clocks by hand."""

    def __init__(self) -> None:
        self.now_s = 1_700_000_000.0

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.now_s


def test_a_pause_ends_by_itself_or_by_its_owner_and_survives_a_restart(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "paused.json"
    pausing = Pausing(path, clock)
    assert not pausing.is_paused
    pausing.begin(60.0)
    pausing.keep()
    assert Pausing(path, clock).is_paused
    clock.now_s += 61.0
    assert not Pausing(path, clock).is_paused
    assert not pausing.is_paused
    pausing.tidy()
    assert not path.exists()
    pausing.begin(0.0)
    pausing.keep()
    clock.now_s += 1e8
    assert Pausing(path, clock).is_paused
    assert "resumed" in Pausing(path, clock).reason
    pausing.end()
    assert pausing.is_paused, "it works again when a restart would, too"
    pausing.keep()
    assert not pausing.is_paused
    assert not Pausing(path, clock).is_paused
    with pytest.raises(InvalidInput):
        pausing.begin(float("nan"))


@pytest.mark.parametrize("damage", [b"", b"[]", b"{}", b'{"until": "soon"}', b'{"until": NaN}', b"\xff"])
def test_in_doubt_nothing_runs(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "paused.json"
    path.write_bytes(damage)
    assert Pausing(path, Clock()).is_paused


def test_times_as_people_type_them() -> None:
    assert [seconds_for(text) for text in ("90s", "45m", "2h", "1.5 d")] == [90, 2700, 7200, 129_600]
    evening = datetime(2026, 1, 1, 22, 30)
    assert seconds_until("07:00", evening) == 8.5 * 3600
    assert seconds_until("22:31", evening) == 60
    assert seconds_until("22:30", evening) == 86_400
    for wrong in ("2", "h", "-1h", "0m", "1w", ""):
        with pytest.raises(InvalidInput):
            seconds_for(wrong)
    for wrong in ("24:00", "7", "07:60", ""):
        with pytest.raises(InvalidInput):
            seconds_until(wrong, evening)


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The clock on the wall is Berlin's, which goes forward at 02:00 on 2026-03-29 and back at 03:00 on 2026-10-25."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_until_a_time_of_day_is_by_the_clock_also_when_it_is_changed() -> None:
    spring, autumn = datetime(2026, 3, 28, 23, 0), datetime(2026, 10, 24, 23, 0)
    hours = [seconds_until("07:00", evening) / 3600 for evening in (spring, autumn, datetime(2026, 6, 1, 23, 0))]
    assert hours == [7.0, 9.0, 8.0]
    assert seconds_until("02:30", spring) == 3.5 * 3600, "it is never half past two: an hour and a half after the clock showed one"
    assert seconds_until("23:00", spring) == 23 * 3600
    twice = datetime(2026, 10, 25, 2, 30)
    assert [seconds_until("02:15", twice.replace(fold=fold)) / 60 for fold in (0, 1)] == [45, 23 * 60 + 45]
    assert [seconds_until("02:45", twice.replace(fold=fold)) / 60 for fold in (0, 1)] == [15, 15]


def test_all_transfers_together_keep_the_rate_in_small_blocks() -> None:
    clock = Clock()
    pace = Pace(8.0, clock.monotonic)
    assert pace.block_bytes / (8 * BYTES_PER_MBIT) <= 0.25
    began, sent = clock.now_s, 0
    while sent < 20 * BYTES_PER_MBIT:
        for _ in range(3):  # three transfers that take turns
            sent += pace.block_bytes
            waited_s = pace.wait_s(pace.block_bytes)
        clock.now_s += waited_s
    assert sent / (clock.now_s - began) <= 8 * BYTES_PER_MBIT * 1.2
    clock.now_s += 3600.0  # what was not used in an hour is not made up for in a burst
    assert pace.wait_s(BYTES_PER_MBIT * 8) > 0.5
    assert Pace(0.0, clock.monotonic).wait_s(1 << 30) == 0.0


def test_a_sleep_shows_on_either_clock_and_a_short_one_is_none() -> None:
    gaps = Gaps()
    assert gaps.look(0.0, 1000.0) == 0.0
    assert gaps.look(1.0, 1001.0) == 0.0
    assert gaps.look(1.0 + STOOD_S / 2, 1001.0 + STOOD_S / 2) == 0.0
    assert gaps.look(4.0, 1100.0) >= 90.0  # the machine slept, and its monotonic clock with it
    assert gaps.look(104.0, 1200.0) == 100.0  # the process was stopped
    assert gaps.look(105.0, 500.0) == 0.0  # the wall clock was set back


ORCHESTRATOR = NodeId("1" * 40)


def policy() -> SimpleNamespace:
    return SimpleNamespace(network_id="n" * 40, orchestrator_ids=[ORCHESTRATOR])


def models(forgotten: list[str]) -> Models:
    return Models(NodeId("0" * 40), policy, lambda name, model: forgotten.append(name))  # type: ignore[arg-type, return-value]


def proven(model: Model, *, working: bool, active: bool = True) -> None:
    model.authority.term = Term(1, ORCHESTRATOR)
    model.desired = model_pb2.DesiredState(assignments=[model_pb2.DesiredAssignment(replica="a.1")] if working else [])
    model.authority.head = model_pb2.Head(active=model_pb2.ActiveJob(job_id="job" if active else ""))


def test_a_third_model_with_work_takes_the_place_of_one_without() -> None:
    forgotten: list[str] = []
    known = models(forgotten)
    proven(known.entry("one", with_work=True), working=True, active=False)
    proven(known.entry("two", with_work=True), working=True)
    with pytest.raises(Refused):
        known.entry("three", with_work=False)  # its head alone is no work
    proven(known.entry("three", with_work=True), working=True)
    assert forgotten == ["one"]
    assert [name for name, _ in known.items()] == ["three", "two"]
    with pytest.raises(Refused):
        known.entry("four", with_work=True)
    proven(known.entry("two", with_work=True), working=False)
    known.entry("four", with_work=True)
    assert forgotten == ["one", "two"]
    known.entry("five", with_work=False)  # nothing is proven of four
    assert forgotten == ["one", "two", "four"]


@pytest.mark.parametrize(
    ("own_s", "job_s", "told_s"),
    [(None, 300.0, 300.0), (None, 0.0, 60.0), (600.0, 60.0, 60.0), (60.0, 300.0, 60.0), (5.0, 60.0, 5.0), (600.0, 0.0, 60.0)],
)
def test_checkpoints_are_as_near_as_the_job_and_the_owner_want(
    tmp_path: Path, own_s: float | None, job_s: float, told_s: float
) -> None:
    settings = PNodeSettings() if own_s is None else PNodeSettings(checkpoint_s=own_s)
    options = options_of(settings, Limits(1.0, 0, 0, 0), Home(tmp_path), float)
    job = Job(model_pb2.JobRequest(checkpoint_s=job_s), model_pb2.ModelGraph(), b"", {}, tmp_path)
    assignment = model_pb2.DesiredAssignment(replica="a.0")
    order = Orders(Home(tmp_path), options, lambda: False).host(model_pb2.DesiredState(), assignment, job)
    assert order.checkpoint_s == told_s, "who brings something later than the job says is sent away as of no use"
