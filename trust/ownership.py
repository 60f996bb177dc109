"""Whose machine a node is: an owner's key signs the node's id once, wherever that key lies, and the node shows the statement in its adverts.

It tells the planner which machines stand or fall together, nothing more: an owner key costs nothing, so several of them prove nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dcnr.errors import Corrupt, DcnrError, NotFound
from dcnr.ids import check_node_id
from dcnr.v1 import identity_pb2
from trust.envelope import open_single, parse, parse_envelope, seal
from trust.identity import NodeKey

MAX_OWNERSHIP_BYTES: Final = 512
"""Of a statement with its signature."""


def make_ownership(owner: NodeKey, node_id: str) -> identity_pb2.Envelope:
    """The owner's word that this node is theirs. Raises InvalidInput for what is no node id."""
    return seal(identity_pb2.DOMAIN_OWNERSHIP, identity_pb2.Ownership(node_id=check_node_id(node_id)), owner)


def open_ownership(envelope: identity_pb2.Envelope, node_id: str) -> str:
    """The id of the key that owns this node. Raises Corrupt for what does not hold, or is about another node."""
    payload, signer = open_single(envelope, identity_pb2.DOMAIN_OWNERSHIP, max_bytes=MAX_OWNERSHIP_BYTES)
    if parse(identity_pb2.Ownership, payload).node_id != node_id:
        raise Corrupt("an owner's statement about another node", code="wrong_node")
    return signer.node_id


def owner_in(envelope: identity_pb2.Envelope, node_id: str) -> str:
    """Whose the node is by its own advert; empty where nobody says so, or what is said does not hold. Never raises."""
    try:
        return open_ownership(envelope, node_id)
    except DcnrError:
        return ""


def load_ownership(path: Path, node_id: str) -> identity_pb2.Envelope:
    """The statement in a file, if it is about this node. Raises NotFound, Corrupt, both with what to do."""
    remedy = "make one for this node: pnode own --key FILE"
    try:
        with path.open("rb") as file:
            envelope = parse_envelope(file.read(MAX_OWNERSHIP_BYTES + 1), MAX_OWNERSHIP_BYTES)
        open_ownership(envelope, node_id)
    except OSError as error:
        raise NotFound(
            f"no owner's statement can be read at {path}: {error.strerror}", code="no_ownership", remedy=remedy
        ) from None
    except Corrupt as error:
        raise Corrupt(f"{path} does not say whose this node is: {error.message}", code="bad_ownership", remedy=remedy) from error
    return envelope
