"""Goal: each figure that is told of checked work turns red with what it is about, and counts nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import attackers, audit_cost, commits, detection, honest, mutants, refusals
from benchmarks.mutants import Mutant, drawn
from benchmarks.result import Result


def met(module: Any, rows: list[dict[str, Any]], **settings: Any) -> dict[str, bool]:
    """Targets by name, of these rows alone."""
    result = Result("x", "x", settings, rounds=rows)
    module.conclude(result)
    return {target.name: target.met for target in result.targets}


def audited(**changed: Any) -> dict[str, Any]:
    """An interval of which nothing but frames is in the bundle, and whose audit costs as much as learning."""
    row = {
        "case": "a", "steps": 256, "learned_s": 10.0, "gathered_s": 0.1, "digested_s": 0.1, "opened_s": 0.1, "replayed_s": 10.0, "in_bytes": 500,
        "out_bytes": 500, "bundle_bytes": 1000, "frames_bytes": 1000, "ends_bytes": 0, "between_bytes": 0, "anchors_bytes": 0, "words_bytes": 0,
    }  # fmt: skip
    return row | changed


def test_bytes_of_audits_are_those_of_the_bundle_and_may_exceed_their_limit() -> None:
    name = "bytes of audits at the floor, both directions / of learning, a"
    assert not met(audit_cost, [audited()], wide=1024)[name], "a twentieth of frames, twice over the line"
    assert met(audit_cost, [audited(bundle_bytes=480)], wide=1024)[name]
    assert not met(audit_cost, [audited(bundle_bytes=480 + 100, between_bytes=100)], wide=1024)[name], "states between have no room"


@pytest.mark.parametrize("dearer", [{"gathered_s": 8.0}, {"opened_s": 5.0}, {"digested_s": 5.0}, {"replayed_s": 14.0}])
def test_processor_time_of_audits_is_that_of_all_who_take_part(dearer: dict[str, float]) -> None:
    name = "processor time of audits at the floor / of learning, a"
    assert met(audit_cost, [audited()], wide=1024)[name]
    assert not met(audit_cost, [audited(**dearer)], wide=1024)[name]


def checked(level: str, steps: int, **changed: Any) -> dict[str, Any]:
    row = {
        "machine": "m", "case": "conv_block, ReLU, pool", "optimizer": "sgd", "width": 64, "smooth": False, "level": level, "steps": steps,
        "intervals": 1, "doubts": 0, "faults": 0, "worst": 0.1, "part": "loss", "parts": {"bulk": 0.1}, "spread": {"0.125": 1},
    }  # fmt: skip
    return row | changed


def test_only_replays_count_as_replayed_steps_and_conv_block_has_its_share() -> None:
    replayed, share = "honest steps replayed, width 64, all machines together", "of them steps of conv_block, width 64"
    found = met(honest, [checked("replay", 10**6)], quick=False)
    assert found[replayed]
    assert found[share]
    assert not met(honest, [checked("replay", 10), checked("sketch", 10**6)], quick=False)[replayed]
    assert not met(honest, [checked("replay", 10**6, case="linear")], quick=False)[share]


def test_most_values_of_replays_with_kinks_are_in_the_rows_or_not_measured() -> None:
    name = "replays with kinks: worst residual of most values (bulk) / tolerance"
    assert met(honest, [checked("replay", 10)], quick=True)[name]
    assert not met(honest, [checked("replay", 10, parts={"loss": 0.1})], quick=True)[name]


def test_steps_that_several_machines_replay_are_told_apart_from_distinct_ones() -> None:
    result = Result("x", "x", {"quick": True}, rounds=[checked("replay", 10, machine=name) for name in "abc"])
    honest.conclude(result)
    assert (result.ratios["replay, width 64"]["steps"], result.ratios["replay, width 64"]["distinct_steps"]) == (30, 10)
    assert any("10 distinct steps on 3 machines" in note for note in result.notes)


def test_residuals_to_draw_from_are_those_of_replays_and_of_each_interval() -> None:
    rows = [checked("replay", 1, spread={"0.0": 2, "0.5": 1}), checked("replay", 1, spread={"0.5": 3}), checked("sketch", 1)]
    assert honest.spread_of(rows) == [(0.0, 2), (0.5, 4)]
    assert honest.spread_of([checked("replay", 1, intervals=7, worst=0.3, spread={})]) == [(0.3, 7)], (
        "of less is known: the worst for all"
    )


def test_two_bad_seeds_of_twenty_are_seen_where_the_median_is_good() -> None:
    row = {
        "bad_kept": 1,
        "bad_shown": 2.0,
        "bad_offered": 10**5,
        "honest": 10,
        "honest_quarantined": 0,
        "rare_at_floor": 500,
        "slanders": 3,
    }
    rows = [{"seed": seed, "worse": 0.2 if seed < 2 else 0.001, **row} for seed in range(20)]
    found = met(attackers, rows)
    assert found["loss with attackers against without, median of seeds"]
    assert not found["loss with attackers against without, 95th percentile of seeds"]
    assert not met(attackers, [one | {"rare_at_floor": 0} for one in rows])["of them near the floor, by who cheats rarely"]
    assert not met(attackers, [one | {"slanders": 0} for one in rows])["right intervals that attackers faulted"]


def cheated(case: str, steps: int, verdict: str) -> dict[str, Any]:
    return {
        "case": f"{case}, sgd",
        "behaviour": "b",
        "seed": 0,
        "codec": "raw",
        "steps": steps,
        "replay": [9.0],
        "sketch": 9.0,
        "verdict": verdict,
    }


def test_a_cheat_of_a_text_stage_or_of_a_long_interval_that_stays_is_seen_beside_the_others() -> None:
    short, settings = [cheated("linear", 16, "failed")] * 1000, {"behaviours": ["b"], "seeds": 1, "machines": list("abcd")}
    rows = [*short, cheated("transformer_block", 16, "failed"), cheated("linear_block", 256, "failed")]
    names = ("of those of text stages, do not stay", "of those of 256 steps, do not stay")
    assert all(met(detection, rows, **settings)[name] for name in names)
    stays = [*short, cheated("transformer_block", 16, "passed"), cheated("linear_block", 256, "passed")]
    assert not any(met(detection, stays, **settings)[name] for name in names)
    assert not any(met(detection, short, **settings)[name] for name in names), "what was not tried was not measured"


def test_a_step_that_is_longer_misses_its_limit_whether_it_waits_or_not() -> None:
    rows = [
        {"codec": codec, "audited": audited, "step_s": 1.05 if audited else 1.0, "waited_s": 0.0}
        for codec in commits.CODECS
        for audited in (False, True)
    ]
    assert not any(met(commits, rows).values())
    assert all(met(commits, [row | {"step_s": 1.0} for row in rows]).values())


def test_each_module_is_drawn_from_however_small_it_is_and_nothing_twice() -> None:
    by_module = {
        name: [Mutant(name, line, "x", "") for line in range(size)]
        for name, size in {"large": 500, "small": 1, "middle": 20}.items()
    }
    found = list(drawn(by_module, 3, 10))
    assert len(found) == len(set(found)) == 28, "the small one has but one, so two turns are empty"
    assert {one.module for one in found[:3]} == set(by_module)
    few = list(drawn(by_module, 2, 2))
    assert {one.module for one in few} == set(by_module), "where a round reaches not as far, the next goes on"
    assert met(mutants, [{"module": "a", "killed": True}], modules=["a", "b"]) == {
        "mutants killed": True,
        "modules of which none was drawn": False,
    }


def test_refusals_of_both_packages_are_told_apart_and_those_that_nobody_notices_are_named_so() -> None:
    rows = [{"package": package, "module": "m", "what": "w", "killed": package == "trust"} for package in refusals.PACKAGES]
    result = Result("x", "x", {}, rounds=rows)
    refusals.conclude(result)
    assert [target.met for target in result.targets] == [True, False]
    assert result.medians["vnode.checks.m"] == {"refusals": 1, "noticed": 0, "unnoticed": 1}
    assert not met(refusals, rows[:1])["refusals of `vnode.checks` that are left out and no test notices"], (
        "not measured is not met"
    )


def test_every_module_of_both_packages_that_refuses_has_tests_to_notice() -> None:
    """Also one that no test imports by itself: it is used by others of its package."""
    for package in refusals.PACKAGES:
        for path in mutants.folder_of(package).glob("*.py"):
            assert mutants.tests_of(package, path.stem) or not list(refusals.refusals_of(path.stem, path.read_text())), path.name
