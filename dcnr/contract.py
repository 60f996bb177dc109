"""What an older node would misread: the descriptors in ``proto/contract.binpb`` against those of today. Pure.

Both sides are whole: messages within messages (entries of maps too), enumerations, calls, and which fields exclude one another (``oneof``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from google.protobuf import descriptor_pb2 as pb

SNAPSHOT: Final = "contract.binpb"
"""In ``proto/``: all that was ever part of the contract in `dcnr.v1`. `dcnr.protoc` adds to it and takes nothing away."""


def breaking(old: pb.FileDescriptorSet, new: pb.FileDescriptorSet) -> list[str]:
    """Each change that an older node would misread, in words: what is gone, renumbered, renamed, of another type, or excludes others."""
    messages, enums, services = _messages(new), _enums(new), {s.name: s for f in new.file for s in f.service}
    wrong: list[str] = []
    for name, message in _messages(old).items():
        wrong += _of_message(name, message, messages[name]) if name in messages else [f"message {name} is gone"]
    for name, enum in _enums(old).items():
        now = {value.number: value.name for value in enums[name].value} if name in enums else {}
        wrong += [f"{name}.{value.name} is gone" for value in enum.value if now.get(value.number) != value.name]
    for service in (service for file in old.file for service in file.service):
        calls = {call.name: call for call in services[service.name].method} if service.name in services else {}
        wrong += [
            f"{service.name}.{call.name} is gone or changed"
            for call in service.method
            if call.name not in calls or _shape_of_call(calls[call.name]) != _shape_of_call(call)
        ]
    return wrong


def unknown(old: pb.FileDescriptorSet, new: pb.FileDescriptorSet) -> list[str]:
    """What is in ``new`` and not in ``old``: names of messages, fields, values and calls. These could be broken unseen."""
    known = set(_names(old))
    return [name for name in _names(new) if name not in known]


def _of_message(name: str, old: pb.DescriptorProto, new: pb.DescriptorProto) -> Iterator[str]:
    fields = {field.number: field for field in new.field}
    for field in old.field:
        now = fields.get(field.number)
        if now is None:
            if not any(reserved.start <= field.number < reserved.end for reserved in new.reserved_range):
                yield f"{name}.{field.name} = {field.number} is gone and not reserved"
        elif now.name != field.name:
            yield f"{name}.{field.name} = {field.number} is called {now.name}: another meaning needs another number"
        elif (now.type, now.type_name, now.label) != (field.type, field.type_name, field.label):
            yield f"{name}.{field.name} = {field.number} changed its type"
        elif _choice(old, field) != _choice(new, now):
            yield f"{name}.{field.name} = {field.number} went into a oneof or out of one"


def _choice(message: pb.DescriptorProto, field: pb.FieldDescriptorProto) -> str:
    return message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""


def _shape_of_call(call: pb.MethodDescriptorProto) -> tuple[str, str, bool, bool]:
    return call.input_type, call.output_type, call.client_streaming, call.server_streaming


def _names(described: pb.FileDescriptorSet) -> Iterator[str]:
    for name, message in _messages(described).items():
        yield name
        yield from (f"{name}.{field.name}" for field in message.field)
    for name, enum in _enums(described).items():
        yield from (f"{name}.{value.name}" for value in enum.value)
    yield from (f"{service.name}.{call.name}" for file in described.file for service in file.service for call in service.method)


def _messages(described: pb.FileDescriptorSet) -> dict[str, pb.DescriptorProto]:
    return {name: message for file in described.file for name, message in _with_nested(file.message_type, "")}


def _with_nested(messages: Iterable[pb.DescriptorProto], outer: str) -> Iterator[tuple[str, pb.DescriptorProto]]:
    for message in messages:
        yield outer + message.name, message
        yield from _with_nested(message.nested_type, f"{outer}{message.name}.")


def _enums(described: pb.FileDescriptorSet) -> dict[str, pb.EnumDescriptorProto]:
    within = {f"{name}.{enum.name}": enum for name, message in _messages(described).items() for enum in message.enum_type}
    return within | {enum.name: enum for file in described.file for enum in file.enum_type}
