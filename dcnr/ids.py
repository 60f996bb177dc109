"""Distinct id types and their alphabets: whatever names an object in the store or a peer has passed one of these checks.

Digests and node ids are lower-case hexadecimal. Names (model, VNode, data set, job) are ``[a-z0-9][a-z0-9_-]{0,62}``; object keys are built from
these only (see `dataservice.keys`), so no stranger's text reaches a path.
"""

from __future__ import annotations

import hashlib
import re
from typing import NewType

from dcnr.errors import InvalidInput

NodeId = NewType("NodeId", str)
"""First 160 bits of SHA-256 over the node's public key (SubjectPublicKeyInfo DER), 40 hex characters."""
NetworkId = NewType("NetworkId", str)
"""First 160 bits of SHA-256 over version 1 of the network document, 40 hex characters."""
Digest = NewType("Digest", str)
"""SHA-256, 64 hex characters."""
Name = NewType("Name", str)
"""A model, VNode, data set or job name."""
VNodeId = NewType("VNodeId", str)
"""A VNode's name in the graph."""
ReplicaId = NewType("ReplicaId", str)
"""``<vnode>.<number>``: one live copy of a VNode; the number only grows within a model."""

_HEX40 = re.compile(r"[0-9a-f]{40}")
_HEX64 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_REPLICA = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}\.[0-9]{1,15}")


def digest_of(data: bytes | bytearray | memoryview) -> Digest:
    """SHA-256 of ``data``."""
    return Digest(hashlib.sha256(data).hexdigest())


def node_id_of(public_key_der: bytes) -> NodeId:
    """The node id that belongs to a public key (SubjectPublicKeyInfo, DER)."""
    return NodeId(hashlib.sha256(public_key_der).hexdigest()[:40])


def network_id_of(document: bytes) -> NetworkId:
    """The network id that belongs to version 1 of a network document."""
    return NetworkId(hashlib.sha256(document).hexdigest()[:40])


def _checked(pattern: re.Pattern[str], text: object, what: str, rule: str) -> str:
    if not isinstance(text, str) or pattern.fullmatch(text) is None:
        shown = repr(text)[:80]
        raise InvalidInput(f"{shown} is not a valid {what}", code="bad_id", remedy=f"a {what} is {rule}")
    return text


def check_node_id(text: object) -> NodeId:
    """``text`` as a node id. Raises InvalidInput."""
    return NodeId(_checked(_HEX40, text, "node id", "40 lower-case hexadecimal characters"))


def check_digest(text: object) -> Digest:
    """``text`` as a SHA-256 digest. Raises InvalidInput."""
    return Digest(_checked(_HEX64, text, "digest", "64 lower-case hexadecimal characters"))


def check_name(text: object) -> Name:
    """``text`` as a name. Raises InvalidInput."""
    return Name(_checked(_NAME, text, "name", "1 to 63 of a-z, 0-9, _ and -, not starting with _ or -"))


def is_name(text: str) -> bool:
    """Whether ``text`` is a name."""
    return _NAME.fullmatch(text) is not None


def is_replica_id(text: str) -> bool:
    """Whether ``text`` is a replica id."""
    return _REPLICA.fullmatch(text) is not None


def check_replica_id(text: object) -> ReplicaId:
    """``text`` as a replica id. Raises InvalidInput."""
    return ReplicaId(_checked(_REPLICA, text, "replica id", "<vnode>.<number>"))


def vnode_of(replica: ReplicaId) -> VNodeId:
    """The VNode that a replica is a copy of."""
    return VNodeId(replica.rsplit(".", 1)[0])


def number_of(replica: str) -> int:
    """The number of a replica: it only grows in a model, and no number is given twice."""
    return int(replica.rpartition(".")[2])


def job_id_of(model: str, idempotency_key: str) -> str:
    """The job's name: the same for the same model and key. Raises InvalidInput for an empty key."""
    if not idempotency_key:
        raise InvalidInput("an idempotency key is a text that names this submission", code="bad_idempotency_key")
    mark = hashlib.sha256(idempotency_key.encode()).hexdigest()[:12]
    return check_name(f"{model[:48]}-{mark}")
