"""Goal: a job learns few batches per second, a machine is killed that hosts replicas of two VNodes, and nobody starves behind it: what it owed is computed by
its siblings for those behind them, before any plan says so, learned by them from the next plan on, and learned once.
"""

from __future__ import annotations

import pytest

from orchestrator.silence import REATTACH_GRACE_S
from simulation.network import NetworkKnobs
from simulation.topology import chain
from simulation.world import Knobs, Simulation
from tests.simulation.learning_gaps import LearningGaps
from vnode.intake import Intake

KNOBS = Knobs(
    topology=chain(4), num_batches=150, window_batches=16, lead_batches=64, spool_batches=(512, 512), step_s=(0.05, 0.05), checkpoint_s=15.0,
    checkpoint_steps=256, evaluate_every=0, validation_batches=0, test_batches=0, faults_s=0.1, crashes=0, pauses=0, breaks=0, partitions=0,
    store_outages=0, replicas=(4, 4), weights=(1.0,), successions=1.0, plan_s=(0.05, 0.25), unit_batches=1, merge_every=4, batches_per_s=2.5,
    network=NetworkKnobs(latency_s=(0.001, 0.003)),
)  # fmt: skip
AT_S, FOR_S, PLAN_S, NEWCOMER_S = 5.0, 6.0, 0.5, 2.5
GRACED_S = PLAN_S + REATTACH_GRACE_S
"""When the plan would come if the dead were given time to come back."""
MOST_S = 1.0
STARVING = (47, 48)
"""Where those behind the dead lack what they owed: whenever the plan comes, they ask its siblings."""
OWING = (9, 16)
"""Where a dead replica owes two batches in a row of its own VNode: until the plan nobody else may learn those."""


def longest_gap_s(seed: int, plan_s: float) -> float:
    """The longest time in which no replica of one VNode learned, after one replica of each of two was killed and orchestrators took them for lost."""
    world = Simulation(seed, KNOBS)
    gaps = LearningGaps(world)
    world.authority.start()
    rng = world.kernel.rng("when")
    at_s = AT_S + rng.random()
    world.kernel.run_until(at_s, lambda: False)
    first = rng.choice(world.members())
    dead = (first, rng.choice([shell for shell in world.members() if shell.vnode != first.vnode]))
    for shell in dead:
        world.faults.kill(shell, silently=False)
    world.kernel.run_until(at_s + plan_s, lambda: False)
    for shell in dead:
        world.authority.lose(shell, NEWCOMER_S)
    world.kernel.run_until(at_s + FOR_S, lambda: False)
    return gaps.longest_s(at_s)


@pytest.mark.parametrize(("seed", "plan_s"), [*((seed, GRACED_S) for seed in STARVING), *((seed, PLAN_S) for seed in OWING)])
def test_nobody_starves_behind_a_killed_machine(seed: int, plan_s: float) -> None:
    assert longest_gap_s(seed, plan_s) < MOST_S


def test_who_waited_for_what_the_dead_one_owes_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Intake, "goes_around", lambda self, *, is_idle: False)
    assert all(longest_gap_s(seed, GRACED_S) > MOST_S for seed in STARVING)


def test_siblings_of_the_dead_would_wait_where_it_were_given_time_to_come_back() -> None:
    assert all(longest_gap_s(seed, GRACED_S) > MOST_S for seed in OWING)
