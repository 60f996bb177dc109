"""Goal: a machine that seemed slow at its start is measured again while it hosts nothing, and is as fast as it was at its best within an hour."""

from __future__ import annotations

from pathlib import Path

from pnode.measured import WINDOW_S
from pnode.probe import Machine, probe_machine
from pnode.speed import PROBE_S, MeasuredSpeed

MACHINE = Machine(4, 1 << 30, 1 << 30, 1 << 30, 20.0, "x86_64", "linux")


class Rig:
    """A machine that measures what ``figures`` say, one after the other."""

    def __init__(self, *figures: float) -> None:
        self.left = list(figures)
        self.speed = MeasuredSpeed(lambda: self.left.pop(0))

    def told(self, now_s: float, *, is_idle: bool = True) -> float:
        """What it says once it has measured, if it does."""
        self.speed.of(MACHINE, is_idle=is_idle, now_s=now_s)
        if self.speed._probe is not None:
            self.speed._probe.result(60)
        return self.speed.of(MACHINE, is_idle=is_idle, now_s=now_s).gflops_per_core


def test_a_machine_that_was_busy_at_its_start_is_found_to_be_faster_while_it_is_idle() -> None:
    """Plans leave out who seems slow, and who is left out computes nothing that would show how fast it is."""
    rig = Rig(40.0, 31.0, 35.0)
    assert rig.told(0.0) == 20.0
    assert rig.told(PROBE_S - 1) == 20.0, "it was measured a moment ago"
    assert rig.told(PROBE_S) == 40.0
    assert [rig.told(at * PROBE_S) for at in (2, 3)] == [40.0, 40.0], "whatever else it does makes it seem slower"
    assert not rig.left


def test_what_is_hosted_is_not_disturbed_and_does_not_count_against_the_machine() -> None:
    rig = Rig(40.0, 10.0, 11.0)
    rig.told(0.0)
    assert [rig.told(at * PROBE_S) for at in (1, 2)] == [40.0, 40.0]
    for hours in (1, 5, 100):
        assert rig.told(hours * WINDOW_S, is_idle=False) == 40.0, "the hour before it hosted anything stands"
    assert rig.left == [11.0]
    assert rig.told(101 * WINDOW_S) == 11.0, "a machine may have become slower"


def test_a_real_machine_is_measured_again_without_anybody_waiting(tmp_path: Path) -> None:
    machine, speed, now_s = probe_machine(tmp_path), MeasuredSpeed(), 0.0
    seen = {speed.of(machine, is_idle=True, now_s=now_s).gflops_per_core}
    speed.of(machine, is_idle=True, now_s=PROBE_S)
    assert speed._probe is not None
    assert speed._probe.result(60) > 0.0
    seen.add(speed.of(machine, is_idle=True, now_s=PROBE_S).gflops_per_core)
    assert min(seen) > 0.0
    assert max(seen) >= 0.9 * machine.gflops_per_core
