"""Holds what commits tell of against the plans of their job, as anybody may who reads a model's documents.

Whoever signed a commit has to have been the primary of its VNode in some plan of the job, as that replica on that PNode. A delta in it has to come from a
replica that some plan had contribute, on that PNode, and its primary has to have taken it for one part of as many as learned by some plan that had it as the
primary.
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
_Said = tuple[int, str, str, str] | tuple[str, int]
"""A seat (role, VNode, replica, PNode), or how many learned where that replica was the primary."""


async def newest_plan(client: AsyncClient, model: str) -> str:
    """Digest of the plan under the model's head; empty where there is none. Raises Corrupt, NotFound, Unavailable."""
    answer = await client.model(model)
    payload, signer = open_single(answer.head, identity_pb2.DOMAIN_HEAD, max_bytes=limits.MAX_HEAD_BYTES)
    head = parse(model_pb2.Head, payload)
    if (head.network_id, head.model) != (client.policy.network_id, model) or not client.policy.is_orchestrator(signer.node_id):
        raise Corrupt("a head of another model, or signed by no orchestrator of this network", code="wrong_signer")
    return head.plan_digest


class PlannedCommits:
    """Of one job. ``newest``: digest of the newest plan of the model, or empty. They are read backwards from there, as far as commits ask for it."""

    def __init__(self, documents: StoredDocuments, newest: str, place: Place) -> None:
        self._documents, self._unread, self._job_id = documents, newest, place.job_id
        self._model, self._network_id = place.model, place.network_id
        self._num_read, self._was_there = 0, False
        self._said: set[_Said] = set()

    async def check(self, commit: model_pb2.Commit, pnode_id: str) -> None:
        """``pnode_id``: whose worker signed it. Raises Corrupt (``unplanned_replica``, ``unplanned_merge``), and what reading raises."""
        if not await self._plans_say((model_pb2.ROLE_PRIMARY, commit.vnode, commit.replica, pnode_id)):
            raise Corrupt(
                f"a commit of {commit.replica} is signed by {pnode_id[:8]}, and no plan of the job had it as a primary there",
                code="unplanned_replica",
            )
        place = Place(self._network_id, self._model, self._job_id, commit.vnode)
        for merged in commit.merges:
            delta = open_delta(merged.delta, place)
            seat = (model_pb2.ROLE_CONTRIBUTOR, commit.vnode, delta.replica, delta.delegation.pnode_id)
            if not await self._plans_say(seat):
                raise Corrupt(
                    f"{commit.replica} took in a delta of {delta.replica}, which no plan had contribute", code="unplanned_merge"
                )
            if merged.replicas and not await self._plans_say((commit.replica, merged.replicas)):
                raise Corrupt(
                    f"{commit.replica} took a delta for one part of {merged.replicas}, and no plan had so many learn",
                    code="unplanned_merge",
                )

    async def _plans_say(self, wanted: _Said) -> bool:
        """As many of them are read as that takes."""
        while wanted not in self._said:
            if not self._unread or self._num_read >= MAX_PLANS:
                return False
            plan = await self._documents.plan(self._unread)
            self._unread, self._num_read = plan.parent_digest, self._num_read + 1
            if plan.job_id == self._job_id:
                self._was_there = True
                self._see(plan)
            elif self._was_there:
                self._unread = ""
        return True

    def _see(self, plan: model_pb2.Plan) -> None:
        num_learning: dict[str, int] = {}
        for item in plan.assignments:
            num_learning[item.vnode] = num_learning.get(item.vnode, 0) + (item.weight > 0)
        for item in plan.assignments:
            self._said.add((item.role, item.vnode, item.replica, item.pnode_id))
            if item.role == model_pb2.ROLE_PRIMARY:
                self._said.add((item.replica, max(FEWEST, num_learning[item.vnode])))
