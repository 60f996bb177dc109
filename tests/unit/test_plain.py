"""Goal: JSON output has every field of its message, in types that scripts can use; what people watch is a function of the message alone."""

from __future__ import annotations

import json

import pytest

from dcnr.cli.watching import ending, event_line, headline, nodes_table, own_events, vnodes_table
from dcnr.errors import InvalidInput
from dcnr.sdk.contact import Entry, parse_entry
from dcnr.sdk.plain import plain, word
from dcnr.sdk.progress import batches_of
from dcnr.v1 import common_pb2, identity_pb2, model_pb2, orchestrator_pb2


def view() -> orchestrator_pb2.JobView:
    reports = [
        orchestrator_pb2.ReplicaReport(
            replica=f"{vnode}.0", vnode=vnode, state=orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE, num_learned=learned, rate=12.5, loss=0.25,
            durable=common_pb2.IntervalSet(intervals=[common_pb2.Interval(first=0, end=learned // 2)]),
        )
        for vnode, learned in (("a", 100), ("b", 80))
    ]  # fmt: skip
    exits = [model_pb2.ExitResult(vnode="b", split="validation", round=2, count=50, correct=45, sum_loss=10.0)]
    vnodes = [
        orchestrator_pb2.VNodeView(
            vnode=report.vnode, report=report, assignment=model_pb2.Assignment(replica=report.replica, pnode_id="c" * 40), curve=curve
        )
        for report, curve in zip(reports, ([], exits), strict=True)
    ]  # fmt: skip
    return orchestrator_pb2.JobView(
        job_id="tiny-1", model="tiny", state=model_pb2.JOB_STATE_RUNNING, num_batches=200, vnodes=vnodes, eta_s=61, epoch=3, holder="d" * 40
    )  # fmt: skip


def test_every_field_in_usable_types() -> None:
    told = plain(view())
    assert json.loads(json.dumps(told)) == told
    assert set(told) == {field.name for field in orchestrator_pb2.JobView.DESCRIPTOR.fields}
    assert told["state"] == "running"
    assert told["num_batches"] == 200
    assert told["outcome"] is None
    assert told["vnodes"][0]["report"]["durable"] == [[0, 50]]
    event = plain(common_pb2.Event(kind="x", facts={"b": "2", "a": "1"}))
    assert event["facts"] == {"a": "1", "b": "2"}
    assert plain(identity_pb2.Signature(public_key=b"\x01\xff"))["public_key"] == "01ff"


@pytest.mark.parametrize(
    ("enum", "number", "wanted"),
    [
        (model_pb2.JobState, model_pb2.JOB_STATE_SETTLING, "settling"),
        (orchestrator_pb2.AssignmentState, orchestrator_pb2.ASSIGNMENT_STATE_RELEASE_FAILED, "release_failed"),
        (identity_pb2.Locality, identity_pb2.LOCALITY_SINGLE_HOST, "single_host"), (model_pb2.JobState, 99, "99"),
    ],
)  # fmt: skip
def test_words(enum: object, number: int, wanted: str) -> None:
    assert word(enum, number) == wanted


def test_a_running_job_on_screen() -> None:
    job = view()
    assert batches_of(job) == (80, 200), "the slowest VNode counts"
    line = headline(job)
    for part in ("tiny running", "80/200", "epoch 3 of dddddddd", "ETA 1 min 1 s", "b 90.00 % (loss 0.200)"):
        assert part in line
    assert "unnoticed" not in line, "nothing is said where nothing is cleared"
    job.unnoticed_steps, job.cleared_steps = 12.5, 500
    assert "at most 2.5% wrong unnoticed" in headline(job)
    rows = vnodes_table(job).splitlines()
    assert len(rows) == 3
    assert all(part in rows[2] for part in ("b", "cccccccc", "active", "80/200", "40", "12.5", "0.250"))
    event = common_pb2.Event(kind="replica_relocated", subject="a.1", reason="its node is silent", reporter="d" * 40)
    assert event_line(event) == "· replica_relocated a.1: its node is silent (says dddddddd)"
    node = orchestrator_pb2.NodeView(node_id="c" * 40, state=orchestrator_pb2.NODE_STATE_SUSPECT, reason="silent", holder=True)
    assert "suspect (decides)" in nodes_table(orchestrator_pb2.WatchJobResponse(nodes=[node]))


def test_how_it_ended() -> None:
    job = view()
    job.state = model_pb2.JOB_STATE_EXPIRED
    job.outcome.reason, job.outcome.manifest_digest = "batch 7 of b is missing", "e" * 64
    job.outcome.exits.add(vnode="b", split="test", depth=2, count=10, correct=9, sum_loss=1.0)
    text = ending(job)
    assert text.splitlines()[0] == "job tiny-1 expired: batch 7 of b is missing"
    assert "90.00 %" in text
    assert "dcnr model export tiny" in text
    del job.vnodes[:]
    job.plan_number = 0
    assert headline(job).startswith("tiny expired, 200 batches, epoch 3"), (
        "of a job that no plan covers any more nothing is known to be learned"
    )


def test_bootstrap_entries() -> None:
    node_id = "a" * 40
    assert parse_entry(f"{node_id}@[::1]:7700") == Entry(node_id, "[::1]:7700")  # type: ignore[arg-type]  # a checked id
    assert parse_entry("host.example:7700") == Entry(None, "host.example:7700")
    for bad in ("", "host", f"{node_id}@", "short@127.0.0.1:1", "127.0.0.1:0", f"@{node_id}:1"):
        with pytest.raises(InvalidInput):
            parse_entry(bad)


def test_who_begins_to_watch_is_told_nothing_from_before_the_job() -> None:
    events = [
        common_pb2.Event(sequence=number, kind=kind, subject=subject)
        for number, (kind, subject) in enumerate(
            [("node_attached", "n"), ("job_accepted", "other"), ("job_accepted", "tiny-1"), ("plan_made", "tiny-1")]
        )
    ]
    message = orchestrator_pb2.WatchJobResponse(job=view(), events=events)
    assert [event.sequence for event in own_events(message)] == [2, 3]
    later = orchestrator_pb2.WatchJobResponse(job=view(), events=events[:1])
    assert [event.sequence for event in own_events(later)] == [0], "its beginning is not known here, or was told before"
