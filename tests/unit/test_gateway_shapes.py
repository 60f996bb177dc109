"""Goal: every message of the contract survives its JSON form, numbers are numbers, and the JSON is what the published schema says."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message

from dcnr.v1 import common_pb2, model_pb2, orchestrator_pb2
from gateway.shapes import schemas, shown


def a_job() -> orchestrator_pb2.JobView:
    """Numbers at their ends, intervals, maps' neighbours, absent and present messages."""
    job = orchestrator_pb2.JobView(
        job_id="j", state=model_pb2.JOB_STATE_RUNNING, num_batches=2**64 - 1, as_of_unix_ms=-(2**63), running_s=0.5, audited=True
    )
    vnode = job.vnodes.add(vnode="first")
    vnode.report.lineage.intervals.add(first=0, end=7)
    vnode.report.loss = float("nan")
    job.outcome.reason = "ä"
    return job


EXAMPLES: list[Message] = [
    a_job(),
    common_pb2.Event(sequence=3, kind="node_joined", facts={"a": "b"}),
    orchestrator_pb2.SubmitJobRequest(),
    orchestrator_pb2.NodeView(state=7, free_memory_bytes=1 << 40),
]


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_it_is_protojson_with_numbers(message: Message) -> None:
    """A ProtoJSON parser reads it back, and only the spelling of 64-bit numbers differs from ProtoJSON's own."""
    made = shown(message)
    assert str(ParseDict(json.loads(json.dumps(made, allow_nan=False)), type(message)())) == str(message)
    own = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    assert _texts(made) == _texts(own)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_the_schema_describes_it(message: Message) -> None:
    table = {"components": {"schemas": schemas(message.DESCRIPTOR)}, "$ref": f"#/components/schemas/{message.DESCRIPTOR.name}"}
    assert jsonschema_rs.is_valid(table, shown(message))
    broken = shown(message)
    broken[message.DESCRIPTOR.fields[0].name] = [{"x": 1}, 2, None]
    assert not jsonschema_rs.is_valid(table, broken)


def test_an_unknown_enum_value_stays_a_number() -> None:
    assert shown(orchestrator_pb2.NodeView(state=99))["state"] == 99


def _texts(value: Any) -> Any:
    """Numbers as texts, as ProtoJSON writes the long ones."""
    if isinstance(value, dict):
        return {key: _texts(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_texts(inner) for inner in value]
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value
