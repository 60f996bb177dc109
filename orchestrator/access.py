"""Who may read and write which object: maintainers what they make, PNodes what they host, everybody with a session the public documents. Who may ask
questions, and how often. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from dataservice import keys
from dcnr import limits
from dcnr.errors import InvalidInput, Refused, Unavailable
from dcnr.ids import check_digest, node_id_of
from dcnr.v1 import data_pb2
from trust.network import NetworkPolicy
from trust.rates import Rate, TokenBuckets

_K = data_pb2
PUBLIC: Final = frozenset(
    (
        _K.OBJECT_KIND_HEAD, _K.OBJECT_KIND_PLAN, _K.OBJECT_KIND_MANIFEST, _K.OBJECT_KIND_GRAPH, _K.OBJECT_KIND_JOB_REQUEST,
        _K.OBJECT_KIND_JOB_END, _K.OBJECT_KIND_DATASET_MANIFEST,
    )
)  # fmt: skip
MAINTAINERS_WRITE: Final = frozenset(
    (
        _K.OBJECT_KIND_STATE, _K.OBJECT_KIND_COMMIT, _K.OBJECT_KIND_GRAPH, _K.OBJECT_KIND_MANIFEST, _K.OBJECT_KIND_DATASET_MANIFEST,
        _K.OBJECT_KIND_SHARD,
    )
)  # fmt: skip
PNODES_WRITE: Final = frozenset((_K.OBJECT_KIND_STATE, _K.OBJECT_KIND_COMMIT, _K.OBJECT_KIND_EVIDENCE))
MAX_DATASET_MANIFEST_BYTES: Final = 32 * limits.MIB
STRANGERS_ASK: Final = Rate(per_s=20.0, burst=200.0)
"""Questions of one subnet by callers that are neither maintainers nor orchestrators, and as many calls that read, and as many that bring statements."""
HEADS_ASKED: Final = Rate(per_s=100.0, burst=1000.0)
"""Statements of the head that one subnet asks for: after a takeover each PNode of a house wants one, at once."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, as far as access depends on it."""

    node_id: str
    maintainer: bool
    orchestrator: bool
    pnode: bool
    """A PNode that this orchestrator knows, or its worker: in a large network nobody knows all, and right after its start an orchestrator knows none."""

    @property
    def is_listed(self) -> bool:
        """By the network document. A PNode is not: any key attaches."""
        return self.maintainer or self.orchestrator


def caller_of(policy: NetworkPolicy, node_id: str, pnode_id: str | None, known: Callable[[str], bool]) -> Caller:
    """The caller's standing. ``pnode_id``: the PNode that a worker acts for."""
    maintainers = _node_ids(tuple(policy.document.maintainer_keys))
    identity = pnode_id or node_id
    return Caller(identity, node_id in maintainers, policy.is_orchestrator(node_id), known(identity))


@lru_cache(maxsize=8)
def _node_ids(keys: tuple[bytes, ...]) -> frozenset[str]:
    return frozenset(node_id_of(key) for key in keys)


class CallLimits:
    """How often a kind of call may be made: by whom the network document lists as often as there is room, by others, PNodes too, at a rate per subnet,
    since keys cost nothing and any key attaches.

    ``gateways``: their ids, of those that limit whom they ask for.
    """

    def __init__(self, gateways: Collection[str] = (), rate: Rate = STRANGERS_ASK) -> None:
        self._gateways = frozenset(gateways)
        self._strangers = TokenBuckets(rate)

    def exempts(self, caller: Caller) -> bool:
        """Whether that one is held to no rate."""
        return caller.is_listed or caller.node_id in self._gateways

    def check(self, caller: Caller, subnet: str, now: float) -> None:
        """Raises Unavailable (``rate_limited``) with the time to wait."""
        if self.exempts(caller):
            return
        wait_s = self._strangers.wait_s(subnet, now)
        if wait_s:
            raise Unavailable("too many questions from there", code="rate_limited", retry_after_s=wait_s, remedy="ask more slowly")


def key_of(ref: data_pb2.ObjectRef) -> tuple[str, int]:
    """The object's key and the most bytes it may have. Raises InvalidInput."""
    match ref.kind:
        case _K.OBJECT_KIND_HEAD:
            return keys.head(ref.model), limits.MAX_HEAD_BYTES
        case _K.OBJECT_KIND_PLAN:
            return keys.plan(ref.model, ref.digest), limits.MAX_PLAN_BYTES
        case _K.OBJECT_KIND_DESIRED:
            return keys.desired(ref.model, ref.digest, ref.owner), limits.MAX_ENVELOPE_BYTES
        case _K.OBJECT_KIND_MANIFEST:
            return keys.manifest(ref.model, ref.digest), limits.MAX_MANIFEST_BYTES
        case _K.OBJECT_KIND_STATE:
            return keys.state(ref.model, ref.owner, ref.digest), limits.MAX_OBJECT_BYTES
        case _K.OBJECT_KIND_COMMIT:
            return keys.commit(ref.model, ref.owner, ref.digest), limits.MAX_ENVELOPE_BYTES
        case _K.OBJECT_KIND_EVIDENCE:
            return keys.evidence(ref.model, ref.owner, ref.digest), limits.MAX_OBJECT_BYTES
        case _K.OBJECT_KIND_GRAPH:
            return keys.graph(ref.digest), limits.MAX_GRAPH_BYTES
        case _K.OBJECT_KIND_JOB_REQUEST:
            return keys.job_request(ref.model, ref.owner), limits.MAX_ENVELOPE_BYTES
        case _K.OBJECT_KIND_JOB_END:
            return keys.job_end(ref.model, ref.owner), limits.MAX_ENVELOPE_BYTES
        case _K.OBJECT_KIND_DATASET_MANIFEST:
            return keys.dataset_manifest(ref.owner, ref.digest), MAX_DATASET_MANIFEST_BYTES
        case _K.OBJECT_KIND_SHARD:
            return keys.shard(ref.owner, ref.digest), limits.MAX_OBJECT_BYTES
        case _:
            raise InvalidInput("an object of an unknown kind", code="bad_object_kind")


def check_read(caller: Caller, ref: data_pb2.ObjectRef) -> None:
    """Raises Refused unless the caller may read the object, Unavailable (``unknown_caller``) where that is not known here."""
    if ref.kind in PUBLIC or caller.maintainer or caller.orchestrator:
        return
    if not caller.pnode:
        raise _unknown()
    if ref.kind == _K.OBJECT_KIND_DESIRED and ref.owner != caller.node_id:
        raise Refused("a desired state is read by its own PNode", code="not_allowed")


def check_write(
    caller: Caller, item: data_pb2.GrantItem, hosts: Callable[[str], bool], shows: Callable[[str], int], max_state_bytes: int
) -> int:
    """The most bytes the object may have. Raises Refused, InvalidInput, Unavailable (``unknown_caller``), and what ``hosts`` and ``shows`` raise.

    ``hosts`` says whether the PNode hosts a VNode, ``shows`` how many bytes of evidence about it are awaited from the PNode (`orchestrator.evidence_rights`).
    """
    ref = item.object
    if item.sha256 != ref.digest:
        raise InvalidInput("an object is written under the digest of its bytes", code="wrong_digest")
    check_digest(item.sha256)
    _, bound = key_of(ref)
    if ref.kind == _K.OBJECT_KIND_STATE:
        bound = min(bound, max_state_bytes or bound)
    if not 0 < item.size_bytes <= bound:
        raise InvalidInput(f"{item.size_bytes} bytes, 1 to {bound} are allowed", code="bad_size")
    if caller.maintainer and ref.kind in MAINTAINERS_WRITE:
        return bound
    if caller.pnode and ref.kind in PNODES_WRITE:
        if ref.kind == _K.OBJECT_KIND_EVIDENCE:
            bound = min(bound, shows(ref.owner))
            if item.size_bytes > bound:
                raise InvalidInput(f"{item.size_bytes} bytes of evidence, {bound} are allowed", code="bad_size")
        elif not hosts(ref.owner):
            raise Refused(f"{ref.owner} is not hosted by this PNode", code="not_hosted")
        return bound
    if ref.kind in PNODES_WRITE and not caller.is_listed:
        raise _unknown()
    raise Refused("this object is not yours to write", code="not_allowed", remedy="sign in with a maintainer's key")


def _unknown() -> Unavailable:
    """It may be a PNode all the same, of which another orchestrator knows, or this one soon."""
    return Unavailable(
        "only PNodes of this network and its maintainers read and write this, and the caller is not known here as one", code="unknown_caller",
        remedy="a maintainer connects with the key: dcnr.connect(..., key=NodeKey.load(FILE)); a PNode attaches first",
    )  # fmt: skip
