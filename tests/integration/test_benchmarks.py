"""Goal: every benchmark runs to its end on the real parts, writes all of its figures, and its medians and targets follow from its raw rounds alone."""

from __future__ import annotations

import importlib
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks import accelerator, audit_plot, machine, report
from benchmarks.bad_deltas import WAYS as BAD_WAYS
from benchmarks.detection import decided
from benchmarks.merging import WAYS
from benchmarks.merging_rates import WAYS as RATED_WAYS
from benchmarks.meter import Meter
from benchmarks.profiles import parse, summary, thread_cpu_s, thread_table
from benchmarks.refusals import refusals_of
from benchmarks.result import PROFILE, Options, Result, Target
from benchmarks.tolerances import table_of
from trust.ledger import Verdict
from vnode.checks.tolerances import table, tolerances_for
from vnode.devices import Device


def concluded(document: dict[str, Any]) -> dict[str, Any]:
    """The document with everything that follows from the rounds computed anew."""
    module: Any = importlib.import_module(f"benchmarks.{document['benchmark']}")
    result = Result(document["benchmark"], document["title"], document["settings"], rounds=document["rounds"])
    module.conclude(result)
    again: dict[str, Any] = json.loads(json.dumps(result.document(document["machine"])))
    return again


def run_short(name: str, tmp_path: Path) -> dict[str, Any]:
    """The short form of a benchmark, as it is written."""
    result = command.run_one(name, Options(1, tmp_path, quick=True))
    document: dict[str, Any] = json.loads(result.write(tmp_path / "out", machine.describe()).read_text())
    assert document["format"] == "dcnr-benchmark-1"
    assert {"cores", "memory_gib", "cpu", "kernel", "commit"} <= set(document["machine"])
    assert document["rounds"]
    assert document["targets"]
    for target in document["targets"]:
        assert target["value"] is not None, f"{target['name']} was not measured"
        assert math.isfinite(target["value"])
    assert concluded(document) == document
    assert document["title"] in report.table(document)
    return document


@pytest.mark.long
def test_handover_compares_both_ways_at_every_size(tmp_path: Path) -> None:
    document = run_short("handover", tmp_path)
    assert {row["size_mib"] for row in document["rounds"]} == {1, 4}
    for row in document["rounds"]:
        assert row["ours_mb_s"] > 0
        assert row["grpc_mb_s"] > 0
        assert row["tensors_mb_s"] > 0
        assert row["local_hop_us"] > 0


@pytest.mark.long
def test_failure_measures_every_fault_and_how_still_it_is_until_another_decides(tmp_path: Path) -> None:
    rows = {row["fault"]: row for row in run_short("failure", tmp_path)["rounds"]}
    assert set(rows) == {"pnode", "decider", "dark"}
    assert all(row["recovered"] for row in rows.values())
    assert 0 < rows["decider"]["still_s"] < rows["decider"]["decided_s"]
    assert rows["decider"]["still_before_s"] > 0


@pytest.mark.long
def test_store_away_measures_every_window(tmp_path: Path) -> None:
    (row,) = run_short("store_away", tmp_path)["rounds"]
    assert min(row["before"], row["away"], row["after"]) > 0
    assert 0 < row["away_still_s"] <= 3.1


@pytest.mark.long
def test_predictions_are_held_against_what_was_measured(tmp_path: Path) -> None:
    rows = run_short("predictions", tmp_path)["rounds"]
    assert {row["job"] for row in rows} == {0, 1}
    assert all(row["predicted_s"] > 0 and row["measured_s"] > 0 for row in rows)


@pytest.mark.long
def test_training_measures_the_network_and_one_process(tmp_path: Path) -> None:
    (row,) = run_short("training", tmp_path)["rounds"]
    assert row["network_samples_s"] > 0
    assert row["one_process_1_threads_samples_s"] > 0
    assert row["network_cpu_ms_per_sample_worker"] > 0


@pytest.mark.long
def test_merging_measures_every_way(tmp_path: Path) -> None:
    document = run_short("merging", tmp_path)
    for row in document["rounds"]:
        assert 0 < row["one_replica"] < 100
        assert {key.rsplit("_", 1)[0] for key in row if key.endswith("_5")} == set(WAYS)


@pytest.mark.long
def test_every_way_to_merge_is_tried_and_judged(tmp_path: Path) -> None:
    document = run_short("merging_rates", tmp_path)
    ways = {part: {row["way"] for row in document["rounds"] if row["part"] == part} for part in ("sweep", "judged")}
    assert ways["sweep"] == ways["judged"] == set(RATED_WAYS)
    assert all(0 < row["percent"] < 100 for row in document["rounds"])


@pytest.mark.long
def test_bad_deltas_measures_every_way(tmp_path: Path) -> None:
    document = run_short("bad_deltas", tmp_path)
    for row in document["rounds"]:
        assert set(row) == {"optimizer", "seed", *BAD_WAYS}
        assert all(0 < row[way] < 100 for way in BAD_WAYS)


def test_honest_machines_with_other_kernels_stay_within_the_committed_tolerances(tmp_path: Path) -> None:
    document = run_short("tolerances", tmp_path)
    assert {row["level"] for row in document["rounds"]} == {"replay", "sketch", "referee"}
    for row in document["rounds"]:
        limits = tolerances_for(row["level"], row["optimizer"], smooth=row["smooth"])
        if row["span"] <= limits.span_steps:
            assert [part for part, limit in limits.by_part.items() if row.get(part, 0.0) > limit] == [], row


@pytest.mark.long
def test_honest_machines_are_judged_with_data_that_no_tolerance_was_made_from(tmp_path: Path) -> None:
    document = run_short("honest", tmp_path)
    assert {row["level"] for row in document["rounds"]} == {"replay", "sketch"}
    assert [row for row in document["rounds"] if row["faults"]] == []


def test_an_accelerator_is_judged_by_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With this processor in its place: what is measured is how it is done. Where torch finds none the benchmark says so."""
    monkeypatch.setattr(accelerator, "STEPS", {64: 1})
    monkeypatch.setattr(accelerator, "CPU_STEPS", 1)
    result = accelerator.measured(Device("cpu", gflops=1.0), Options(1, tmp_path, quick=True))
    document = json.loads(json.dumps(result.document({})))
    assert concluded(document | {"machine": {}})["ratios"] == document["ratios"]
    assert document["ratios"]["ieee"] == {
        "intervals": 4,
        "steps": 64,
        "doubts": 0,
        "faults": 0,
        "worst": document["ratios"]["ieee"]["worst"],
    }
    assert all(target["met"] for target in document["targets"])
    monkeypatch.setattr(accelerator, "ShortenedCompute", accelerator.TorchCompute)
    blind = accelerator.measured(Device("cpu", gflops=1.0), Options(1, tmp_path, quick=True))
    assert [target.met for target in blind.targets] == [True, True, False, False], "what shortens nothing shows nothing"
    monkeypatch.setattr(accelerator, "opened", lambda wanted: Device("cpu"))
    assert command.main(["accelerator", "--quick", "--out", str(tmp_path)]) == 1


@pytest.mark.long
def test_audits_see_every_cheat_and_what_is_seen_does_not_stay(tmp_path: Path) -> None:
    document = run_short("detection", tmp_path)
    assert {row["behaviour"] for row in document["rounds"]} == set(document["settings"]["behaviours"])
    assert all(len(row["replay"]) == len(document["settings"]["machines"]) == 2 for row in document["rounds"])
    assert all(target["met"] for target in document["targets"])


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([0.9, 0.9, 0.9, 0.9], Verdict.PASSED), ([1.1, 0.9, 0.9, 0.9], Verdict.PASSED), ([1.1, 1.1, 1.1, 1.1], Verdict.UNVERIFIABLE),
        ([0.9, 1.1, 1.1, 1.1], Verdict.PASSED), ([1.9, 2.1, 2.1, 2.1], Verdict.UNVERIFIABLE), ([2.1, 2.1, 2.1, 2.1], Verdict.FAILED),
    ],
)  # fmt: skip
def test_detection_counts_what_a_real_desk_decides_whoever_is_drawn(ratios: list[float], verdict: Verdict) -> None:
    """The verifier, whose machine is the first, has the last word; what it faults fails, what it doubts with others is taken back."""
    assert {decided(ratios, seed=f"interval {number}") for number in range(12)} == {verdict}


def test_the_committed_tolerances_are_those_of_the_committed_measurement() -> None:
    document = json.loads((command.DEFAULT_OUT / "tolerances.json").read_text())
    assert table_of(document["rounds"], document["settings"]) == table()


@pytest.mark.long
def test_startup_measures_commands_and_daemons(tmp_path: Path) -> None:
    (row,) = run_short("startup", tmp_path)["rounds"]
    assert row["pnode_help_s"] > row["python_nothing_s"] > 0
    assert row["daemon_hosting_rss_mib"] > 10


@pytest.mark.long
def test_serving_asks_a_network_and_one_process(tmp_path: Path) -> None:
    (row,) = run_short("serving", tmp_path)["rounds"]
    assert row["hops"] == 1
    assert row["network_small_samples_s"] > 0
    assert row["network_large_samples_s"] > 0
    assert row["one_process_1_threads_16_together_samples_s"] > 0
    assert row["served_small_1_threads_samples_s"] > 0
    assert row["served_large_1_threads_samples_s"] > 0


@pytest.mark.long
def test_scale_measures_plans_beats_and_entries(tmp_path: Path) -> None:
    document = run_short("scale", tmp_path)
    (row,) = document["rounds"]
    for size in document["settings"]["num_replicas"]:
        assert row[f"first_plan_of_{size}_s"] > 0
        assert row[f"replan_of_{size}_ms"] > 0
    assert row["beat_us"] > 0


@pytest.mark.long
def test_deciders_are_struck_and_every_job_ends(tmp_path: Path) -> None:
    (row,) = run_short("deciders", tmp_path)["rounds"]
    assert (row["outcome"], row["wrong"]) == ("completed", [])
    assert row["strikes"] > 0


@pytest.mark.long
def test_suspicion_judges_days_of_beats(tmp_path: Path) -> None:
    (row,) = run_short("suspicion", tmp_path)["rounds"]
    assert row["node_days"] == 0.04
    assert row["detected_p50_s"] > 0


@pytest.mark.long
def test_discovery_measures_every_phase(tmp_path: Path) -> None:
    (row,) = run_short("discovery", tmp_path)["rounds"]
    assert row["get_after_kill_ok"] > 0


@pytest.mark.long
def test_the_dashboard_is_measured_in_a_browser(tmp_path: Path) -> None:
    document = run_short("dashboard", tmp_path)
    assert document["settings"]["pnodes"] == 50
    assert document["medians"]["first_paint_s"] > 0


def test_the_ends_of_the_hand_over_have_a_workers_threads() -> None:
    from benchmarks import handover_ends
    from pnode import worker

    assert handover_ends.EXECUTOR_THREADS == worker.EXECUTOR_THREADS


def test_a_target_that_was_not_measured_is_not_met() -> None:
    assert not Target("x", None, 1.0, "s", at_least=False).met
    assert not Target("x", math.nan, 1.0, "s", at_least=True).met
    assert Target("x", 1.0, 1.0, "s", at_least=False).met
    assert not Target("x", 1.1, 1.0, "s", at_least=False).met


def test_the_meter_counts_what_was_learned_between_two_moments() -> None:
    meter = Meter(100, ("a", "b"))
    for vnode, delay in (("a", 0.0), ("b", 1.0)):
        for second in range(11):
            meter.add(vnode, 50.0 + second + delay, 10 * second)
        meter.add(vnode, 70.0, 40)  # restored: learns again what counts already
    assert meter.began_s == 52.0
    assert meter.ended_s == 61.0
    assert meter.rate(53.0, 57.0) == pytest.approx(10.0)
    assert meter.rate(53.0, 53.0) is None


def test_a_profile_names_the_functions_and_threads_that_take_the_time() -> None:
    stacks = parse("a (x.py:1);b (x.py:22) 3\na (x.py:7) 1\nnot a stack\n")
    assert stacks == Counter({("a (x.py)", "b (x.py)"): 3, ("a (x.py)",): 1})
    text = summary(stacks)
    assert " 75.0 %  b (x.py)" in text
    assert "100.0 %  a (x.py)" in text
    import os

    used = thread_cpu_s(os.getpid())
    assert sum(used.values()) > 0
    assert "ms per batch" in thread_table({}, used, 10, "batch")


def strange_profiles(directory: Path) -> list[str]:
    """Names of profiles whose machine, commit or load is not that of the result beside them."""
    found = []
    for path in sorted(directory.glob(f"*{PROFILE}")):
        result = path.with_name(path.name.removesuffix(PROFILE) + ".json")
        if path.read_text().partition("\n")[0] != json.dumps(json.loads(result.read_text())["machine"]):
            found.append(path.name)
    return found


def test_a_committed_profile_is_of_the_run_that_its_result_is_of(tmp_path: Path) -> None:
    assert strange_profiles(command.DEFAULT_OUT) == [], "run the benchmark again with --profile"
    result = Result("training", "t", {}, profile="where the time goes")
    result.write(tmp_path, {"commit": "a1"})
    assert strange_profiles(tmp_path) == []
    profile = tmp_path / f"training{PROFILE}"
    assert profile.read_text().endswith("where the time goes\n")
    document = json.loads((tmp_path / "training.json").read_text())
    (tmp_path / "training.json").write_text(json.dumps(document | {"machine": {"commit": "b2"}}))
    assert strange_profiles(tmp_path) == [profile.name]
    Result("training", "t", {}).write(tmp_path, {"commit": "b2"})
    assert not profile.exists(), "a run without a profile leaves none of an earlier one"


def test_committed_figures_follow_from_their_rounds_and_the_document_shows_them() -> None:
    for path in sorted(command.DEFAULT_OUT.glob("*.json")):
        document = json.loads(path.read_text())
        assert concluded(document) == document, path.name
    text = report.README.read_text()
    assert report.with_tables(text, command.DEFAULT_OUT) == text, "run: python -m benchmarks report"
    sources = report.audited(report.documents(command.DEFAULT_OUT))
    assert sources is not None
    assert (command.DEFAULT_OUT / audit_plot.NAME).read_text() == audit_plot.svg(*sources), "run: python -m benchmarks report"


@pytest.mark.long
def test_attackers_are_found_out_and_the_job_ends(tmp_path: Path) -> None:
    (row,) = run_short("attackers", tmp_path)["rounds"]
    assert row["steps_kept"] <= row["steps"]
    assert row["bad_kept"] <= row["bad_offered"]
    assert row["honest_quarantined"] == 0


@pytest.mark.long
def test_the_cost_of_audits_falls_with_the_record(tmp_path: Path) -> None:
    document = run_short("audit_cost", tmp_path)
    bundles = [row for row in document["rounds"] if "bundle_bytes" in row]
    assert any(row["anchors_bytes"] for row in bundles)
    assert any(row["between_bytes"] for row in bundles)
    assert all(row["bundle_bytes"] > row["frames_bytes"] == row["in_bytes"] + row["out_bytes"] for row in bundles)
    curve = [document["ratios"][f"after_{passes}_passes"]["rate"] for passes in document["settings"]["passes"]]
    assert curve[0] == 1.0
    assert curve == sorted(curve, reverse=True)
    assert curve[-1] == 0.05


@pytest.mark.long
def test_what_a_step_waits_for_its_entry_is_measured(tmp_path: Path) -> None:
    document = run_short("commits", tmp_path)
    assert {row["audited"] for row in document["rounds"]} == {False, True}
    assert all(0 <= row["waited_s"] < row["step_s"] for row in document["rounds"])


@pytest.mark.long
def test_changes_to_the_policy_are_noticed_by_its_tests(tmp_path: Path) -> None:
    rows = run_short("mutants", tmp_path)["rounds"]
    assert [row["killed"] for row in rows] == [True] * len(rows)


@pytest.mark.long
def test_a_refusal_that_is_left_out_is_missed_by_a_test(tmp_path: Path) -> None:
    document = run_short("refusals", tmp_path)
    assert len(document["rounds"]) > 3
    assert [target["met"] for target in document["targets"]] == [True, True]


def test_each_refusal_and_each_part_of_one_is_left_out_once() -> None:
    source = """
def opened(data):
    if not 0 < len(data) <= 9 or data in KNOWN:
        raise Refused
    check_name(data)
    try:
        found = Found(check_digest(data))
    except ValueError as error:
        raise Corrupt("x") from error
    return found.a and found.b
"""
    left_out = {one.what: one.source for one in refusals_of("m", source)}
    assert sorted(left_out) == sorted([
        "not 0 < len(data) <= 9 or data in KNOWN", "not 0 < len(data) <= 9", "0 < len(data)", "len(data) <= 9", "data in KNOWN",
        "found.a and found.b", "found.a", "found.b", "check_name(data)", "raise Corrupt('x') from error", "check_digest(data)",
    ])  # fmt: skip
    assert len(set(left_out.values())) == len(left_out)
    assert "if not len(data) <= 9 or data in KNOWN:" in left_out["0 < len(data)"]
    assert "found = Found(data)" in left_out["check_digest(data)"]


def test_optimizers_are_compared_on_the_same_batches(tmp_path: Path) -> None:
    result = command.run_one("optimizers", Options(1, tmp_path, quick=True))
    assert {(row["example"], row["optimizer"]) for row in result.rounds} == {("text", "sgd"), ("text", "adamw")}
    assert all(math.isfinite(row["bits"]) for row in result.rounds)


@pytest.mark.long
def test_gateway_measures_readers_watchers_and_twins(tmp_path: Path) -> None:
    document = run_short("gateway", tmp_path)
    (row,) = document["rounds"]
    assert row["reads_per_s"] > 0
    met = {target["name"]: target["met"] for target in document["targets"]}
    assert met["jobs of all twins"]
    assert met["wrong answers to readers"]
    assert met["watchers without news"]
    document["rounds"][0] |= {"errors": 1, "twin_jobs": 2, "watchers_without": 1, "reads_per_s": 1.0, "submit_p99_ms": 2000.0}
    assert not any(target["met"] for target in concluded(document)["targets"])
