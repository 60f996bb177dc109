"""Goal: whatever dies, stalls or gets lost, every stage learns every batch exactly once, and all of it becomes durable in bounded time."""

from __future__ import annotations

import pytest

from simulation.topology import RESIDUAL, TWO_SOURCES, chain
from simulation.world import Knobs, Simulation, random_knobs, wide_knobs


@pytest.mark.parametrize("seed", [*range(20), 23])
def test_random_history_converges(seed: int) -> None:
    Simulation(seed).run()


def test_some_of_them_are_audited() -> None:
    assert {random_knobs(seed).audited for seed in range(1, 20, 2)} == {True, False}


def test_one_seed_gives_one_history() -> None:
    first, second = Simulation(1).run(), Simulation(1).run()
    assert first.kernel.num_actions == second.kernel.num_actions
    assert first.checkers.num_floors > 0, "what floors say was compared with the truth"
    assert [shell.state for shell in first.primaries()] == [shell.state for shell in second.primaries()]


@pytest.mark.parametrize("topology", [chain(8), RESIDUAL, TWO_SOURCES], ids=lambda topology: topology.name)
def test_nothing_is_computed_or_sent_twice_where_nothing_fails(topology: object) -> None:
    knobs = Knobs(topology=topology, crashes=0, pauses=0, breaks=0, partitions=0, store_outages=0, faults_s=1.0)  # type: ignore[arg-type]
    world = Simulation(3, knobs).run()
    counters = [shell.core.view().counters for shell in world.primaries()]
    assert sum(item.forwarded for item in counters) == 0
    assert sum(item.frames_resent + item.duplicates + item.evicted for item in counters) == 0


def test_many_crashes_in_a_deep_chain() -> None:
    knobs = Knobs(topology=chain(6), num_batches=60, crashes=8, pauses=3, breaks=12, partitions=3)
    world = Simulation(11, knobs).run()
    assert world.num_lost_states >= 8


def test_more_than_fifty_replicas_of_a_wide_graph_converge() -> None:
    world = Simulation(0, wide_knobs(0), "--world wide").run()
    assert len(world.members()) >= 50
