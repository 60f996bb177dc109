"""Goal: every output in JSON has its schema, checked in as a file; messages of the contract fit theirs, empty and full, and what does not fit is refused."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from google.protobuf.message import Message
from schemas_rig import FOLDER, check_output, check_value

from dcnr.cli.schemas import SCHEMAS, file_of
from dcnr.cli.top_view import Look, Rates, top_data
from dcnr.sdk.plain import plain
from dcnr.v1 import local_pb2, orchestrator_pb2


@functools.cache
def tables() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "docs" / "tables.py"
    spec = importlib.util.spec_from_file_location("docs_tables_of_schemas", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def full(kind: Any, depth: int = 4) -> Message:
    """A message with something in every field."""
    made: Message = kind()
    for field in made.DESCRIPTOR.fields:
        if field.message_type is None:
            value: Any = {field.CPPTYPE_BOOL: True, field.CPPTYPE_STRING: "x"}.get(field.cpp_type, 1)
            value = b"\x01\xff" if field.type == field.TYPE_BYTES else 1.5 if field.cpp_type == field.CPPTYPE_DOUBLE else value
            getattr(made, field.name).append(value) if field.is_repeated else setattr(made, field.name, value)
        elif depth and not field.message_type.GetOptions().map_entry:
            inner = full(field.message_type._concrete_class, depth - 1)
            getattr(made, field.name).append(inner) if field.is_repeated else getattr(made, field.name).CopyFrom(inner)
    return made


def test_every_command_with_json_has_a_schema_and_no_other() -> None:
    with_json = {
        name
        for program in tables().APPS
        for name, command in tables().commands(program).items()
        if any("--json" in parameter.opts for parameter in command.params)
    }
    assert set(SCHEMAS) - {"dcnr ledger export"} == with_json, "describe it in dcnr.cli.schemas"


def test_the_files_are_those_of_the_code() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {file_of(name) for name in SCHEMAS}
    assert all(path.read_text() == text for path, text in tables().made_files().items()), "run: python -m docs.tables"


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("pnode status", local_pb2.StatusResponse), ("pnode why", local_pb2.WhyResponse),
        ("orchestrator status", orchestrator_pb2.GetStatusResponse), ("dcnr job watch", orchestrator_pb2.WatchJobResponse),
        ("dcnr job cancel", orchestrator_pb2.CancelJobResponse), ("dcnr model submit", orchestrator_pb2.SubmitJobResponse),
    ],
)  # fmt: skip
def test_messages_fit_their_schemas(command: str, kind: Any) -> None:
    for made in (kind(), full(kind)):
        check_value(command, plain(made))


def test_a_moment_of_top_fits() -> None:
    for status in (local_pb2.StatusResponse(), full(local_pb2.StatusResponse)):
        assert isinstance(status, local_pb2.StatusResponse)
        check_value("pnode top", top_data(Look(1.0, status), Rates(0.0, 0.0, 0.0, 0.0), 1))


def test_what_is_no_number_is_null() -> None:
    told = plain(orchestrator_pb2.ReplicaReport(loss=float("nan"), rate=float("inf"), step_s=0.5))
    assert (told["loss"], told["rate"], told["step_s"]) == (None, None, 0.5)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("pnode resume --json", '{"paused": true}'), ("pnode resume --json", "{}"), ("pnode resume --json", '{"paused": false, "more": 1}'),
        ("dcnr gateway key revoke x --json", '{"id": 3, "revoked": true}'), ("dcnr job watch --json", '{"job": {}}\n{}'),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_found(line: str, text: str) -> None:
    with pytest.raises(AssertionError):
        check_output(line, text)
