"""Messages of the contract as JSON and their JSON schemas: ProtoJSON with the names of the contract, and every number a number.

What `shown` gives is read back by any ProtoJSON parser into the same message. Fields that have no presence are always there; an absent message is left
out. Enums are their names in the contract, bytes are base64, 64-bit numbers are JSON numbers, numbers that are none (``NaN``) are texts as in ProtoJSON.
"""

from __future__ import annotations

import base64
import math
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

Json = dict[str, Any]
REFERENCE: Final = "#/components/schemas/"
_NOT_FINITE: Final = ("NaN", "Infinity", "-Infinity")


def shown(message: Message) -> Json:
    """``message`` as JSON."""
    result: Json = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.is_repeated:
            if _is_map(field):
                result[field.name] = {str(key): value[key] for key in sorted(value)}
            else:
                result[field.name] = [_value(field, item) for item in value]
        elif field.message_type is None or message.HasField(field.name):
            result[field.name] = _value(field, value)
    return result


def schemas(*descriptors: Descriptor) -> dict[str, Json]:
    """JSON schemas by name of these messages and of all that they hold."""
    found: dict[str, Json] = {}
    waiting = list(descriptors)
    while waiting:
        descriptor = waiting.pop()
        if descriptor.name in found:
            continue
        properties: Json = {}
        for field in descriptor.fields:
            properties[field.name] = _schema(field)
            if field.message_type is not None and not _is_map(field):
                waiting.append(field.message_type)
        required = [field.name for field in descriptor.fields if field.is_repeated or field.message_type is None]
        found[descriptor.name] = {"type": "object", "properties": properties, "required": required} if required else {
            "type": "object", "properties": properties,
        }  # fmt: skip
    return found


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return shown(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else int(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _schema(field: Any) -> Json:
    if _is_map(field):
        return {"type": "object", "additionalProperties": _single(field.message_type.fields_by_name["value"])}
    single = _single(field)
    return {"type": "array", "items": single} if field.is_repeated else single


def _single(field: Any) -> Json:
    if field.message_type is not None:
        return {"$ref": REFERENCE + field.message_type.name}
    if field.enum_type is not None:
        return {"anyOf": [{"type": "string", "enum": [value.name for value in field.enum_type.values]}, {"type": "integer"}]}
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            return {"type": "boolean"}
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return {"anyOf": [{"type": "number"}, {"type": "string", "enum": list(_NOT_FINITE)}]}
        case FieldDescriptor.CPPTYPE_STRING:
            return {"type": "string", "format": "byte"} if field.type == FieldDescriptor.TYPE_BYTES else {"type": "string"}
        case _:
            return {"type": "integer"}
