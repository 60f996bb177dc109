"""Holds the merges that commits tell of against the plans of their job, as anybody may who reads a model's documents.

A delta has to come from a replica that some plan of the job had contribute, on that PNode, and its primary has to have taken it for one part of as many as
learned by some plan that had it as the primary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dcnr import limits
from dcnr.errors import Corrupt
from dcnr.stored import StoredDocuments
from dcnr.v1 import identity_pb2, model_pb2
from trust.commits import Place, open_delta
from trust.envelope import open_single, parse

if TYPE_CHECKING:
    from dcnr.sdk.client import AsyncClient

MAX_PLANS: Final = 100_000
"""That are read, of all jobs of the model."""
FEWEST: Final = 2
"""A primary and who brought the delta."""


async def newest_plan(client: AsyncClient, model: str) -> str:
    """Digest of the plan under the model's head; empty where there is none. Raises Corrupt, NotFound, Unavailable."""
    answer = await client.model(model)
    payload, signer = open_single(answer.head, identity_pb2.DOMAIN_HEAD, max_bytes=limits.MAX_HEAD_BYTES)
    head = parse(model_pb2.Head, payload)
    if (head.network_id, head.model) != (client.policy.network_id, model) or not client.policy.is_orchestrator(signer.node_id):
        raise Corrupt("a head of another model, or signed by no orchestrator of this network", code="wrong_signer")
    return head.plan_digest


class PlannedMerges:
    """Of one job. ``newest``: digest of the newest plan of the model; empty: there is none. Plans are read when the first merge is met."""

    def __init__(self, documents: StoredDocuments, newest: str, place: Place) -> None:
        self._documents, self._newest, self._job_id = documents, newest, place.job_id
        self._model, self._network_id = place.model, place.network_id
        self._contributed: set[tuple[str, str, str]] | None = None
        self._learned: dict[str, set[int]] = {}

    async def check(self, commit: model_pb2.Commit) -> None:
        """Raises Corrupt (``unplanned_merge``), and what reading raises."""
        if not commit.merges:
            return
        if self._contributed is None:
            self._contributed = await self._read()
        place = Place(self._network_id, self._model, self._job_id, commit.vnode)
        for merged in commit.merges:
            delta = open_delta(merged.delta, place)
            if (commit.vnode, delta.replica, delta.delegation.pnode_id) not in self._contributed:
                raise Corrupt(
                    f"{commit.replica} took in a delta of {delta.replica}, which no plan had contribute", code="unplanned_merge"
                )
            if merged.replicas and merged.replicas not in self._learned.get(commit.replica, set()):
                raise Corrupt(
                    f"{commit.replica} took a delta for one part of {merged.replicas}, and no plan had so many learn",
                    code="unplanned_merge",
                )

    async def _read(self) -> set[tuple[str, str, str]]:
        found: set[tuple[str, str, str]] = set()
        digest, num_read, was_there = self._newest, 0, False
        while digest and num_read < MAX_PLANS:
            plan = await self._documents.plan(digest)
            digest, num_read = plan.parent_digest, num_read + 1
            if plan.job_id != self._job_id:
                if was_there:
                    break
                continue
            was_there = True
            for vnode in {item.vnode for item in plan.assignments}:
                here = [item for item in plan.assignments if item.vnode == vnode]
                num_learning = max(FEWEST, sum(item.weight > 0 for item in here))
                for item in here:
                    if item.role == model_pb2.ROLE_CONTRIBUTOR:
                        found.add((vnode, item.replica, item.pnode_id))
                    elif item.role == model_pb2.ROLE_PRIMARY:
                        self._learned.setdefault(item.replica, set()).add(num_learning)
        return found
