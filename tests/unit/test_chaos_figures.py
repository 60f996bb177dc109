"""Goal: the figures of a run follow from its raw rows alone, each goes wrong when what it measures does, and the page shows the committed ones."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from chaos import joining, report, targets
from chaos.__main__ import MISSED_EXIT, ended
from chaos.figures import TIMES, conclude
from chaos.plot import svg
from chaos.rounds import ROUNDS
from chaos.schedule import Fault, Kind
from chaos.track import Tracker
from dcnr.crashpoints import POINTS
from dcnr.v1 import model_pb2, orchestrator_pb2

RESULTS = Path(__file__).resolve().parents[2] / "chaos" / "results"
RUNS = sorted(path for path in RESULTS.glob("*.json") if path.stem not in ("crashes", "joining"))


def document(**changes: Any) -> dict[str, Any]:
    """Two pairs of windows of ten seconds: 4 batches per second without faults, 3 with them."""
    learned = [
        [float(second), float(4 * second - max(0, second - 10) + max(0, second - 20) - max(0, second - 30))] for second in range(42)
    ]
    rows = [
        {"kind": "kill", "victim": 0, "at_s": 11.0, "hosted": ["a"], "over_s": 0.5, "detected_s": 0.3, "learning_s": 4.0, "back_s": 7.0, "gap_s": 0.4},
        {"kind": "kill", "victim": 1, "at_s": 31.0, "hosted": ["a"], "over_s": 0.5, "detected_s": 0.5, "learning_s": 6.0, "back_s": None},
        {"kind": "pause", "victim": 2, "at_s": 35.0, "hosted": [], "over_s": 2.0, "detected_s": None, "learning_s": 0.0, "back_s": None},
    ]  # fmt: skip
    return {
        "settings": {"pairs": 2, "window_s": 10.0, "replicas_per_vnode": 3}, "load": [[5.0, 90.0], [12.0, 60.0], [31.0, 50.0]],
        "learned": learned, "faults": rows, "shares": [[5.0, 4, 0], [12.0, 4, 4], [32.0, 4, 2]],
        "outcome": {"state": "completed", "lineages_exact": 2, "num_vnodes": 2, "loss": {"a": 2.0, "b": 1.5}}, **changes,
    }  # fmt: skip


def test_rates_come_in_pairs() -> None:
    figures = conclude(document())
    assert [pair["kept"] for pair in figures["pairs"]] == [0.75, 0.75]
    assert [pair["faults"] for pair in figures["pairs"]] == [1, 2]
    assert (figures["rate_without"], figures["rate_with"], figures["rate_kept"]) == (4.0, 3.0, 0.75)


def test_a_job_that_ended_early_has_fewer_pairs() -> None:
    short = document(learned=document()["learned"][:25])
    assert len(conclude(short)["pairs"]) == 1
    assert conclude(document(learned=[]))["rate_kept"] is None


def test_recovery_is_told_by_kind_and_only_where_something_was_hosted() -> None:
    by_kind = conclude(document())["by_kind"]
    assert by_kind["kill"]["learning_s"] == {"p50": 5.0, "p99": None, "max": 6.0, "seen": 2}
    assert by_kind["kill"]["back_s"] == {"p50": 7.0, "p99": None, "max": 7.0, "seen": 1}
    assert by_kind["kill"]["gap_s"] == {"p50": 0.4, "p99": None, "max": 0.4, "seen": 1}
    assert by_kind["pause"] == {
        "faults": 1,
        "hosting": 0,
        **{name: {"p50": None, "p99": None, "max": None, "seen": 0} for name in TIMES},
    }


def test_a_percentile_is_told_of_a_hundred_values_only() -> None:
    row = document()["faults"][0]
    for count, p99 in ((99, None), (100, 9.9)):
        rows = [{**row, "gap_s": number / 10} for number in range(1, count + 1)]
        assert conclude(document(faults=rows))["by_kind"]["kill"]["gap_s"]["p99"] == p99


def held(**changes: Any) -> dict[str, bool]:
    """What a run is held against, by name, and whether it is met."""
    return {row["name"]: row["met"] for row in conclude(document(**changes))["targets"]}


def good(**changes: Any) -> dict[str, Any]:
    """A run that misses nothing, and what of it is changed."""
    rows = [{**row, "back_s": 3.0, "gap_s": 0.4} for row in document()["faults"]]
    return {
        "learned": [[float(second), 4.0 * second] for second in range(42)], "faults": rows, "shares": [[12.0, 10, 9]], **changes,
    }  # fmt: skip


def test_a_run_is_held_against_limits_and_each_can_be_missed() -> None:
    assert all(held(**good()).values())
    assert targets.missed(conclude(document(**good()))) == []
    rows = good()["faults"]
    for changes, name in (
        ({"learned": [[float(second), 4.0 * second - max(0.0, second - 10) / 5] for second in range(42)]}, "rate kept"),
        ({"learned": [[float(second), 4.0 * second] for second in range(25)]}, "pairs of windows"),
        ({"shares": [[12.0, 10, 9], [12.5, 10, 8, 10, 10]]}, "contribute, least at any time"),
        ({"load": [[5.0, 10.0], [12.0, 61.0], [31.0, 60.0]]}, "processor free in the windows with faults"),
        ({"faults": [rows[0] | {"gap_s": 1.1}, *rows[1:]]}, "kill: no replica"),
        ({"faults": [rows[0] | {"gap_s": None}, *rows[1:]]}, "kill: no replica"),
        ({"faults": [rows[0] | {"back_s": 31.0}, *rows[1:]]}, "kill: its machine"),
        ({"faults": [rows[0], rows[1] | {"back_s": None}]}, "kill: its machine"),
    ):
        missed = targets.missed(conclude(document(**good(**changes))))
        assert len(missed) == 1
        assert name in missed[0]


def test_a_single_replica_is_held_against_the_time_until_another_machine_learns() -> None:
    settings = document()["settings"] | {"replicas_per_vnode": 1}
    assert held(**good(settings=settings))["kill: its VNodes learn elsewhere, median of 2"]
    slow = [{**row, "learning_s": 11.0} for row in good()["faults"]]
    assert not held(**good(settings=settings, faults=slow))["kill: its VNodes learn elsewhere, median of 2"]


def test_a_run_without_faults_is_held_to_nothing() -> None:
    assert held(faults=[]) == {}
    assert targets.table([]) == ""


def joined(**changes: Any) -> dict[str, Any]:
    """Machines that join at second 0 of a network that learns four batches per second."""
    return {
        "settings": {"before_s": 60.0, "after_s": 90.0}, "contributed_s": [5.0, 9.0],
        "learned": [[float(second), 4.0 * second] for second in range(-60, 91)], **changes,
    }  # fmt: skip


def test_joiners_are_held_against_their_start_and_what_they_cost_the_others() -> None:
    dip = [[second, count - 9.0 * (second >= 10)] for second, count in joined()["learned"]]
    for changes, met in (
        ({}, [True, True]),
        ({"contributed_s": [5.0, None]}, [False, True]),
        ({"contributed_s": [5.0, 31.0]}, [False, True]),
        ({"learned": dip}, [True, False]),
    ):
        assert [row["met"] for row in joining.conclude(joined(**changes))["targets"]] == met


def test_the_exit_code_tells_a_missed_limit_from_what_must_always_hold() -> None:
    fine, late = conclude(document(**good())), conclude(document(**good(shares=[[12.0, 10, 8]])))
    assert [ended(fine, held=True), ended(late, held=True), ended(late, held=False)] == [0, MISSED_EXIT, 1]
    assert MISSED_EXIT > 6, "other exit codes are those of errors"


def test_shares_count_in_windows_with_faults_only() -> None:
    assert conclude(document())["contributing"] == 0.75
    assert conclude(document())["contributing_least"] == 0.5
    assert conclude(document())["rate_kept_together"] == 0.75
    assert "settled" not in conclude(document()), "runs that did not count it have no such figure"
    counted = conclude(document(shares=[[5.0, 4, 0, 4, 0], [12.0, 4, 3, 3, 3], [32.0, 4, 2, 3, 2], [33.0, 4, 2, 0, 0]]))
    assert (counted["contributing_least"], counted["settled"], counted["settled_least"]) == (0.5, 0.8333, 0.6667)


def test_a_standstill_is_the_longest_gap() -> None:
    learned = document()["learned"]
    stood = [[second, count if second < 20 else learned[20][1]] for second, count in learned] + [[60.0, 1000.0]]
    assert conclude(document(learned=stood))["longest_gap_s"] == 40.0


def test_the_picture_is_xml_with_a_mark_per_fault() -> None:
    picture = svg(document())
    ET.fromstring(picture)
    assert picture.count('stroke-width="0.8"') == 3


def view(now: dict[str, tuple[str, str, int, int]], nodes: dict[str, int]) -> orchestrator_pb2.WatchJobResponse:
    """VNode: (replica, PNode, incarnation, learned); PNode: state."""
    found = orchestrator_pb2.WatchJobResponse(job=orchestrator_pb2.JobView(job_id="j", num_batches=100))
    for vnode, (replica, pnode_id, incarnation, learned) in now.items():
        found.job.vnodes.add(
            vnode=vnode,
            assignment=model_pb2.Assignment(vnode=vnode, replica=replica, pnode_id=pnode_id),
            report=orchestrator_pb2.ReplicaReport(
                replica=replica, vnode=vnode, incarnation=incarnation, num_learned=learned,
                state=orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE,
            ),
        )  # fmt: skip
    for node_id, state in nodes.items():
        found.nodes.add(node_id=node_id, state=state)  # type: ignore[arg-type]  # an enum's number
    return found


def test_a_kill_is_noticed_made_good_elsewhere_and_its_machine_comes_back() -> None:
    up, gone = orchestrator_pb2.NODE_STATE_ACTIVE, orchestrator_pb2.NODE_STATE_OFFLINE
    tracker = Tracker()
    tracker.seen(0.0, view({"a": ("a.1", "p1", 5, 10)}, {"p1": up, "p2": up}))
    struck = tracker.strikes(Fault(1.0, Kind.KILL, 0), "p1", 1.0)
    assert struck.hosted == ("a",)
    tracker.seen(1.1, view({"a": ("a.1", "p1", 5, 12)}, {"p1": up, "p2": up}))
    assert struck.suspected_s is None
    tracker.seen(1.4, view({"a": ("a.1", "p1", 5, 12)}, {"p1": orchestrator_pb2.NODE_STATE_SUSPECT, "p2": up}))
    struck.over_s = 1.5
    tracker.seen(1.6, view({"a": ("a.1", "p1", 5, 12)}, {"p2": up}))
    assert (struck.suspected_s, struck.gone_s) == (1.4, None), "being suspected, or unknown to somebody new, has no consequence"
    tracker.seen(1.7, view({"a": ("a.1", "p1", 5, 12)}, {"p1": gone, "p2": up}))
    assert struck.gone_s == 1.7, "its old life is taken for gone, though it was started again"
    tracker.seen(2.0, view({"a": ("a.1", "p1", 5, 13)}, {"p1": gone, "p2": up}))
    assert struck.learning_s is None, "a late report of the dead copy proves nothing"
    tracker.seen(3.0, view({"a": ("a.2", "p2", 7, 8)}, {"p1": gone, "p2": up}))
    assert struck.learning_s is None, "restored is not learned"
    tracker.seen(4.0, view({"a": ("a.2", "p2", 7, 9)}, {"p1": up, "p2": up}))
    assert (struck.gone_s, struck.learning_s, struck.back_s) == (1.7, 4.0, None)
    tracker.seen(5.0, view({"a": ("a.3", "p1", 9, 9)}, {"p1": up, "p2": up}))
    tracker.seen(6.0, view({"a": ("a.3", "p1", 9, 11)}, {"p1": up, "p2": up}))
    assert struck.row(0.0) == {
        "kind": "kill", "victim": 0, "at_s": 1.0, "hosted": ["a"], "over_s": 0.5, "suspected_s": 0.4, "gone_s": 0.7,
        "learning_s": 3.0, "back_s": 4.5,
    }  # fmt: skip


def test_a_killed_worker_of_which_its_daemon_says_nothing_is_counted() -> None:
    row = {**document()["faults"][0], "kind": "worker"}
    figures = conclude(document(faults=[row | {"told": False}, row | {"told": True}]))
    assert (figures["untold"], figures["by_kind"]["worker"]["faults"]) == (1, 2)
    assert "killed workers of which their daemon said nothing | 1" in report.run_table(document(faults=[row], figures=figures))


def test_a_paused_copy_counts_again_when_the_pause_is_over() -> None:
    up = orchestrator_pb2.NODE_STATE_ACTIVE
    tracker = Tracker()
    tracker.seen(0.0, view({"a": ("a.1", "p1", 5, 10)}, {"p1": up}))
    struck = tracker.strikes(Fault(1.0, Kind.PAUSE, 0, 2.0), "p1", 1.0)
    tracker.seen(2.0, view({"a": ("a.1", "p1", 5, 11)}, {"p1": up}))
    struck.over_s = 3.0
    tracker.seen(3.1, view({"a": ("a.1", "p1", 5, 11)}, {"p1": up}))
    assert struck.learning_s is None
    tracker.seen(3.6, view({"a": ("a.1", "p1", 5, 14)}, {"p1": up}))
    assert (struck.learning_s, struck.back_s, struck.gone_s) == (3.6, 3.6, None)


def test_alive_is_not_contributing() -> None:
    up = orchestrator_pb2.NODE_STATE_ACTIVE
    tracker = Tracker()
    for second in range(30):
        now = {"a": ("a.1", "p1", 5, 10 + second), "b": ("b.1", "p2", 5, min(15, 10 + second))}
        tracker.seen(float(second), view(now, {"p1": up, "p2": up}))
    assert tracker.shares[8] == (8.0, 2, 2, 2, 2)
    assert tracker.shares[-1] == (29.0, 2, 1, 2, 1)


def test_a_machine_that_has_just_come_back_is_counted_apart() -> None:
    up = orchestrator_pb2.NODE_STATE_ACTIVE
    tracker = Tracker()
    for second in range(40):
        now = {"a": ("a.1", "p1", 5, 10 + second), "b": ("b.1", "p2", 5, 10 + (second if second < 12 else 12))}
        if second == 12:
            struck = tracker.strikes(Fault(12.0, Kind.PAUSE, 1, 4.0), "p2", 12.0)
        if second == 16:
            struck.over_s = 16.0
        tracker.seen(float(second), view(now, {"p1": up, "p2": up}))
    assert tracker.shares[14] == (14.0, 1, 1, 1, 1)
    assert tracker.shares[25] == (25.0, 2, 1, 1, 1)
    assert tracker.shares[26] == (26.0, 2, 1, 2, 1)


def test_every_crash_point_has_one_round() -> None:
    assert sorted(round_.point for round_ in ROUNDS) == sorted(POINTS)


def test_committed_figures_of_joiners_follow_from_their_rows() -> None:
    found = json.loads((RESULTS / "joining.json").read_text())
    assert joining.conclude(found) == found["figures"]


def test_committed_figures_follow_from_their_rows() -> None:
    for path in RUNS:
        found = json.loads(path.read_text())
        assert conclude(found) == found["figures"], path.name
        assert svg(found) == path.with_suffix(".svg").read_text(), path.name


def test_the_page_shows_what_is_committed() -> None:
    text = report.PAGE.read_text()
    assert report.with_results(text, RESULTS) == text, "run: python -m chaos report"
