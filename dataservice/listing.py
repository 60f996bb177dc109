"""A whole prefix of the store, page by page: what has no natural bound is never cut off in silence."""

from __future__ import annotations

from typing import Final

from dcnr.ports import ObjectInfo, ObjectStore

AT_ONCE: Final = 4096
"""Objects of one call."""


async def all_below(store: ObjectStore, prefix: str, *, at_once: int = AT_ONCE) -> list[ObjectInfo]:
    """Every object whose key starts with ``prefix``, in key order, ``at_once`` per call. What is written meanwhile may be missing. Raises Unavailable."""
    found: list[ObjectInfo] = []
    while True:
        rows = await store.list(prefix, max_keys=at_once, after=found[-1].key if found else "")
        found += rows
        if len(rows) < at_once:
            return found
