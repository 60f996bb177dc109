"""Numbers in the variable form of protobuf, for messages that are written and read by hand: `pnode.wire`, `dcnr.question_wire`."""

from __future__ import annotations

from typing import Final

from dcnr.errors import Corrupt

MAX_SIZE_BYTES: Final = 4


def varint(number: int) -> bytes:
    """A number from 0 on: seven bits a byte, the lowest first."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_size(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The number there and where the next byte is. Raises Corrupt (``malformed_message``) for one of more than 28 bits, and at the end."""
    number, shift = 0, 0
    for end in range(at, min(at + MAX_SIZE_BYTES, len(data))):
        byte = data[end]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, end + 1
        shift += 7
    raise Corrupt("a size that is none", code="malformed_message")
