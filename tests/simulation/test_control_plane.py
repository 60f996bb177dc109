"""Goal: whatever dies, stalls, lies or gets lost, one orchestrator decides at a time, every accepted job ends in exactly one way, and what the head
names is there.
"""

from __future__ import annotations

from typing import Any

import pytest

from simulation.control_knobs import ControlKnobs, orchestrator_knobs
from simulation.control_world import ControlWorld, with_knobs


@pytest.mark.parametrize("seed", range(1, 4))
def test_random_history_converges(seed: int) -> None:
    ControlWorld(seed).run()


@pytest.mark.parametrize("seed", range(17))
def test_orchestrators_that_die_and_stand_still_lose_no_job(seed: int) -> None:
    ControlWorld(seed, orchestrator_knobs(seed), "--world orchestrators").run()


@pytest.mark.parametrize("seed", [0])
def test_fifty_pnodes_converge(seed: int) -> None:
    ControlWorld(seed).run()


def test_nothing_moves_and_nobody_takes_over_where_nothing_fails() -> None:
    knobs = ControlKnobs(
        num_pnodes=12, faults_s=40.0, store_fault_rate=0.0, slow_store_rate=0.0, store_outages=0, call_loss_rate=0.0, tamper_rate=0.0,
        orchestrator_crashes=0, orchestrator_pauses=0, pnode_crashes=0, pnode_losses=0, pnode_pauses=0, worker_deaths=0, leavers=0, partitions=0,
        stream_breaks=0, store_partitions=0,
    )  # fmt: skip
    world = ControlWorld(3, knobs).run()
    assert (world.checkers.plans.num_moves, world.checkers.num_takeovers) == (0, 1)


def test_pnodes_work_on_while_all_orchestrators_are_dead_and_fresh_ones_rebuild() -> None:
    world = with_knobs(6, num_pnodes=12, blackout_s=30.0, num_batches=200, jobs=3).run()
    assert world.checkers.num_takeovers >= 2


@pytest.mark.parametrize(("seed", "replicas"), [(21, (3,)), (22, (2, 1)), (23, (0,))])
def test_replicas_are_promoted_and_filled_up(seed: int, replicas: tuple[int, ...]) -> None:
    """With several replicas, faults and a slow store: plans keep their rules, and every batch still counts exactly once."""
    world = with_knobs(
        seed, replicas=replicas, num_vnodes=5, num_pnodes=20, vnodes_per_node=4, pnode_crashes=6, num_batches=120, jobs=3
    ).run()
    assert world.checkers.plans.num_contributors > 0


def test_ten_minutes_without_the_store_cost_no_batch_and_are_told_once() -> None:
    """Nothing is decided meanwhile, training goes on, and each orchestrator says once that the store is away and once that it is back."""
    knobs = ControlKnobs(
        num_orchestrators=2, num_pnodes=4, num_vnodes=3, num_batches=1500, jobs=3, checkpoint_s=30.0, faults_s=640.0, store_fault_rate=0.0, slow_store_rate=0.0,
        store_outages=0, call_loss_rate=0.0, tamper_rate=0.0, orchestrator_crashes=0, orchestrator_pauses=0, pnode_crashes=0, pnode_losses=0,
        pnode_pauses=0, worker_deaths=0, leavers=0, partitions=0, stream_breaks=0, store_partitions=0,
    )  # fmt: skip
    world = ControlWorld(5, knobs)
    learned: list[int] = []
    sequences: list[int] = []

    def look() -> None:
        head = world.head()
        sequences.append(int(head.sequence) if head is not None else 0)
        learned.append(sum(len(replica.lineage) for pnode in world.pnodes for replica in pnode.worker.replicas.values()))

    world.kernel.after(20.0, lambda: setattr(world, "store_away_until_s", 615.0))
    for at_s in (30.0, 610.0):
        world.kernel.after(at_s, look)
    said: dict[tuple[str, str], int] = {}
    tell = world.checkers.said

    def heard(reporter: str, kind: str, subject: str, reason: str, facts: Any) -> None:
        said[reporter, kind] = said.get((reporter, kind), 0) + 1
        tell(reporter, kind, subject, reason, facts)

    world.checkers.said = heard  # type: ignore[method-assign]
    world.run()
    assert sequences[0] == sequences[1] > 0, "nothing is decided without the store"
    assert learned[1] > learned[0] + 500, "training goes on without it"
    for shell in world.orchestrators:
        assert [said.get((shell.node_id, kind), 0) for kind in ("store_away", "store_back")] == [1, 1]
    assert world.checkers.plans.num_moves == 0
    assert not [key for key, count in said.items() if count > 60], "nobody says the same thing over and over"
