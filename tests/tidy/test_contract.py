"""Goal: the generated code is that of ``proto/``, every element of the contract is commented, and no change breaks an older node."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

ROOT = Path(__file__).resolve().parents[2]
PROTOS = sorted((ROOT / "proto" / "dcnr" / "v1").glob("*.proto"))
SNAPSHOT = ROOT / "proto" / "contract.binpb"


def current() -> descriptor_pb2.FileDescriptorSet:
    """Descriptors of the committed generated code."""
    import importlib

    result = descriptor_pb2.FileDescriptorSet()
    for path in PROTOS:
        module = importlib.import_module(f"dcnr.v1.{path.stem}_pb2")
        module.DESCRIPTOR.CopyToProto(result.file.add())
    return result


def breaking(old: descriptor_pb2.FileDescriptorSet, new: descriptor_pb2.FileDescriptorSet) -> list[str]:
    """What an older node would misread: removed or renumbered fields, changed types, removed values, messages or calls."""
    messages = {m.name: m for f in new.file for m in f.message_type}
    enums = {e.name: e for f in new.file for e in f.enum_type}
    services = {s.name: s for f in new.file for s in f.service}
    wrong: list[str] = []
    for file in old.file:
        for message in file.message_type:
            if message.name not in messages:
                wrong.append(f"message {message.name} is gone")
                continue
            fields = {f.number: f for f in messages[message.name].field}
            reserved = list(messages[message.name].reserved_range)
            for field in message.field:
                now = fields.get(field.number)
                if now is None:
                    if not any(r.start <= field.number < r.end for r in reserved):
                        wrong.append(f"{message.name}.{field.name} = {field.number} is gone and not reserved")
                elif (now.type, now.type_name, now.label) != (field.type, field.type_name, field.label):
                    wrong.append(f"{message.name}.{field.name} = {field.number} changed its type")
        for enum in file.enum_type:
            numbers = {v.number for v in enums[enum.name].value} if enum.name in enums else set()
            wrong += [f"{enum.name}.{v.name} is gone" for v in enum.value if v.number not in numbers]
        for service in file.service:
            methods = {m.name: m for m in services[service.name].method} if service.name in services else {}
            for method in service.method:
                now_method = methods.get(method.name)
                if now_method is None or (
                    now_method.input_type, now_method.output_type, now_method.client_streaming, now_method.server_streaming
                ) != (method.input_type, method.output_type, method.client_streaming, method.server_streaming):  # fmt: skip
                    wrong.append(f"{service.name}.{method.name} is gone or changed")
    return wrong


def test_generated_code_is_that_of_the_protos(tmp_path: Path) -> None:
    from dcnr.protoc import generate

    assert generate(ROOT, tmp_path) == 0
    made = {path.name: path.read_bytes() for path in (tmp_path / "dcnr" / "v1").glob("*_pb2*.py*")}
    committed = {path.name: path.read_bytes() for path in (ROOT / "dcnr" / "v1").glob("*_pb2*.py*")}
    assert sorted(made) == sorted(committed)
    assert [name for name in sorted(made) if made[name] != committed[name]] == [], "run: python -m dcnr.protoc"


def test_no_change_breaks_the_snapshot() -> None:
    old = descriptor_pb2.FileDescriptorSet.FromString(SNAPSHOT.read_bytes())
    assert breaking(old, current()) == []


@pytest.mark.parametrize("change", ["remove field", "renumber", "type", "remove value", "remove call"])
def test_the_comparison_sees_breaking_changes(change: str) -> None:
    old, new = current(), current()
    file = next(f for f in new.file if f.name.endswith("orchestrator.proto"))
    message = next(m for m in file.message_type if m.name == "Beat")
    match change:
        case "remove field":
            del message.field[0]
        case "renumber":
            message.field[0].number = 99
        case "type":
            message.field[0].type = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
        case "remove value":
            del file.enum_type[0].value[1]
        case "remove call":
            del file.service[0].method[0]
    assert breaking(old, new)


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
    for file in current().file:
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
