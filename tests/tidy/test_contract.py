"""Goal: the generated code is that of ``proto/``, every element of the contract is commented, and no change breaks an older node."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from dcnr.contract import SNAPSHOT, breaking, unknown
from dcnr.protoc import described, generate, main

ROOT = Path(__file__).resolve().parents[2]
PROTOS = sorted((ROOT / "proto" / "dcnr" / "v1").glob("*.proto"))


def test_generated_code_is_that_of_the_protos(tmp_path: Path) -> None:
    assert generate(ROOT, tmp_path) == 0
    made = {path.name: path.read_bytes() for path in (tmp_path / "dcnr" / "v1").glob("*_pb2*.py*")}
    committed = {path.name: path.read_bytes() for path in (ROOT / "dcnr" / "v1").glob("*_pb2*.py*")}
    assert sorted(made) == sorted(committed)
    assert [name for name in sorted(made) if made[name] != committed[name]] == [], "run: python -m dcnr.protoc"


def test_no_change_breaks_the_snapshot() -> None:
    assert breaking(snapshot(), described(ROOT)) == []


def test_nothing_of_the_contract_could_be_broken_unseen() -> None:
    assert unknown(snapshot(), described(ROOT)) == [], "run: python -m dcnr.protoc"


CHANGES: dict[str, Callable[[descriptor_pb2.FileDescriptorProto, descriptor_pb2.DescriptorProto], object]] = {
    "remove message": lambda file, _: file.message_type.pop(0),
    "remove field": lambda _, beat: beat.field.pop(0),
    "renumber": lambda _, beat: setattr(beat.field[0], "number", 99),
    "type": lambda _, beat: setattr(beat.field[0], "type", descriptor_pb2.FieldDescriptorProto.TYPE_STRING),
    "rename": lambda _, beat: setattr(beat.field[0], "name", "anything"),
    "values of a map": lambda file, _: setattr(entries(file)[0].field[1], "type", descriptor_pb2.FieldDescriptorProto.TYPE_BOOL),
    "out of a oneof": lambda file, _: next(
        field for message in file.message_type for field in message.field if field.HasField("oneof_index")
    ).ClearField("oneof_index"),
    "remove value": lambda file, _: file.enum_type[0].value.pop(1),
    "rename value": lambda file, _: setattr(file.enum_type[0].value[1], "name", "ANYTHING"),
    "remove call": lambda file, _: file.service[0].method.pop(0),
    "stream a call": lambda file, _: setattr(
        file.service[0].method[0], "server_streaming", not file.service[0].method[0].server_streaming
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_comparison_sees_breaking_changes(change: str) -> None:
    old = described(ROOT)
    new = descriptor_pb2.FileDescriptorSet.FromString(old.SerializeToString())
    file = next(f for f in new.file if f.name.endswith("orchestrator.proto"))
    CHANGES[change](file, next(m for m in file.message_type if m.name == "Beat"))
    assert breaking(old, new)


def test_a_reserved_number_may_lose_its_field() -> None:
    old = described(ROOT)
    new = descriptor_pb2.FileDescriptorSet.FromString(old.SerializeToString())
    beat = next(m for f in new.file for m in f.message_type if m.name == "Beat")
    number = beat.field.pop(0).number
    beat.reserved_range.add(start=number, end=number + 1)
    assert breaking(old, new) == []


def test_nothing_is_written_where_an_older_node_would_misread_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    proto = tmp_path / "proto" / "dcnr" / "v1" / "orchestrator.proto"
    proto.write_text(re.sub(r"\bBeatAck\b", "BeatAnswer", proto.read_text()))
    before = (tmp_path / "proto" / SNAPSHOT).read_bytes()
    assert main(tmp_path) == 1
    assert "message BeatAck is gone" in capfd.readouterr().err
    assert (tmp_path / "proto" / SNAPSHOT).read_bytes() == before
    assert not (tmp_path / "dcnr").exists()


def entries(file: descriptor_pb2.FileDescriptorProto) -> list[descriptor_pb2.DescriptorProto]:
    """What the file's maps are made of."""
    return [nested for message in file.message_type for nested in message.nested_type if nested.options.map_entry]


def snapshot() -> descriptor_pb2.FileDescriptorSet:
    """As it is committed."""
    return descriptor_pb2.FileDescriptorSet.FromString((ROOT / "proto" / SNAPSHOT).read_bytes())


@pytest.mark.parametrize("path", PROTOS, ids=lambda path: path.stem)
def test_everything_is_commented_and_named_by_the_rules(path: Path) -> None:
    lines = path.read_text().splitlines()
    wrong: list[str] = []
    for number, line in enumerate(lines, 1):
        text, _, comment = line.partition("//")
        before = lines[number - 2].strip() if number > 1 else ""
        declares = re.match(r"\s*(message|enum|service|rpc)\s+(\w+)", text)
        member = re.match(r"\s+(?:repeated\s+)?[\w.<>, ]+\s+(\w+)\s*=\s*\d+\s*;", text)
        if declares and not before.startswith("//"):
            wrong.append(f"{path.name}:{number} {declares[2]} has no comment above")
        if member and not comment.strip():
            wrong.append(f"{path.name}:{number} {member[1]} has no comment")
        if re.match(r"\s+[A-Z][A-Z0-9_]+ = \d+;", text) and not comment.strip():
            wrong.append(f"{path.name}:{number} an enum value has no comment")
    assert wrong == []


def test_enums_begin_unspecified_and_calls_have_their_own_messages() -> None:
    wrong: list[str] = []
    for file in described(ROOT).file:
        for enum in file.enum_type:
            if enum.value[0].number != 0 or not enum.value[0].name.endswith("_UNSPECIFIED"):
                wrong.append(f"{enum.name} does not begin with *_UNSPECIFIED = 0")
        for service in file.service:
            for method in service.method:
                names = (method.input_type.rpartition(".")[2], method.output_type.rpartition(".")[2])
                own = (f"{method.name}Request", f"{method.name}Response")
                streams = method.client_streaming and method.server_streaming
                if names != own and not streams:
                    wrong.append(f"{service.name}.{method.name} takes {names}")
    # Sessions are named after what they open; the pairs below are their own messages all the same.
    assert wrong == []
