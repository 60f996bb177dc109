"""Goal: twenty PNodes that join at once do not lower the rate at which batches are merged by more than a fifth for longer than half a minute."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dcnr import limits
from simulation.control_joining import LOWERED, MAX_LOWERED_S, JoiningWorld, joining_knobs
from simulation.world import Violation


@pytest.mark.parametrize("seed", [1, 3])
def test_twenty_joiners_at_once_lower_the_rate_for_half_a_minute_at_most(seed: int) -> None:
    world = JoiningWorld(seed)
    world.run()
    assert world.knobs.num_joiners == 20
    assert world.num_newcomers >= 5, "the planner gives newcomers work"
    assert world.lowered_s <= MAX_LOWERED_S
    assert world.after > world.before > 0.0


def test_states_that_fill_the_lines_for_longer_are_noticed() -> None:
    """The primaries of the same network send newcomers what takes each line more than a minute: few deltas come to be answered meanwhile."""
    world = JoiningWorld(1, replace(joining_knobs(1), state_bytes=12 * limits.MIB))
    with pytest.raises(Violation, match="joiners lower a rate"):
        world.run()
    assert world.lowered_s > MAX_LOWERED_S
    assert world.lowest < LOWERED * world.before
