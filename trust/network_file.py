"""The network document on disk: one JSON file with the whole signed chain, written whole or not at all, believed only after verification.

``documents`` holds the envelopes (base64, oldest first); everything else in the file is a summary for people and is never read back.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path
from typing import Any, Final

from dcnr.crashpoints import reached
from dcnr.errors import Corrupt, NotFound, Refused, Stale
from dcnr.v1 import identity_pb2
from trust.envelope import envelope_in_text, text_of_envelope
from trust.network import MAX_DOCUMENT_BYTES, MAX_HISTORY, NetworkPolicy, verify_chain

FORMAT: Final = "dcnr-network-1"
MAX_FILE_BYTES: Final = 2 * MAX_HISTORY * MAX_DOCUMENT_BYTES


def save_policy(path: Path, policy: NetworkPolicy) -> None:
    """``path`` holds the policy's chain and a summary, or what it held before. Raises Refused (``disk_trouble``); not where it holds that already, for
    nothing is written then.
    """
    text = json.dumps(_table(policy), indent=2, ensure_ascii=False) + "\n"
    if _holds(path, text.encode()):
        return
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        reached("network.drafted")
        draft.replace(path)
        reached("network.renamed")
    except OSError as error:
        with contextlib.suppress(OSError):  # where no directory is there is no draft
            draft.unlink()
        raise Refused(
            f"{path} cannot be written: {error.strerror}", code="disk_trouble", remedy="free disk space, or choose another path"
        ) from error


def _holds(path: Path, data: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(data) + 1) == data
    except OSError:
        return False


def load_policy(path: Path, now_wall: float | None = None, *, network_id: str | None = None) -> NetworkPolicy:
    """The verified policy in a file.

    ``now_wall``: the time (s) at which its newest version must be in force; ``network_id``: the id that it must have.
    Raises NotFound, Corrupt, Refused (``wrong_network``, ``too_few_signatures``), Stale (``document_expired``).
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise NotFound(
            f"there is no network file at {path}",
            code="no_network",
            remedy="ask a maintainer for it and say --network FILE, or --bootstrap id@host:port",
        ) from None
    except OSError as error:
        raise Corrupt(f"{path} cannot be read: {error.strerror}", code="damaged_file") from error
    return verify_chain(_documents(path, data), now_wall=now_wall, network_id=network_id)


def newest_policy(given: Path | None, kept: Path, now_wall: float) -> NetworkPolicy:
    """The network of the file ``given``, or where none is the one that an earlier run ``kept``; in its newest version in either.

    So a start with an old file takes nothing back that came in force while the process ran. Raises as `load_policy`, also where what is kept has a higher
    number and does not follow from the file; what is kept of another network, or damaged, is nothing beside a given file.
    """
    if given is None:
        return load_policy(kept, now_wall)
    policy = load_policy(given)
    try:
        own = load_policy(kept, network_id=policy.network_id)
    except (NotFound, Corrupt, Refused, Stale):
        return load_policy(given, now_wall)
    if own.document.version <= policy.document.version:
        return load_policy(given, now_wall)
    try:
        return policy.successor(own.history, now_wall=now_wall)
    except Refused as error:
        raise Refused(
            f"{kept} does not follow from {given}: {error.message}",
            code=error.code,
            remedy=f"give the newest network file; remove {kept} if that is the wrong one",
        ) from error


def _documents(path: Path, data: bytes) -> list[identity_pb2.Envelope]:
    if len(data) > MAX_FILE_BYTES:
        raise Corrupt(f"{path} is larger than {MAX_FILE_BYTES} bytes", code="damaged_file")
    try:
        table = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, "it is not JSON") from error
    if not isinstance(table, dict) or table.get("format") != FORMAT:
        raise _damaged(path, f"its format is not {FORMAT}")
    texts = table.get("documents")
    if not isinstance(texts, list) or not 0 < len(texts) <= MAX_HISTORY:
        raise _damaged(path, f"it does not hold 1 to {MAX_HISTORY} documents")
    try:
        return [envelope_in_text(text, MAX_DOCUMENT_BYTES) for text in texts]
    except Corrupt as error:
        raise _damaged(path, error.message) from error


def _damaged(path: Path, why: str) -> Corrupt:
    return Corrupt(
        f"{path} is no network file: {why}",
        code="damaged_file",
        remedy="ask a maintainer for the file again; a PNode's own copy may be removed where it is started with --bootstrap and --network-id",
    )


def _table(policy: NetworkPolicy) -> dict[str, Any]:
    document = policy.document
    return {
        "format": FORMAT,
        "network_id": policy.network_id,
        "summary": {
            "name": document.name,
            "version": document.version,
            "maintainers": len(document.maintainer_keys),
            "threshold": document.threshold,
            "orchestrators": list(document.orchestrator_ids),
            "bootstrap": list(document.bootstrap),
            "locality": identity_pb2.Locality.Name(document.locality),
            "store": f"{document.store_scheme}://{document.store_address}" if document.store_address else "",
            "bucket": document.store_bucket,
        },
        "documents": [text_of_envelope(envelope) for envelope in policy.history],
    }
