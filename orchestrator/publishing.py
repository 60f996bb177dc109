"""A plan and its desired states as they are signed and stored before a head names them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dataservice import keys
from dcnr import limits
from dcnr.crashpoints import reached
from dcnr.errors import Refused
from dcnr.ports import ObjectStore
from dcnr.v1 import identity_pb2, model_pb2
from orchestrator.costs import StageCost
from orchestrator.desired import desired_states
from orchestrator.documents import Stored, put_all, sealed
from trust.identity import NodeKey

SEQUENCE_AHEAD: Final = 64
"""Sequences that may pass while a plan without any desired state is stored."""


@dataclass(frozen=True, slots=True)
class Published:
    """A signed plan of ``model``, and what it tells each PNode."""

    model: str
    stored: Stored
    desired: Mapping[str, Stored]


def published(
    model: str, plan: model_pb2.Plan, key: NodeKey, costs: Sequence[StageCost], request_digest: str, besides: Iterable[str]
) -> Published:
    """Signs ``plan`` and what it tells its PNodes and those ``besides``, who are to host nothing. A plan that is too large otherwise goes without what it
    says of candidates, then without what VNodes wait for: rejections explain it and decide nothing.

    Raises Refused (``plan_too_large``): a head that named what nobody can read could not be replaced, since nobody would have its view.
    """
    stored = sealed(identity_pb2.DOMAIN_PLAN, plan, key)
    for kept in ([row for row in plan.rejections if not row.pnode_id], []):
        if len(stored.data) > limits.MAX_PLAN_BYTES and plan.rejections:
            del plan.rejections[:]
            plan.rejections.extend(kept)
            stored = sealed(identity_pb2.DOMAIN_PLAN, plan, key)
    told = desired_states(plan, stored.digest, int(plan.sequence), costs, request_digest, besides)
    desired = {pnode_id: sealed(identity_pb2.DOMAIN_DESIRED_STATE, item, key) for pnode_id, item in told.items()}
    largest = max((len(one.data) for one in desired.values()), default=0)
    if len(stored.data) > limits.MAX_PLAN_BYTES or largest > limits.MAX_ENVELOPE_BYTES:
        raise Refused(
            f"a plan of {len(stored.data)} bytes, {largest} of them for one PNode; at most {limits.MAX_PLAN_BYTES} and {limits.MAX_ENVELOPE_BYTES} are read",
            code="plan_too_large", remedy="cancel the job, and submit it with fewer replicas of each VNode, as numbers",
        )  # fmt: skip
    return Published(model, stored, desired)


def sequences_meanwhile(num_desired: int) -> int:
    """So many sequences renewals of the head may use up while a plan and ``num_desired`` desired states are stored: enough also where every single write
    takes as long as one may (`dcnr.limits.STORE_TIMEOUT_S`, several at once). Sequences need not follow one another.
    """
    return SEQUENCE_AHEAD + num_desired


async def put(store: ObjectStore, made: Published) -> None:
    """The plan and its desired states are in the store when this returns. Raises Unavailable."""
    # One after the other: a store that keeps objects in directories may lose an object whose name has become a directory first.
    await put_all(store, [(keys.plan(made.model, made.stored.digest), made.stored.data)])
    reached("plan.stored")
    await put_all(
        store, [(keys.desired(made.model, made.stored.digest, pnode_id), one.data) for pnode_id, one in made.desired.items()]
    )
    reached("desired.stored")
