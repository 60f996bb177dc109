"""Where to find others first: entries ``id@host:port`` or ``host:port`` from flag, file, network document and cache, merged in that order, bounded.

The cache ``nodes.json`` holds peers that were heard, newest first, at most `MAX_CACHED_PEERS`. It is a convenience: a damaged one is set aside by
the reader, which says so in `CacheRead.problem`, and is replaced by the next write. Writing is atomic (a new file, synced, renamed).
"""

from __future__ import annotations

import ipaddress
import json
import math
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dcnr.crashpoints import reached
from dcnr.errors import InvalidInput
from dcnr.ids import NodeId, check_node_id
from dcnr.limits import KIB, MAX_BOOTSTRAP_ENTRIES

MAX_CACHED_PEERS: Final = 200
MAX_ENTRY_CHARS: Final = 320
MAX_FILE_BYTES: Final = 64 * KIB
_CACHE_VERSION: Final = 1
_HOST_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
_FILE_REMEDY: Final = "name a text file with one [id@]host:port a line as bootstrap_file, or leave it out"
_REMEDY: Final = "write host:port or id@host:port, an IPv6 address in brackets: [2001:db8::1]:7700"


@dataclass(frozen=True, slots=True)
class Entry:
    """One address to try. With ``node_id`` whoever answers there must prove to be that node; without, the first one seen is taken."""

    host: str
    port: int
    node_id: NodeId | None = None

    def __str__(self) -> str:
        place = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        return f"{self.node_id}@{place}" if self.node_id else place


@dataclass(frozen=True, slots=True)
class CachedPeer:
    """A peer that was heard at ``last_seen`` (wall clock, s)."""

    entry: Entry
    last_seen: float


@dataclass(frozen=True, slots=True)
class CacheRead:
    """What a cache held; ``problem`` is empty, or says for people why it held less than it might."""

    peers: tuple[CachedPeer, ...]
    problem: str = ""


def parse_entry(text: str) -> Entry:
    """``text`` as an entry. Raises InvalidInput (``bad_bootstrap_entry``)."""
    cleaned = text.strip()
    if len(cleaned) > MAX_ENTRY_CHARS:
        raise _bad(cleaned, "it is too long")
    name, _, place = cleaned.rpartition("@")
    if "@" in cleaned and not name:
        raise _bad(cleaned, "the id before @ is empty")
    node_id = check_node_id(name) if name else None
    host, colon, port = place.rpartition(":")
    if not colon:
        raise _bad(cleaned, "the port is missing")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        raise _bad(cleaned, "the port is not a number from 1 to 65535")
    return Entry(_checked_host(host, cleaned), int(port), node_id)


def parse_list(text: str) -> list[Entry]:
    """Entries of a file: one per line, ``#`` starts a comment. At most `MAX_BOOTSTRAP_ENTRIES`. Raises InvalidInput naming the line."""
    entries: list[Entry] = []
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.split("#", 1)[0].strip()
        if not content:
            continue
        if len(entries) >= MAX_BOOTSTRAP_ENTRIES:
            raise InvalidInput(
                f"more than {MAX_BOOTSTRAP_ENTRIES} bootstrap entries", code="too_many_bootstrap_entries", line=number
            )
        try:
            entries.append(parse_entry(content))
        except InvalidInput as error:
            raise InvalidInput(f"line {number}: {error.message}", code=error.code, remedy=error.remedy, line=number) from error
    return entries


def read_list(path: Path) -> list[Entry]:
    """Entries of the file at ``path``. Raises InvalidInput for a missing, too large or malformed file: somebody named it on purpose."""
    try:
        data = _read_bounded(path)
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}", code="bad_bootstrap_file", remedy=_FILE_REMEDY) from error
    try:
        return parse_list(data.decode())
    except InvalidInput as error:
        raise InvalidInput(f"{path}, {error.message}", code=error.code, remedy=error.remedy, **error.details) from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is no text", code="bad_bootstrap_file", remedy=_FILE_REMEDY) from error


def listed(entries: Sequence[str], file: str) -> tuple[str, ...]:
    """``entries``, then those of the file at the path ``file``, if it names one: what flags and settings say comes first. Raises as `read_list`."""
    return (*entries, *(map(str, read_list(Path(file).expanduser())) if file else ()))


def merge(*sources: Iterable[Entry], limit: int = MAX_BOOTSTRAP_ENTRIES) -> list[Entry]:
    """Entries of all sources, earlier sources first, each address once, at most ``limit``.

    Of two entries for one address the first decides the place; an id is taken over from the second only where the first has none.
    """
    merged: dict[tuple[str, int], Entry] = {}
    for entry in (entry for source in sources for entry in source):
        place = (entry.host, entry.port)
        held = merged.get(place)
        if held is None:
            if len(merged) < limit:
                merged[place] = entry
        elif held.node_id is None and entry.node_id is not None:
            merged[place] = entry
    return list(merged.values())


def remember(known: Sequence[CachedPeer], heard: Iterable[CachedPeer]) -> list[CachedPeer]:
    """The cache with newly heard peers: one per node (per address where the id is unknown), newest first, at most `MAX_CACHED_PEERS`."""
    by_name: dict[str, CachedPeer] = {}
    for peer in (*known, *heard):
        name = peer.entry.node_id or str(peer.entry)
        held = by_name.get(name)
        if held is None or peer.last_seen >= held.last_seen:
            by_name[name] = peer
    ranked = sorted(by_name.values(), key=lambda peer: (-peer.last_seen, str(peer.entry)))
    return ranked[:MAX_CACHED_PEERS]


def read_cache(path: Path) -> CacheRead:
    """Peers in the cache at ``path``. Never raises: what cannot be used is left out, and ``problem`` says so."""
    try:
        data = _read_bounded(path)
    except FileNotFoundError:
        return CacheRead(())
    except OSError as error:
        return CacheRead((), f"cannot read {path.name}: {error.strerror}; starting without known peers")
    except InvalidInput as error:
        return CacheRead((), f"{error.message}; starting without known peers")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return CacheRead((), f"{path.name} is damaged (no JSON); starting without known peers")
    rows = document.get("peers") if isinstance(document, dict) and document.get("version") == _CACHE_VERSION else None
    if not isinstance(rows, list):
        return CacheRead((), f"{path.name} is damaged or of another version; starting without known peers")
    peers = [peer for row in rows if (peer := _cached_peer(row)) is not None]
    problem = (
        f"{path.name}: {len(rows) - len(peers)} of {len(rows)} peers are damaged and left out" if len(peers) < len(rows) else ""
    )
    return CacheRead(tuple(remember(peers, ())), problem)


def write_cache(path: Path, peers: Sequence[CachedPeer]) -> None:
    """Replaces the cache at ``path`` in one step: readers see the old or the new one, whenever the machine stops. Raises OSError."""
    rows = [{"entry": str(peer.entry), "last_seen": peer.last_seen} for peer in remember(peers, ())]
    data = json.dumps({"version": _CACHE_VERSION, "peers": rows}, indent=1).encode() + b"\n"
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        reached("contacts.drafted")
        Path(name).replace(path)
        reached("contacts.renamed")
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _bad(text: str, why: str) -> InvalidInput:
    return InvalidInput(f"bootstrap entry {text[:80]!r}: {why}", code="bad_bootstrap_entry", remedy=_REMEDY)


def _checked_host(host: str, text: str) -> str:
    """An IP address in its canonical form, or a DNS name in lower case."""
    if host.startswith("[") and host.endswith("]"):
        try:
            return str(ipaddress.IPv6Address(host[1:-1]))
        except ValueError as error:
            raise _bad(text, "no IPv6 address in the brackets") from error
    if ":" in host:
        raise _bad(text, "an IPv6 address needs brackets")
    try:
        return str(ipaddress.IPv4Address(host))
    except ValueError:
        labels = host.split(".")
    if len(host) > 253 or not all(_HOST_LABEL.fullmatch(label) for label in labels) or labels[-1].isdigit():
        raise _bad(text, "the host is neither an IP address nor a name")
    return host.lower()


def _cached_peer(row: object) -> CachedPeer | None:
    if not isinstance(row, dict):
        return None
    text, last_seen = row.get("entry"), row.get("last_seen")
    if not isinstance(text, str) or isinstance(last_seen, bool) or not isinstance(last_seen, int | float):
        return None
    try:
        seen = float(last_seen)
        return CachedPeer(parse_entry(text), seen) if math.isfinite(seen) else None
    except (InvalidInput, OverflowError):
        return None


def _read_bounded(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise InvalidInput(f"{path.name} is larger than {MAX_FILE_BYTES} bytes", code="bad_bootstrap_file")
    return data
