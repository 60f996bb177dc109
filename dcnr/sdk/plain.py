"""Messages of the contract as plain values for JSON: numbers stay numbers (what is none is None), enums become words, intervals pairs, bytes hexadecimal.

Every field is present. The schemas in ``docs/schemas`` say so of each message.
"""

from __future__ import annotations

import math
from typing import Any

from google.protobuf.message import Message

from dcnr.v1 import common_pb2

Plain = dict[str, Any]


def plain(message: Message) -> Plain:
    """Every field of ``message`` under its name; absent messages are None."""
    return {field.name: _field(message, field) for field in message.DESCRIPTOR.fields}


def word(enum: Any, number: int) -> str:
    """The name of an enum's value without its prefix, in lower case: ``JOB_STATE_RUNNING`` is ``running``. Unknown numbers are shown as such."""
    descriptor = enum.DESCRIPTOR
    value = descriptor.values_by_number.get(number)
    return _word(descriptor, value.name) if value is not None else str(number)


def words_of(descriptor: Any) -> list[str]:
    """All words that `word` gives for known values of that enum."""
    return [_word(descriptor, value.name) for value in descriptor.values]


def _field(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.is_repeated:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            return {str(key): value[key] for key in sorted(value)}
        return [_value(field, item) for item in value]
    if field.message_type is not None and not message.HasField(field.name):
        return None
    return _value(field, value)


def _value(field: Any, value: Any) -> Any:
    if isinstance(value, common_pb2.IntervalSet):
        return [[int(interval.first), int(interval.end)] for interval in value.intervals]
    if field.message_type is not None:
        return plain(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return _word(field.enum_type, known.name) if known is not None else str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.hex() if isinstance(value, bytes) else value


def _word(descriptor: Any, name: str) -> str:
    prefix = "".join(f"_{letter}" if letter.isupper() and index else letter for index, letter in enumerate(descriptor.name)).upper()
    return str(name).removeprefix(f"{prefix}_").lower()
