"""Goal: what `dcnr ledger` says as JSON has exactly the documented fields, and keeps the chain's word and an orchestrator's apart."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest

from dcnr.cli import ledger as command
from dcnr.ledger_check import Account
from dcnr.ledger_rows import export_rows, score_rows, usage_rows
from dcnr.v1 import identity_pb2, ledger_pb2
from orchestrator.ledger_rpc import score_message
from orchestrator.results import Kind, Result
from orchestrator.track import TrackRecords
from trust.envelope import seal
from trust.identity import NodeKey
from trust.usage import open_usage

SCHEMA = (Path(__file__).parents[2] / "docs" / "reference" / "ledger.md").read_text()
NODE, OTHER = "a" * 40, "b" * 40


def section(heading: str) -> str:
    return SCHEMA.partition(heading)[2].partition("\n## ")[0]


def documented(text: str) -> set[str]:
    """Names in the first column of a table."""
    return {name for row in re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}


def answer() -> ledger_pb2.ListScoresResponse:
    records = TrackRecords()
    for number in range(1, 4):
        records.take(Result(number, 1e9, NODE, "m", "j", "v", "v.1", "Linear", "cpu/x", Kind.STEPS, number > 1, 0.25, 0.5))
    scores = [score_message(one) for one in records.scores(lambda node: 20.0)]
    times = ledger_pb2.Times(p50=1.0, p95=2.0, num=3)
    expected = ledger_pb2.ExpectedWork(component="Linear", device_class="cpu/x", s_per_gflop=times)
    return ledger_pb2.ListScoresResponse(reporter=OTHER, scores=scores, expected=[expected])


def test_rows_of_scores_have_the_documented_fields() -> None:
    rows = score_rows([Account(OTHER, cleared=4, passes=1.0, credibility=0.9)], answer())
    assert [row["pnode"] for row in rows] == [OTHER, NODE]
    table = section("## `dcnr ledger scores --json`").partition("`history`:")[0]
    assert all(set(row) == documented(table) for row in rows)
    stranger, known = rows
    assert (stranger["score"], stranger["history"]) == (None, None)
    assert known["score"] == round(100 * known["history"]["credibility"] * known["history"]["reliability"]) == 66
    assert known["history"]["passes"] == 20.0
    assert known["history"]["works"][0]["s_per_gflop"] == {"p50": 0.5, "p95": 0.5, "num": 3}
    assert known["history"]["works"][0]["provisioning_s"] is None
    json.dumps(rows)


def test_the_text_shows_c_r_and_k_beside_every_score() -> None:
    told = answer()
    text = command._scores_text(score_rows([Account(OTHER, credibility=0.908)], told), told, works=True)
    header, stranger, known, *rest = text.splitlines()
    assert header.split()[:5] == ["node", "score", "C", "R", "k"]
    assert stranger.split()[:4] == [OTHER[:8], "-", "0.908", "-"]
    assert known.split()[:5] == [NODE[:8], "66", "0.995", "0.667", "20.0"]
    assert any("Linear" in line and "0.25 s" in line for line in rest)


def test_an_exported_statement_carries_its_signature() -> None:
    key = NodeKey.generate()
    said = ledger_pb2.UsageStatement(
        network_id="n", model="m", kind=ledger_pb2.USAGE_KIND_JOB, subject="j", orchestrator=key.node_id, vnode_batches=24
    )
    rows = export_rows([], answer(), [(said, seal(identity_pb2.DOMAIN_USAGE, said, key))])
    by_record = {row["record"]: row for row in rows}
    assert set(by_record) == {"score", "expected", "usage"}
    usage = by_record["usage"]
    assert (usage["kind"], usage["vnode_batches"]) == ("job", 24)
    envelope = identity_pb2.Envelope.FromString(base64.b64decode(usage["envelope"]))
    assert open_usage(envelope, "n") == said


def test_usage_is_summed_up_by_kind_client_and_for_whom_it_asked() -> None:
    kinds = (ledger_pb2.USAGE_KIND_JOB, ledger_pb2.USAGE_KIND_QUESTIONS)
    said = [
        ledger_pb2.UsageStatement(kind=kinds[0], users=[NODE], vnode_batches=24),
        *(
            ledger_pb2.UsageStatement(
                kind=kinds[1], users=[OTHER], on_behalf=name, num_answers=1, num_samples=number, vnode_samples=3 * number
            )
            for name, number in (("key-1", 2), ("key-2", 5), ("key-1", 4))
        ),
    ]
    rows = usage_rows([(one, identity_pb2.Envelope()) for one in said])
    assert all(set(row) <= documented(SCHEMA) for row in rows)
    assert [(row["kind"], row["users"], row["on_behalf"], row["statements"]) for row in rows] == [
        ("job", [NODE], "", 1), ("questions", [OTHER], "key-1", 2), ("questions", [OTHER], "key-2", 1)
    ]  # fmt: skip
    assert (rows[0]["vnode_batches"], rows[1]["num_samples"], rows[1]["vnode_samples"], rows[1]["num_answers"]) == (24, 6, 18, 2)


@pytest.mark.parametrize("message", [ledger_pb2.PNodeScore, ledger_pb2.WorkRecord, ledger_pb2.UsageStatement, ledger_pb2.CostQuote])
def test_every_message_of_the_schema_is_documented(message: type) -> None:
    assert {field.name for field in message.DESCRIPTOR.fields} <= documented(SCHEMA)  # type: ignore[attr-defined]
