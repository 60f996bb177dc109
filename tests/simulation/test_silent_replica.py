"""Goal: while one replica stands still, unnoticed, every VNode goes on learning: nobody starves behind it while its siblings have plenty."""

from __future__ import annotations

import pytest

from simulation.network import NetworkKnobs
from simulation.topology import chain
from simulation.world import Knobs, Simulation
from tests.simulation.learning_gaps import LearningGaps
from vnode.intake import Intake

KNOBS = Knobs(
    topology=chain(3), num_batches=400, window_batches=8, lead_batches=512, spool_batches=(1024, 1024), step_s=(0.25, 0.25), checkpoint_s=15.0,
    checkpoint_steps=256, evaluate_every=0, validation_batches=0, test_batches=0, faults_s=0.1, crashes=0, pauses=0, breaks=0, partitions=0,
    store_outages=0, replicas=(3, 3), unit_batches=8, merge_every=4, network=NetworkKnobs(latency_s=(0.001, 0.003)),
)  # fmt: skip
FROM_S, FOR_S = 8.0, 8.0
"""Longer than silence goes unnoticed."""
LEAST_S = 1.5
"""A simulated replica ticks twice a second, a real one four times."""


def longest_gap_s(seed: int) -> float:
    """The longest time in which no replica of one VNode learned, while the primary of the second stands still."""
    world = Simulation(seed, KNOBS)
    gaps = LearningGaps(world)
    world.authority.start()
    world.kernel.run_until(FROM_S, lambda: False)
    world.primary("s1").process.pause(FOR_S)
    world.kernel.run_until(FROM_S + FOR_S, lambda: False)
    return gaps.longest_s(FROM_S)


@pytest.mark.parametrize("seed", range(1, 4))
def test_others_learn_on_behind_a_replica_that_stands_still(seed: int) -> None:
    assert longest_gap_s(seed) < LEAST_S


def test_without_looking_past_it_they_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Intake, "waits_in_vain", lambda self, now_s, due_end, *, is_idle: False)
    assert longest_gap_s(1) > LEAST_S
