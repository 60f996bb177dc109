"""Goal: a machine is killed that hosts replicas of neighbouring VNodes, and their siblings hardly pause: where plans follow as soon as in a
network that notices at once, no VNode with replicas goes a second without learning, over links of homes as within one house.
"""

from __future__ import annotations

import pytest

from simulation.network import NetworkKnobs
from simulation.topology import chain
from simulation.world import Knobs, Simulation
from tests.simulation.learning_gaps import LearningGaps
from vnode import contributing
from vnode.lead import Lead

HOUSE_S, HOMES_S = (0.001, 0.003), (0.035, 0.045)
"""One way."""
KILLED = ("s1", "s2")
AT_S, FOR_S, PLAN_S = 4.0, 4.0, 0.5
MOST_S = 1.0


def knobs(latency_s: tuple[float, float]) -> Knobs:
    """Replicas that learn ten batches a second each, and a lead of little more than a second."""
    return Knobs(
        topology=chain(3), num_batches=600, window_batches=16, lead_batches=48, spool_batches=(512, 512), step_s=(0.1, 0.1), checkpoint_s=15.0,
        checkpoint_steps=256, evaluate_every=0, validation_batches=0, test_batches=0, faults_s=0.1, crashes=0, pauses=0, breaks=0, partitions=0,
        store_outages=0, replicas=(4, 4), weights=(1.0,), successions=1.0, plan_s=(0.05, 0.25), unit_batches=2, merge_every=4,
        network=NetworkKnobs(latency_s=latency_s),
    )  # fmt: skip


def longest_gap_s(seed: int, latency_s: tuple[float, float]) -> float:
    """The longest time in which no replica of one VNode learned, after the primary of one and a contributor of the next were killed."""
    world = Simulation(seed, knobs(latency_s))
    gaps = LearningGaps(world)
    world.authority.start()
    world.kernel.run_until(AT_S, lambda: False)
    dead = [
        next(shell for shell in world.members() if shell.vnode == vnode and world.is_primary(shell) == (vnode == KILLED[0]))
        for vnode in KILLED
    ]
    for shell in dead:
        world.faults.kill(shell, silently=False)
    world.kernel.run_until(AT_S + PLAN_S, lambda: False)
    for shell in dead:
        world.authority.replace(shell)
    world.kernel.run_until(AT_S + FOR_S, lambda: False)
    return gaps.longest_s(AT_S)


@pytest.mark.parametrize("latency_s", [HOUSE_S, HOMES_S])
def test_siblings_of_a_killed_replica_hardly_pause(latency_s: tuple[float, float]) -> None:
    assert longest_gap_s(1, latency_s) < MOST_S


def test_a_newcomer_that_spoke_too_early_and_sources_that_kept_to_their_lead_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newcomer would take the first word of a primary that does not know of it yet for none, learn what others have, and hold the floor there."""
    monkeypatch.setattr(contributing, "EARLY_S", 0.0)
    monkeypatch.setattr(Lead, "look", lambda self, now_s, floor, wanted: False)
    assert longest_gap_s(1, HOUSE_S) > MOST_S
