"""Goal: whoever computes waits exactly until the processor time of the whole worker is paid for, whatever the number of replicas."""

from __future__ import annotations

import pytest

from pnode.pace import CREDIT_S, Pace


class Machine:
    """A clock and a processor that the test moves."""

    def __init__(self) -> None:
        self.now_s, self.used_s = 100.0, 5.0

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.now_s

    def works(self, seconds: float) -> None:
        self.now_s += seconds
        self.used_s += seconds


@pytest.mark.parametrize("step_s", [0.001, 0.1, 2.0])
def test_the_duty_cycle_is_that_of_the_limit_and_steps_count_with_their_pauses(step_s: float) -> None:
    machine = Machine()
    pace = Pace(machine, lambda: machine.used_s)
    pace.limit(0.25)
    taken = []
    first_s, first_used_s = machine.now_s, machine.used_s
    for _ in range(200):
        begun = pace.begin()
        machine.works(step_s)
        taken.append(pace.end(begun))
        machine.now_s += pace.owed_s()
    used_s, passed_s = machine.used_s - first_used_s, machine.now_s - first_s
    assert used_s <= 0.25 * (passed_s + CREDIT_S) + 1e-9
    assert used_s >= 0.25 * passed_s - step_s
    assert sorted(taken)[100] == pytest.approx(4 * step_s)


def test_a_step_of_whoever_waits_for_others_takes_what_it_would_without_the_wait() -> None:
    """Goal: a machine with little to do is not told to be as quick as one that lends all of its time, and given work until it is found out."""
    machine = Machine()
    pace = Pace(machine, lambda: machine.used_s)
    pace.limit(0.1)
    taken = []
    for _ in range(50):
        begun = pace.begin()
        machine.works(0.01)
        taken.append(pace.end(begun))
        machine.now_s += 1.0  # longer than what it owes: it begins the next one with all of its credit
    assert taken == pytest.approx([0.1] * 50)


def test_replicas_of_one_worker_share_the_limit() -> None:
    machine = Machine()
    pace = Pace(machine, lambda: machine.used_s)
    pace.limit(0.5)
    first_s, first_used_s = machine.now_s, machine.used_s
    taken = 0.0
    for _ in range(100):  # two computations at a time, on one core
        begun = [pace.begin(), pace.begin()]
        for one in begun:
            machine.works(0.01)
            taken += pace.end(one)
        machine.now_s += pace.owed_s()
    passed_s = machine.now_s - first_s
    assert machine.used_s - first_used_s <= 0.5 * (passed_s + CREDIT_S) + 1e-9
    assert taken == pytest.approx(passed_s, rel=0.2), "what all replicas say they take adds up to the time that passes"


def test_work_between_computations_counts_a_little_and_nobody_waits_without_a_limit() -> None:
    machine = Machine()
    pace = Pace(machine, lambda: machine.used_s)
    machine.works(30.0)  # importing, restoring
    pace.end(pace.begin())
    assert pace.owed_s() == 0.0
    pace.limit(0.1)
    machine.works(30.0)
    pace.end(pace.begin())
    assert pace.owed_s() < 1.0


def test_time_that_replicas_take_together_is_shared_out() -> None:
    machine = Machine()
    pace = Pace(machine, lambda: machine.used_s)  # no limit
    first = pace.begin()
    machine.works(1.0)
    second = pace.begin()
    machine.works(2.0)
    taken = pace.end(first) + pace.end(second)
    assert taken == pytest.approx(3.0, rel=0.1)
    assert pace.end(pace.begin()) == 0.0
