"""Goal: a schedule that contradicts itself is refused with what contradicts; the committed ones are what their recipes make; a file is read strictly."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chaos.__main__ import name_of, parser, setup_of, without
from chaos.committed import COMMANDS
from chaos.run import scheduled
from chaos.schedule import (
    NO_MACHINE,
    Fault,
    Kind,
    Recipe,
    Schedule,
    check_recipe,
    check_schedule,
    first_pairs,
    from_json,
    make_schedule,
    to_json,
)
from dcnr.errors import InvalidInput

COMMITTED = sorted((Path(__file__).resolve().parents[2] / "chaos" / "schedules").glob("*.json"))
RESULTS = COMMITTED[0].parents[1] / "results"
RUNS = sorted(path for path in RESULTS.glob("*.json") if path.stem not in {"crashes", "joining"})
RECIPE = Recipe(seed=1, num_victims=4, pairs=2, window_s=60.0, faults_per_hour=300.0, max_down=2)
MADE = Recipe(seed=1, num_victims=8, pairs=2, window_s=60.0, faults_per_hour=180.0, max_down=3)
FIRST_S = 60.0
"""Where the first window with faults begins."""


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_a_committed_schedule_is_what_its_recipe_makes(path: Path) -> None:
    schedule = from_json(path.read_text())
    assert schedule == make_schedule(schedule.recipe)
    assert to_json(schedule) == path.read_text()


def test_the_schedule_of_the_figure_has_its_rate_and_mix() -> None:
    schedule = from_json(next(path for path in COMMITTED if path.stem == "faults125").read_text())
    faulty_s = schedule.recipe.pairs * schedule.recipe.window_s
    assert round(3600 * len(schedule.faults) / faulty_s) in range(122, 129)
    kinds = Counter(fault.kind for fault in schedule.faults)
    assert abs(kinds[Kind.KILL] - 0.62 * len(schedule.faults)) < 1
    assert abs(kinds[Kind.PARTITION] - 0.20 * len(schedule.faults)) < 1


@pytest.mark.parametrize(
    ("code", "faults"),
    [
        ("fault_outside_window", [Fault(10.0, Kind.KILL, 0)]),
        ("fault_outside_window", [Fault(-1.0, Kind.KILL, 0)]),
        ("fault_outside_window", [Fault(1e6, Kind.KILL, 0)]),
        ("fault_outlasts_window", [Fault(FIRST_S + 50, Kind.PAUSE, 0, 8.0)]),
        ("unknown_victim", [Fault(FIRST_S, Kind.KILL, 4)]),
        ("unknown_victim", [Fault(FIRST_S, Kind.KILL, -1)]),
        ("unknown_victim", [Fault(FIRST_S, Kind.HOLDER, 0)]),
        ("unknown_victim", [Fault(FIRST_S, Kind.WORKER, NO_MACHINE)]),
        ("wrong_duration", [Fault(FIRST_S, Kind.WORKER, 0, 1.0)]),
        ("wrong_duration", [Fault(FIRST_S, Kind.HOLDER, NO_MACHINE, 1.0)]),
        ("wrong_duration", [Fault(FIRST_S, Kind.IMPAIR, 0)]),
        ("overlapping_faults", [Fault(FIRST_S, Kind.HOLDER, NO_MACHINE), Fault(FIRST_S + 5, Kind.HOLDER, NO_MACHINE)]),
        ("overlapping_faults", [Fault(FIRST_S, Kind.WORKER, 0), Fault(FIRST_S + 5, Kind.KILL, 0)]),
        ("wrong_duration", [Fault(FIRST_S, Kind.KILL, 0, 1.0)]),
        ("wrong_duration", [Fault(FIRST_S, Kind.PARTITION, 0)]),
        ("wrong_duration", [Fault(FIRST_S, Kind.PAUSE, 0, -2.0)]),
        ("unordered_faults", [Fault(FIRST_S + 9, Kind.KILL, 0), Fault(FIRST_S, Kind.KILL, 1)]),
        ("overlapping_faults", [Fault(FIRST_S, Kind.PAUSE, 0, 9.0), Fault(FIRST_S + 5, Kind.KILL, 0)]),
        ("overlapping_faults", [Fault(FIRST_S, Kind.KILL, 0), Fault(FIRST_S + 19, Kind.PARTITION, 0, 4.0)]),
        ("too_many_down", [Fault(FIRST_S + number, Kind.PAUSE, number, 9.0) for number in range(3)]),
        ("too_many_down", [Fault(FIRST_S + 6 * number, Kind.KILL, number) for number in range(3)]),
        ("bad_schedule", [Fault(float("nan"), Kind.KILL, 0)]),
    ],
)
def test_a_contradiction_is_refused_with_its_name(code: str, faults: list[Fault]) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_schedule(Schedule(RECIPE, tuple(faults)))
    assert caught.value.code == code


@pytest.mark.parametrize(
    "change",
    [
        {"kill_share": 0.9}, {"kill_share": -0.2, "partition_share": 1.02}, {"num_victims": 0}, {"pairs": 0}, {"window_s": 0.0},
        {"window_s": 15.0}, {"faults_per_hour": -1.0}, {"shortest_s": 20.0}, {"shortest_s": 0.0}, {"rest_s": -1.0}, {"max_down": 5},
        {"window_s": float("inf")}, {"pairs": 10_000}, {"faults_per_hour": 1e9},
        {"faults_per_hour": 1e308}, {"pairs": 10**400}, {"seed": 10**400}, {"num_victims": 10**400}, {"rest_s": float("nan")},
    ],
)  # fmt: skip
def test_a_recipe_that_means_nothing_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_recipe(replace(RECIPE, **change))
    assert caught.value.code == "bad_recipe"


def test_more_faults_than_the_machines_can_bear_are_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        make_schedule(replace(RECIPE, num_victims=1, max_down=1, faults_per_hour=1000.0))
    assert caught.value.code == "too_many_faults"


def test_without_some_kinds_their_share_goes_to_the_others() -> None:
    schedule = without(make_schedule(MADE), {Kind.PARTITION})
    assert Kind.PARTITION not in {fault.kind for fault in schedule.faults}
    assert len(schedule.faults) == MADE.num_faults
    with pytest.raises(InvalidInput) as caught:
        without(schedule, {Kind.KILL, Kind.PAUSE})
    assert caught.value.code == "bad_schedule"


def test_one_committed_schedule_has_every_kind_of_fault() -> None:
    schedule = from_json(next(path for path in COMMITTED if path.stem == "every_kind").read_text())
    assert {fault.kind for fault in schedule.faults} == set(Kind)
    assert {fault.victim for fault in schedule.faults if fault.kind is Kind.HOLDER} == {NO_MACHINE}
    without_links = setup_of(parser().parse_args(["run", "--schedule", "every_kind", "--no-partitions"])).schedule
    assert {fault.kind for fault in without_links.faults} == set(Kind) - {Kind.PARTITION, Kind.IMPAIR}


def test_a_decider_that_is_killed_is_no_machine_that_is_down() -> None:
    faults = (
        Fault(FIRST_S, Kind.PAUSE, 0, 9.0),
        Fault(FIRST_S + 1, Kind.HOLDER, NO_MACHINE),
        Fault(FIRST_S + 2, Kind.PAUSE, 1, 9.0),
    )
    check_schedule(Schedule(RECIPE, faults))


@pytest.mark.parametrize(
    "damage",
    [
        lambda table: table | {"format": "dcnr-chaos-schedule-0"},
        lambda table: table | {"more": 1},
        lambda table: {key: value for key, value in table.items() if key != "faults"},
        lambda table: table | {"recipe": table["recipe"] | {"sed": 1}},
        lambda table: table | {"recipe": table["recipe"] | {"seed": 1.5}},
        lambda table: table | {"recipe": table["recipe"] | {"window_s": "60"}},
        lambda table: table | {"recipe": []},
        lambda table: table | {"faults": [[61.0, "hail", 0, 0.0]]},
        lambda table: table | {"faults": [[61.0, "kill", 0]]},
        lambda table: table | {"faults": [[61.0, "kill", True, 0.0]]},
        lambda table: table | {"faults": 3},
        lambda table: [table],
        lambda table: table | {"faults": [[10**400, "kill", 0, 0.0]]},
    ],
)
def test_a_file_of_another_form_is_refused(damage: Any) -> None:
    table = json.loads(to_json(make_schedule(MADE)))
    with pytest.raises(InvalidInput) as caught:
        from_json(json.dumps(damage(table)))
    assert caught.value.code == "bad_schedule"


@pytest.mark.parametrize("name", ["pairs", "seed", "num_victims"])
def test_a_file_with_a_number_that_no_machine_can_count_to_is_refused(name: str) -> None:
    table = json.loads(to_json(make_schedule(MADE)))
    with pytest.raises(InvalidInput) as caught:
        from_json(json.dumps(table | {"recipe": table["recipe"] | {name: 10**400}}))
    assert caught.value.code == "bad_recipe"


def test_the_first_pairs_of_a_schedule_are_a_schedule() -> None:
    whole = make_schedule(MADE)
    half = first_pairs(whole, 1)
    check_schedule(half)
    assert half.recipe.length_s == 2 * MADE.window_s
    assert half.faults == tuple(fault for fault in whole.faults if fault.at_s < half.recipe.length_s)
    assert 0 < len(half.faults) < len(whole.faults)
    assert first_pairs(whole, 2) == whole
    for pairs in (0, 3):
        with pytest.raises(InvalidInput):
            first_pairs(whole, pairs)


@pytest.mark.parametrize(
    "command",
    [[], ["run"], ["join"], ["schedule"], ["crashes"], ["report"], ["clean"]],
    ids=lambda words: " ".join(words) or "chaos",
)
def test_every_command_explains_itself(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args([*command, "--help"])
    assert ended.value.code == 0
    assert "--help" in capsys.readouterr().out


@pytest.mark.parametrize("size", ["0", "-3"])
def test_a_unit_without_batches_is_refused_before_anything_starts(size: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        setup_of(parser().parse_args(["run", "--unit-batches", size]))
    assert refused.value.code == "bad_unit"


def settings_of(command: str) -> tuple[str, dict[str, Any]]:
    """The name and the settings of the result that a command of `chaos.committed` makes."""
    options = parser().parse_args(command.split())
    setup = setup_of(options)
    if setup.batches_per_s:
        setup = scheduled(setup)
    return name_of(options, setup), json.loads(json.dumps(setup.settings()))


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_a_committed_result_has_the_settings_of_the_command_that_is_named_for_it(path: Path) -> None:
    found = json.loads(path.read_text())["settings"]
    name, settings = settings_of(COMMANDS[path.stem])
    settings = {key: value for key, value in settings.items() if key in found}
    if not settings.get("batches_per_s"):
        del settings["num_batches"], found["num_batches"]  # by the rate of a job before it
    assert (name, settings) == (path.stem, found)


def test_the_command_without_flags_is_the_figure() -> None:
    name, settings = settings_of("run")
    assert name == "faults125_wide"
    assert (settings["num_pnodes"], settings["num_vnodes"], settings["replicas_per_vnode"]) == (16, 8, 4)
    assert (settings["batches_per_s"], settings["unit_batches"]) == (2.5, 1)
    assert settings_of("run --at-limit")[0] == "faults125_wide_at_limit", "another setting overwrites no other result"
    assert settings_of("run --no-faults")[0] == "faults125_wide_undisturbed"
