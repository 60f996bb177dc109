"""Goal: every checker of the worlds is needed and able to notice. A bug turns it red before any other, in a world that is green without that bug."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import pytest

from simulation.control_knobs import ControlKnobs
from simulation.control_world import ControlWorld
from simulation.topology import RESIDUAL, chain
from simulation.world import Knobs, Simulation
from tests.simulation import control_planted, control_planted_places
from tests.simulation import control_planted_heads as heads
from tests.simulation import planted_states as states
from tests.simulation.control_planted import Plant
from tests.simulation.reddening import first_red
from tests.simulation.test_audited_plane import PLANTED as PLANTED_AUDITED
from tests.simulation.test_control_pauses import PLANTED as PLANTED_PAUSES
from tests.simulation.test_control_planted_bugs import PLANTED as PLANTED_CONTROL
from tests.simulation.test_planted_bugs import PLANTED as PLANTED_DATA
from tests.simulation.test_planted_bugs import PLANTED_BETWEEN_REPLICAS
from tests.simulation.test_restored_store import PLANTED as PLANTED_BACKUPS

SIMULATION: Final = Path(__file__).parents[2] / "simulation"

SMALL: dict[str, Any] = {
    "num_pnodes": 4, "num_vnodes": 3, "vnodes_per_node": 3, "num_batches": 30, "jobs": 3, "faults_s": 20.0, "skew_s": 0.0, "store_fault_rate": 0.0,
    "slow_store_rate": 0.0, "store_outages": 0, "call_loss_rate": 0.0, "tamper_rate": 0.0, "orchestrator_crashes": 0, "orchestrator_pauses": 0,
    "pnode_crashes": 0, "pnode_losses": 0, "pnode_pauses": 0, "worker_deaths": 0, "leavers": 0, "partitions": 0, "stream_breaks": 0, "store_partitions": 0,
}  # fmt: skip
LATE_S = 65.0
"""By then the jobs have ended: who takes the head over has nothing to place."""


def control_world(seed: int, **changes: Any) -> ControlWorld:
    return ControlWorld(seed, ControlKnobs(**{**SMALL, **changes}))


def whose_holder_dies_late(seed: int) -> ControlWorld:
    world = control_world(seed, faults_s=LATE_S + 5.0)

    def die() -> None:
        for shell in world.orchestrators:
            if shell.is_holder:
                shell.crash()

    world.kernel.after(LATE_S, die)
    return world


with_pairs = partial(control_world, replicas=(2,))

CONTROL: list[tuple[Plant, Any, int, str]] = [
    (heads.takeovers_count_anew, partial(control_world, orchestrator_crashes=2), 0, "sequence"),
    (heads.what_is_called_off_just_goes, control_world, 2, "job_lost"),
    (heads.the_head_keeps_every_outcome, partial(control_world, short_jobs=20), 0, "decided_books"),
    (control_planted.decided_is_not_asked, control_world, 0, "one_outcome"),
    (heads.what_sources_have_counts_for_all, partial(control_world, checkpoint_s=20.0), 1, "completed_whole"),
    (heads.jobs_wait_in_the_queue_for_ever, partial(control_world, jobs=4, num_batches=10, settling_deadline_s=5.0), 0, "liveness"),
    (heads.nothing_is_released, control_world, 2, "strays"),
    (heads.statements_replace_each_other, partial(control_world, job_pauses=2), 0, "immutable"),
    (heads.plans_follow_the_one_before_the_last, control_world, 0, "composed_anew"),
    (heads.plans_keep_the_sequence_of_the_first, control_world, 0, "plan_sequence"),
    (heads.what_waits_is_not_said, partial(control_world, num_pnodes=3, vnodes_per_node=1, pnode_crashes=4, leavers=2), 0, "one_primary"),
    (heads.names_are_used_again, partial(control_world, pnode_losses=2, pnode_crashes=2), 0, "one_place"),
    (heads.contributors_step_down, with_pairs, 0, "demoted"),
    (heads.only_primaries_weigh, with_pairs, 0, "weights"),
    (control_planted_places.the_dead_look_alive, partial(control_world, pnode_losses=1, vnodes_per_node=2), 3, "relocation_bound"),
    (heads.who_is_condemned_is_forgotten, partial(control_world, sweep_s=2.0, grant_lifetime_s=4, num_batches=60, checkpoint_s=2.0), 0, "condemned"),
    (heads.what_came_last_is_named, partial(control_world, checkpoint_s=0.5, call_repeat_rate=0.9, learn_rate=6.0, num_batches=100), 0, "manifest_back"),
    (heads.primaries_are_credited_with_everything, with_pairs, 0, "credited"),
    (heads.delivered_as_made_anew, control_world, 0, "delivered_unchanged"),
    (heads.new_terms_are_asked_for_only_by_plans, whose_holder_dies_late, 0, "follows"),
    (control_planted.signatures_are_not_checked, partial(control_world, tamper_rate=0.1), 0, "tampered"),
]  # fmt: skip

FEW: dict[str, Any] = {
    "topology": RESIDUAL, "num_batches": 40, "crashes": 1, "pauses": 0, "breaks": 2, "partitions": 0, "store_outages": 0, "faults_s": 8.0,
    "spool_batches": (12, 16), "lead_batches": 8, "unit_batches": 2, "merge_every": 4,
}  # fmt: skip
CALM = {"topology": chain(2), "num_batches": 200, "crashes": 0, "breaks": 0, "faults_s": 1.1}
"""Floors are compared where nothing has gone wrong for a while."""
WIDE = {"lead_batches": 64, "spool_batches": (128, 128)}
"""Sources do not wait for floors."""
LOST = {"topology": chain(6), "num_batches": 60, "crashes": 2, "breaks": 0, "faults_s": 25.0}
"""Late enough that checkpoints have been named."""


def data_world(seed: int, **changes: Any) -> Simulation:
    return Simulation(seed, Knobs(**{**FEW, **changes}))


with_siblings = partial(data_world, replicas=(2, 2))

DATA: list[tuple[Plant, Any, int, str]] = [
    (states.floors_fall_with_every_delta, partial(with_siblings, **CALM, **WIDE), 0, "floor_monotone"),
    (states.the_window_lies_beside_the_spool, data_world, 0, "spool_bound"),
    (states.what_is_removed_is_removed_again, data_world, 0, "spool"),
    (states.tests_begin_before_the_last_batch, data_world, 0, "final_weights"),
    (states.evaluations_count_by_their_place, data_world, 0, "test_result"),
    (states.snapshots_say_what_the_last_one_held, data_world, 0, "snapshot_lineage"),
    (states.what_an_anchor_holds_is_not_said, with_siblings, 0, "true_lineage"),
    (states.needs_have_no_reason, data_world, 0, "explain"),
    (states.questions_are_answered_again, with_siblings, 0, "merge_call"),
    (states.deltas_have_no_number, with_siblings, 0, "merge_call"),
    (states.plans_forget_what_is_under_way, partial(with_siblings, rearrangements=2, faults_s=2.0), 0, "one_computation"),
    (states.every_failure_is_fatal, partial(data_world, compute_failure_probability=0.02), 0, "stopped"),
    (states.half_a_join_is_whole, data_world, 0, "join"),
    (states.who_follows_the_dead_begins_anew, partial(data_world, **LOST), 2, "recompute"),
]


@cache
def what_is_red(world: Any, seed: int) -> str:
    """In that world as it is; empty for a green one. Several bugs are planted in one world."""
    return first_red([world(seed)])


def names(rows: list[tuple[Plant, Any, int, str]]) -> list[str]:
    return [f"{plant.__name__}-{checker}" for plant, _, _, checker in rows]


@pytest.mark.parametrize(("plant", "world", "seed", "checker"), CONTROL, ids=names(CONTROL))
def test_a_bug_turns_this_checker_of_the_control_world_red_and_without_it_all_is_green(
    plant: Plant, world: Any, seed: int, checker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not what_is_red(world, seed)
    plant(monkeypatch)
    assert first_red([world(seed)]) == checker


@pytest.mark.parametrize(("plant", "world", "seed", "checker"), DATA, ids=names(DATA))
def test_a_bug_turns_this_checker_of_the_data_world_red_and_without_it_all_is_green(
    plant: Plant, world: Any, seed: int, checker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not what_is_red(world, seed)
    plant(monkeypatch)
    assert first_red([world(seed)]) == checker


# ---- none is without a bug --------------------------------------------------------------------------------------------------


def checkers_in(path: Path) -> Iterator[str]:
    """The names under which a module demands something of its world, or says that it fails; streams fail too, and in no name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        at = {"require": 1, "fail": 0}.get(node.func.attr)
        if at is None or len(node.args) < at + 2:
            continue
        name = node.args[at]
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            yield name.value
        else:
            assert node.func.attr == "fail", f"{path.name}:{node.lineno}: say the checker's name where it demands something"


def of_world(*, control: bool) -> set[str]:
    modules = [path for path in SIMULATION.glob("*.py") if path.stem.startswith("control_") == control]
    return {name for path in modules for name in checkers_in(path)}


def alone(expected: set[str]) -> set[str]:
    """Where one of several may go red, none of them has to."""
    return expected if len(expected) == 1 else set()


def test_every_checker_of_the_control_world_has_a_bug_that_turns_it_red() -> None:
    named = {checker for *_, checker in CONTROL} | {"joiners"}  # turned red by states that fill the lines: `test_many_joiners`
    for row in (*PLANTED_CONTROL, *PLANTED_PAUSES, *PLANTED_AUDITED, *PLANTED_BACKUPS):
        named |= alone(row[-1])
    found = of_world(control=True)
    assert {"job_lost", "ledger", "statements", "liveness"} <= found, "the modules were read"
    assert not found - named, "plant a bug for each, or remove it"


def test_every_checker_of_the_data_world_has_a_bug_that_turns_it_red() -> None:
    named = {row[-1] for row in (*DATA, *PLANTED_DATA, *PLANTED_BETWEEN_REPLICAS)}
    found = of_world(control=False)
    assert {"exactly_once", "merge_call", "join", "liveness"} <= found, "the modules were read"
    assert not found - named, "plant a bug for each, or remove it"
