"""Goal: whatever a PNode puts into its beats, what is kept of them is bounded, can be shown by everything that shows it, and makes no plan too large."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import example, given
from hypothesis import strategies as st
from planner_rig import request, stage

from dcnr.cli.output import duration
from dcnr.cli.watching import headline, nodes_table, vnodes_table
from dcnr.errors import InvalidInput
from dcnr.limits import MAX_INTERVALS, MAX_MESSAGE_BYTES, MIB
from dcnr.v1 import membership_pb2, model_pb2, orchestrator_pb2
from gateway.context import answer
from gateway.feeds import Feed, Item
from gateway.jobs import again_in
from gateway.reading import curves_of
from gateway.shapes import shown
from gateway.stats import stats_of
from orchestrator.beat_bounds import MAX_BEAT_BYTES, MAX_EVENT_REASON, MAX_REASON, RULES, bounded_beat
from orchestrator.explain import explain_model, explain_node
from orchestrator.history import History
from orchestrator.inventory import MAX_NODES, Inventory
from orchestrator.jobview import MAX_ETA_S, eta_s, job_view, listed, node_views
from orchestrator.planner import check_plan, make_plan
from orchestrator.runtime import ModelRuntime, Shared
from orchestrator.view import ModelView

LIAR, HONEST = "a" * 40, "b" * 40
JOB, PLAN = "j", "p" * 64
STAGES = [stage(index, 2) for index in range(5)]
PLAN_BYTES = 64 * 1024
"""Of a plan with five VNodes, whatever is said to those who make it."""
DOUBLES = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, 5e-324, -5e-324, 1e308, -1.0, 0.0])
ENUMS = st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(0, 9)
WHOLES = st.integers(0, (1 << 64) - 1) | st.sampled_from([0, 1, 100, (1 << 64) - 1])
TEXTS = st.text(max_size=20) | st.sampled_from(["x" * 1000, "\x1b[2J", "v0", "v0.1", "ä" * 300])


def said(double: float, enum: int, text: str, whole: int) -> orchestrator_pb2.Beat:
    """A beat in which everything is set that can be, twice where it may come often."""
    beat = orchestrator_pb2.Beat()
    fill(beat, double, enum, text, whole)
    return beat


def fill(message: Message, double: float, enum: int, text: str, whole: int) -> None:
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(message, field.name)[text] = text
        elif field.message_type is not None:
            parts = [getattr(message, field.name).add() for _ in range(2)] if field.is_repeated else [getattr(message, field.name)]
            for part in parts:
                part.SetInParent()
                fill(part, double, enum, text, whole)
        elif not field.is_repeated:
            setattr(message, field.name, value_of(field, double, enum, text, whole))


def value_of(field: Any, double: float, enum: int, text: str, whole: int) -> object:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_DOUBLE:
            return double
        case FieldDescriptor.CPPTYPE_ENUM:
            return enum
        case FieldDescriptor.CPPTYPE_STRING:
            return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
        case FieldDescriptor.CPPTYPE_BOOL:
            return True
        case FieldDescriptor.CPPTYPE_UINT32:
            return whole & 0xFFFFFFFF
        case FieldDescriptor.CPPTYPE_INT64:
            return whole - (1 << 63)
        case _:
            return whole


def parts_of(message: Message) -> Iterator[Message]:
    """The message and those in it that have rules."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.full_name in RULES:
            for part in value if field.is_repeated else (value,):
                yield from parts_of(part)


def test_everything_that_a_beat_can_hold_has_a_rule() -> None:
    pool = orchestrator_pb2.DESCRIPTOR.pool
    read_elsewhere = {"lineage", "durable", "unmerged", "batches", "advert", "delegation", "load", "facts"}
    for name, rules in RULES.items():
        fields = pool.FindMessageTypeByName(name).fields
        assert set(rules) == {field.name for field in fields}, name
        opaque = {field.name for field in fields if field.message_type is not None and field.message_type.full_name not in RULES}
        assert opaque <= read_elsewhere, name


@given(DOUBLES, ENUMS, TEXTS, WHOLES)
def test_what_is_kept_is_bounded_and_stays_as_it_is(double: float, enum: int, text: str, whole: int) -> None:
    beat = bounded_beat(said(double, enum, text, whole))
    once = beat.SerializeToString(deterministic=True)
    assert bounded_beat(beat).SerializeToString(deterministic=True) == once
    for part in parts_of(beat):
        for field, value in part.ListFields():
            if field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE:
                assert math.isfinite(value), field.full_name
            elif field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
                assert value in field.enum_type.values_by_number, field.full_name
            elif field.type == FieldDescriptor.TYPE_STRING:
                assert value.isprintable(), field.full_name
                assert len(value) <= (MAX_EVENT_REASON if field.full_name.startswith("dcnr.v1.Event") else MAX_REASON), (
                    field.full_name
                )


def test_an_honest_beat_is_not_altered() -> None:
    beat = orchestrator_pb2.Beat(
        sequence=7, desired_sequence=3, plan_digest="0f" * 32, free_memory_bytes=MIB, worker_reason="the worker has not started yet", incarnation=2,
        capability=membership_pb2.Capability(cores=7.5, memory_bytes=MIB, disk_bytes=MIB, device="cpu", device_name="AMD EPYC 7B13", gflops=81.2),
        round_trip_s=0.02, load=membership_pb2.Load(cores=1.5),
    )  # fmt: skip
    report = beat.replicas.add(
        replica="v0.12", vnode="v0", incarnation=2, state=orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE, reason="waiting_for_audit: 3 open", num_learned=9,
        step_s=0.02, rate=31.0, floor=(1 << 64) - 1, floor_vnode="v1", loss=-0.5, held_back_by="v1", restored_from="0f" * 32, role=model_pb2.ROLE_PRIMARY,
    )  # fmt: skip
    report.lineage.intervals.add(first=0, end=9)
    report.needs.add(from_replica="v1.3", since_s=2.0, why="new").batches.intervals.add(first=9, end=12)
    report.exits.add(vnode="v0", split="validation", count=100, correct=31, sum_loss=213.0, round=2)
    beat.evidence.add(replica="v1.3", pnode_id=HONEST, broken=True, since_s=1.5)
    beat.seats.add(model="m", vnode="v0", state_digest="0f" * 32, ready=True, compute_s=0.1, manifest_digest="0f" * 32)
    beat.events.add(
        sequence=4, time_unix_ms=1_800_000_000_000, kind="worker_started", subject=HONEST, reason="it began", reporter=HONEST
    )
    before = beat.SerializeToString(deterministic=True)
    assert bounded_beat(beat).SerializeToString(deterministic=True) == before


def test_no_more_rows_are_kept_than_the_contract_says_and_nothing_that_it_does_not_know() -> None:
    beat = orchestrator_pb2.Beat()
    report = beat.replicas.add(replica="v0.1", vnode="v0")
    for _ in range(100):
        report.exits.add()
        batches = report.needs.add().batches
        for one in range(99):
            batches.intervals.add(first=2 * one, end=2 * one + 1)
    strange = orchestrator_pb2.Beat.FromString(beat.SerializeToString() + b"\x82\x7d\xa0\x8d\x06" + b"x" * 100_000)
    kept = bounded_beat(strange)
    assert (len(kept.replicas[0].needs), len(kept.replicas[0].exits)) == (16, 16)
    assert {len(need.batches.intervals) for need in kept.replicas[0].needs} == {64}
    assert kept.ByteSize() < 16 * 64 * 16
    slow = orchestrator_pb2.Beat(replicas=[orchestrator_pb2.ReplicaReport(rate=rate) for rate in (5e-324, 1e-10, 1e-8)])
    assert [report.rate for report in bounded_beat(slow).replicas] == [0.0, 0.0, 1e-8], "nothing is divided by next to nothing"
    for field, number in (("replicas", 1025), ("seats", 65), ("evidence", 33), ("events", 65)):
        long = orchestrator_pb2.Beat()
        for _ in range(number):
            getattr(long, field).add()
        with pytest.raises(InvalidInput):
            bounded_beat(long)
    with pytest.raises(InvalidInput):
        bounded_beat(orchestrator_pb2.Beat(worker_reason="x" * MAX_BEAT_BYTES))


def test_what_an_advert_says_of_a_machine_has_the_same_bounds() -> None:
    inventory = Inventory()
    capability = membership_pb2.Capability(
        cores=math.nan, device="x" * 1000, device_name="\x1b[2J", architecture="x" * 1000, system="x" * 1000
    )
    inventory.advertised(membership_pb2.Advert(node_id=LIAR, software="y" * 3000, capability=capability), 0.0)
    record = inventory.nodes()[LIAR]
    assert (record.software, record.capability.device, record.capability.device_name) == ("y" * 80, "x" * 80, "\\x1b[2J")
    assert (record.capability.cores, record.capability.ByteSize() < 300) == (0.0, True)


class Clock:
    """A clock that stands still."""

    def monotonic(self) -> float:
        return 1.0

    def wall(self) -> float:
        return 1_800_000_000.0


def runtime(num_batches: int = 100) -> ModelRuntime:
    """A job of which ``LIAR`` hosts the primary of a VNode, and ``HONEST`` a contributor."""
    clock: Any = Clock()
    key: Any = SimpleNamespace(node_id="0" * 40)
    policy: Any = SimpleNamespace(policy=SimpleNamespace(audits_drawn=False, network_id="n" * 40, single_host=False))
    nothing: Any = None
    shared = Shared(key, policy, nothing, clock, nothing, Inventory(), History(None, "0" * 40, clock))
    found = ModelRuntime("m", shared)
    plan = model_pb2.Plan(model="m", job_id=JOB, number=3, epoch=1, next_replica=7)
    for number, (pnode_id, role) in enumerate(((LIAR, model_pb2.ROLE_PRIMARY), (HONEST, model_pb2.ROLE_CONTRIBUTOR)), start=1):
        plan.assignments.add(replica=f"v0.{number}", vnode="v0", pnode_id=pnode_id, role=role, weight=1.0)
    job: Any = SimpleNamespace(
        num_batches=num_batches, request=model_pb2.JobRequest(job_id=JOB, unit_batches=8), request_digest="r" * 64, costs=STAGES[:1],
        needs=frozenset(),
    )  # fmt: skip
    head = model_pb2.Head(plan_digest=PLAN, active=model_pb2.ActiveJob(job_id=JOB, state=model_pb2.JOB_STATE_RUNNING))
    found.view = ModelView("m", head, b"", plan, job=job, hosted={item.pnode_id: (item,) for item in plan.assignments})
    record: Any = SimpleNamespace(
        job_id=JOB,
        pause=None,
        end=None,
        lacks="",
        request=model_pb2.JobRequest(job_id=JOB, num_batches=num_batches),
        cancel_reason=None,
        cancelled=False,
    )
    found.jobs.records[JOB] = record
    found._look_again(None, found.view)
    return found


@given(DOUBLES, ENUMS, WHOLES)
@example(math.inf, 3, 1)
@example(math.nan, 3, 1)
@example(5e-324, 3, 1)
@example(1.0, 99, 1)
def test_numbers_and_states_of_a_report_can_be_shown_by_everything_that_shows_them(double: float, enum: int, whole: int) -> None:
    one = runtime()
    beat = said(double, enum, "v0", whole)
    beat.plan_digest, beat.worker_alive, beat.draining = PLAN, True, False
    for report in beat.replicas:
        report.replica = "v0.1"
        report.num_learned = min(report.num_learned, 100)
        for field in ("lineage", "unmerged", "durable"):
            report.ClearField(field)  # type: ignore[arg-type]
    one.shared.inventory.attached(LIAR, 0.0)
    one.shared.inventory.beat(LIAR, 0.5, one.shared.heard(LIAR, beat), 2.0)
    one.shared.inventory.tick(1.0)
    job = job_view(one, JOB, with_vnodes=True)
    assert job.vnodes[0].replicas[0].report.replica == "v0.1"
    assert math.isfinite(job.eta_s)
    nodes = node_views(one.shared, [one], [])
    stats = stats_of(
        as_of_unix_ms=1,
        network_name="n",
        status=orchestrator_pb2.GetStatusResponse(),
        nodes=nodes,
        jobs=[job],
        at_work=[job],
        seconds=(),
    )
    feed = Feed(lambda: None)  # type: ignore[arg-type, return-value]
    for data in (stats.model_dump(mode="json"), curves_of(job), shown(job), [shown(node) for node in nodes]):
        assert answer(data).status_code == 200
        feed.tell(Item("job", data))
        strict(feed.since(0, 0)[0][0].text)
    watched = orchestrator_pb2.WatchJobResponse(job=job, nodes=nodes)
    assert headline(job)
    assert vnodes_table(job)
    assert nodes_table(watched)
    assert explain_model(one, "", None)
    assert explain_model(one, "v0", 5)
    assert asyncio.run(explain_node(one.shared, [one], LIAR))
    assert round(job.eta_s) >= 0


def test_reports_of_sets_in_many_pieces_make_no_answer_long_and_their_sizes_are_told() -> None:
    """Answers of more than 8 MiB reach nobody: a few hosts with many replicas each could hide a job."""
    num_batches = 3 * MAX_INTERVALS
    one = runtime(num_batches)
    for pnode_id, replica in ((LIAR, "v0.1"), (HONEST, "v0.2")):
        beat = orchestrator_pb2.Beat(plan_digest=PLAN, worker_alive=True)
        report = beat.replicas.add(replica=replica, vnode="v0", num_learned=2 * MAX_INTERVALS)
        for number in range(MAX_INTERVALS):
            report.lineage.intervals.add(first=3 * number, end=3 * number + 2)
            report.durable.intervals.add(first=3 * number, end=3 * number + 1)
            report.unmerged.intervals.add(first=3 * number + 1, end=3 * number + 2)
        for need in (report.needs.add(from_replica="v1.1", why="it comes") for _ in range(16)):
            need.batches.intervals.extend(report.durable.intervals[:64])
        one.shared.inventory.attached(pnode_id, 0.0)
        one.shared.inventory.beat(pnode_id, 0.5, one.shared.heard(pnode_id, beat), 2.0)
    entry = model_pb2.ManifestEntry(vnode="v0", working=[model_pb2.Checkpoint(vnode="v0", lineage=report.lineage)])
    assert one.view is not None
    one.view = replace(one.view, manifest=model_pb2.Manifest(entries=[entry]))
    job = job_view(one, JOB, with_vnodes=True)
    [row] = job.vnodes
    assert row.working.lineage == row.report.lineage
    assert job.ByteSize() < 16 * 1024
    assert [(item.report.num_durable, item.report.num_unmerged) for item in row.replicas] == [(MAX_INTERVALS, MAX_INTERVALS)] * 2
    assert row.report == row.replicas[0].report
    assert [(item.first, item.end) for item in row.report.lineage.intervals[:2]] == [(0, 2), (3, 5)], "the lowest stay"
    shown_row, contributor = vnodes_table(job).splitlines()[-2:]
    assert f" {2 * MAX_INTERVALS}/{num_batches} " in shown_row
    assert f" {MAX_INTERVALS} " in shown_row, "durable"
    assert f" {2 * MAX_INTERVALS}/{num_batches} " in contributor
    assert f"{MAX_INTERVALS} batches unmerged" in contributor
    found = one.shared.inventory.report(LIAR, "v0.1", 1.0)
    assert found is not None
    assert len(found[0].lineage.intervals) == MAX_INTERVALS, "what is decided with is whole"


def strict(text: str) -> None:
    """Reads JSON as browsers do."""

    def none(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    json.loads(text, parse_constant=none)


@given(st.floats(min_value=0.0, max_value=1e9), st.integers(0, (1 << 64) - 1))
@example(1e-9, (1 << 64) - 1)
def test_what_is_left_is_known_or_is_not(rate: float, num_batches: int) -> None:
    job = orchestrator_pb2.JobView(num_batches=num_batches)
    job.vnodes.add().replicas.add().report.rate = rate
    assert 0.0 <= eta_s(job, model_pb2.Plan(), 0.0) < MAX_ETA_S


@given(st.floats())
@example(math.nan)
@example(math.inf)
@example(1e308)
def test_any_time_can_be_told(seconds: float) -> None:
    assert len(duration(seconds)) < 32
    assert duration(math.nan) == duration(math.inf)
    assert 1 <= int(again_in(seconds)) <= 60


def test_a_feed_tells_nothing_that_browsers_cannot_read() -> None:
    with pytest.raises(ValueError, match="JSON"):
        Feed(lambda: None).tell(Item("stats", {"batches_per_s": math.inf}))  # type: ignore[arg-type, return-value]


@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, MAX_BEAT_BYTES - 1000)), min_size=1, max_size=8),
    st.sampled_from("xä\n\x1b"),
)
@example([(False, True, MAX_BEAT_BYTES - 1000)] * 8, "x")
@example([(True, True, MAX_BEAT_BYTES - 1000)] * 8, "x")
def test_no_beat_makes_a_plan_large(strangers: list[tuple[bool, bool, int]], letter: str) -> None:
    """Also where a plan needs all of them: their words are in it as reasons why not."""
    one, inventory = runtime(), Inventory()
    for number, (alive, fails, num_bytes) in enumerate(strangers):
        name = f"{number:040x}"
        text = letter * (num_bytes // len(letter.encode()))
        capability = membership_pb2.Capability(accepts_work=True, gflops=5, memory_bytes=1 << 40, disk_bytes=1 << 40)
        beat = orchestrator_pb2.Beat(worker_alive=alive, capability=capability)
        if alive:
            beat.replicas.add(
                replica=f"v{number % 5}.{number}", vnode=f"v{number % 5}", reason=text,
                state=orchestrator_pb2.ASSIGNMENT_STATE_FAILED if fails else orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE,
            )  # fmt: skip
            inventory.planned(
                f"m{number}", {name: [model_pb2.Assignment(replica=f"v{number % 5}.{number}", vnode=f"v{number % 5}")]}
            )
        else:
            beat.worker_reason = text
        inventory.attached(name, 0.0)
        for at in (0.0, 2.0, 4.0):
            inventory.beat(name, at, one.shared.heard(name, orchestrator_pb2.Beat.FromString(beat.SerializeToString())), 2.0)
        inventory.tick(4.0)
    plan = make_plan(request(STAGES, list(inventory.offers(4.0))), one.shared.plan_policy)
    check_plan(plan, STAGES)
    assert plan.ByteSize() < PLAN_BYTES


@pytest.mark.parametrize("name_bytes", [0, 80, 1000])
def test_as_many_nodes_are_listed_as_one_message_holds(name_bytes: int) -> None:
    """Twelve thousand PNodes with long names, many replicas and long reasons are more than that; most networks are far below."""
    rows = [orchestrator_pb2.NodeView(node_id=f"{number:040x}", public_name="x" * name_bytes) for number in range(MAX_NODES)]
    answer = listed(rows)
    assert answer.ByteSize() <= MAX_MESSAGE_BYTES
    assert list(answer.nodes) == rows[: len(answer.nodes)]
    assert (len(answer.nodes) == len(rows)) is (name_bytes < 600)
    assert answer.ByteSize() > 0.9 * min(MAX_MESSAGE_BYTES, sum(row.ByteSize() for row in rows))
