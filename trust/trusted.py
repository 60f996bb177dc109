"""Whom this orchestrator checks less: PNodes that k of n maintainers signed into the network document, until a date, and those of the operator's file.

The file is text: one node id a line, then if wanted a date (``2027-01-31``, the day on which it ends, UTC), then if wanted ``#`` and a remark. Trust
lowers a rate (`trust.draw.rate`); it never makes it zero and never lifts a standing. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Final

from dcnr.errors import InvalidInput
from dcnr.ids import check_node_id
from trust.network import NetworkPolicy

MAX_LINES: Final = 4096
MAX_FILE_BYTES: Final = 512 * 1024


@dataclass(frozen=True, slots=True)
class OwnList:
    """Node ids of the operator's file with the second (network time) at which each one's trust ends; infinity without a date."""

    until_s: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    def names(self, node_id: str, now_s: float) -> bool:
        """Whether the file trusts that PNode now."""
        return now_s < self.until_s.get(node_id, float("-inf"))


def read_own_list(path: Path) -> OwnList:
    """The operator's file. Raises InvalidInput where it cannot be read, or as `own_list`."""
    try:
        with path.open("rb") as file:
            return own_list(file.read(MAX_FILE_BYTES + 1))
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be read: {error.strerror}", code="bad_trusted_list", remedy="name a file with one node id a line"
        ) from error


def own_list(data: bytes) -> OwnList:
    """The operator's file as it was read. Raises InvalidInput, naming the line."""
    if len(data) > MAX_FILE_BYTES:
        raise InvalidInput(f"a file of {len(data)} bytes, at most {MAX_FILE_BYTES} are read", code="bad_trusted_list")
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as error:
        raise InvalidInput("the list of trusted PNodes is not text in UTF-8", code="bad_trusted_list") from error
    if len(lines) > MAX_LINES:
        raise InvalidInput(f"{len(lines)} lines, at most {MAX_LINES} are read", code="bad_trusted_list")
    found: dict[str, float] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            node_id = check_node_id(words[0])
            until_s = _end_of(words[1]) if len(words) == 2 else float("inf")
            if len(words) > 2 or node_id in found:
                raise ValueError
        except (InvalidInput, ValueError) as error:
            raise InvalidInput(
                f"line {number}: {line[:80]!r}", code="bad_trusted_list",
                remedy="write a node id of 40 hex characters once, and after it at most a date like 2027-01-31",
            ) from error  # fmt: skip
        found[node_id] = until_s
    return OwnList(MappingProxyType(found))


def is_trusted(policy: NetworkPolicy, own: OwnList, node_id: str, now_s: float) -> bool:
    """Whether that PNode is checked less at the moment. A document that has expired trusts nobody."""
    by_maintainers = not policy.expired(now_s) and policy.is_trusted(node_id, now_s)
    return by_maintainers or own.names(node_id, now_s)


def _end_of(word: str) -> float:
    """The first second of that day. Raises ValueError."""
    return datetime.strptime(word, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
