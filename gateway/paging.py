"""Pages of a list: a cursor is the opaque name of the last row that a client has. Pure."""

from __future__ import annotations

import base64
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from dcnr.errors import InvalidInput

T = TypeVar("T")
MAX_CURSOR_CHARS: Final = 200
PREFIX: Final = "after:"


def page(rows: Sequence[T], name: Callable[[T], str], *, cursor: str, limit: int, by_name: bool) -> tuple[list[T], str]:
    """Up to ``limit`` rows behind the cursor, and the next cursor (empty at the end). ``by_name``: the rows are sorted by name, and a row that is gone
    leaves no gap. Raises InvalidInput (``bad_cursor``, ``cursor_expired``).
    """
    first = 0
    if cursor:
        last = _opened(cursor)
        if by_name:
            first = bisect_right(rows, last, key=name)
        else:
            found = next((index for index, row in enumerate(rows) if name(row) == last), None)
            if found is None:
                raise InvalidInput("the row of this cursor is gone", code="cursor_expired", remedy="begin again without a cursor")
            first = found + 1
    taken = list(rows[first : first + limit])
    return taken, _sealed(name(taken[-1])) if taken and first + limit < len(rows) else ""


def _sealed(name: str) -> str:
    return base64.urlsafe_b64encode((PREFIX + name).encode()).decode().rstrip("=")


def _opened(cursor: str) -> str:
    try:
        if len(cursor) > MAX_CURSOR_CHARS or not cursor.isascii():
            raise ValueError
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except ValueError:
        text = ""
    if not text.startswith(PREFIX):
        raise InvalidInput("this cursor was not made here", code="bad_cursor", remedy="begin again without a cursor")
    return text.removeprefix(PREFIX)
