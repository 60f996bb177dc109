"""Goal: what one run of the demo came to is kept in figures, whole or not at all; what is committed held, and names no machine and no path."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_demo_verdict import HONEST, IMAGES, TEXTS, kill, story

from dcnr.demo import record
from dcnr.demo.facts import Compared, Facts
from dcnr.demo.verdict import verdict_of
from dcnr.errors import Refused

ON = {"cores": 2, "cpu": "Quick 3000", "memory_gib": 7.7, "commit": "abc1234", "load_before": [0.1, 0.2, 0.3]}
WELL = replace(IMAGES, machine=ON)
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def told(facts: Facts) -> dict[str, Any]:
    return record.document(facts, verdict_of(facts))


def test_the_figures_are_those_of_the_run(tmp_path: Path) -> None:
    path = record.write(tmp_path, WELL, verdict_of(WELL))
    read = json.loads(path.read_text())
    assert (path.name, read) == ("result.json", told(WELL))
    assert (read["format"], read["example"], read["held"], read["machine"]) == ("dcnr-demo-1", "mnist", True, ON)
    assert (read["whole_s"], read["training_s"], read["aim_s"]) == (200.0, 60.0, 180.0)
    assert read["num_points"] == len(read["points"]) == len(verdict_of(WELL).points)
    assert read["exits"][1] == {"vnode": "b", "count": 1000, "correct": 995, "accuracy_percent": 99.5, "bits": 2.2}
    assert read["backprop"] == {
        "exits": [{"vnode": "a", "accuracy_percent": 98.0, "bits": 2.3}, {"vnode": "b", "accuracy_percent": 99.6, "bits": 2.2}],
        "took_s": 12.0, "threads": 2,
    }  # fmt: skip
    assert read["kills"][0] | {"durable": {}} == {
        "kind": "PNode", "vnodes": ["a"], "suspected_s": 1.0, "gone_s": 1.0, "decided_s": 2.0, "training_s": 4.0, "durable": {}, "restored": {"a": 20},
    }  # fmt: skip
    assert read["quarantined_s"] == {"p6": 5.0}
    assert (read["batches"]["durable"], read["batches"]["learned_again"], read["lookups"]) == ({"a": 100, "b": 100}, 3, 7)


def test_a_run_that_failed_says_in_which_point() -> None:
    failed = told(replace(WELL, took_s=901.0))
    assert failed["held"] is False
    assert [one["what"] for one in failed["points"] if not one["held"]] == ["all of it took at most 15 minutes"]


def test_what_was_not_seen_or_not_measured_is_none() -> None:
    unseen = told(
        replace(
            WELL, reference=Compared(trouble="slow", is_late=True), story=story(replace(kill("PNode", "p1", "a"), decided_s=None))
        )
    )
    assert unseen["backprop"] is None
    assert unseen["kills"][0]["decided_s"] is None
    assert told(replace(WELL, reference=None))["backprop"] is None


def test_no_path_and_no_id_is_in_it() -> None:
    facts = replace(WELL, export="/home/alice/.demo/export (digest 0)", manifest="f" * 40)
    text = json.dumps(told(facts))
    assert "alice" not in text
    assert HONEST not in text


def test_a_table_shows_it() -> None:
    rows = dict(record.rows(told(WELL)))
    assert rows["machine"] == "2 cores (Quick 3000), 7.7 GiB, commit abc1234, load before the run 0.1"
    assert rows["points that held"] == f"{len(verdict_of(WELL).points)} of {len(verdict_of(WELL).points)}"
    assert rows["exit 2 (`b`), test split"] == "99.5 %, 2.2 bits each"
    assert rows["SIGKILL of PNode"].endswith("training again after 4.0 s")
    assert rows["backprop, same graph and budget"] == "99.6 %, 2.2 bits each in 12.0 s, one process, 2 threads"
    assert dict(record.rows(told(replace(TEXTS, reference=None))))["machine"] == "not known"


def test_a_disk_without_room_is_told(tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        record.write(tmp_path / "gone", WELL, verdict_of(WELL))
    assert refused.value.code == "disk_trouble"


def test_committed_runs_held() -> None:
    for path in EXAMPLES.glob("*/result.json"):
        committed = json.loads(path.read_text())
        assert (committed["format"], committed["example"], committed["held"]) == ("dcnr-demo-1", path.parent.name, True), path
        assert all(one["held"] for one in committed["points"]), path
        assert len(committed["points"]) == committed["num_points"] > len(committed["exits"]), path
        assert committed["machine"]["commit"] != "unknown", path
        assert not committed["machine"]["commit"].endswith("+"), "of code that nobody else has"
        assert committed["backprop"] is not None, path
        assert {kill["kind"] for kill in committed["kills"]} == {"PNode", "orchestrator"}, path
        assert all(math.isfinite(one["bits"]) for one in committed["exits"]), path
