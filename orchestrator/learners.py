"""Who led a VNode and who learned beside whom, as the plans of a job say: a commit or merge that no plan had is not named. Pure, but for reading plans.

Behind a checkpoint lie commits of primaries, each signed under a delegation of its own. Its replica has to have been the primary, on that PNode, in some plan
of the job: else whoever leads could have its work, with the faults in it, signed by keys that no plan gave anything. A primary signs which delta it took in and
that so many replicas learned, which says how much the delta counts. Both have to fit: the delta's replica contributed, on that PNode, in some plan of the job,
and some plan that had this primary had so many that learn. Plans are read from the newest backwards, only as far as a commit or a merge asks for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from dcnr.errors import NotFound, Refused, Unavailable
from dcnr.v1 import model_pb2

ReadPlan = Callable[[str], Awaitable[model_pb2.Plan]]
"""A verified plan by its digest. Raises NotFound, Corrupt, Unavailable."""
MAX_READ: Final = 64
"""Plans read for one checkpoint; where more are needed it is asked for again."""
AT_LEAST: Final = 2
"""A primary and whoever brings a delta, though the newest plan may have taken its share away."""


@dataclass(frozen=True, slots=True)
class Signer:
    """Who made a commit: the replica that it names, and the PNode whose worker signed it."""

    replica: str
    pnode_id: str


@dataclass(frozen=True, slots=True)
class Merge:
    """What a commit says of one delta; ``num_learning`` 0: it does not say how many learned."""

    primary: str
    replica: str
    pnode_id: str
    num_learning: int


class Learners:
    """Of one job. Numbers of replicas are given once, so what any plan says of one holds for ever."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self._primaries: set[tuple[str, str]] = set()
        self._contributors: set[tuple[str, str]] = set()
        self._counts: set[tuple[str, int]] = set()
        self._read: set[str] = set()
        self._unread: list[str] = []

    async def check(self, stated: Iterable[Signer | Merge], plan: model_pb2.Plan, digest: str, read: ReadPlan) -> None:
        """``plan``: the one under the head.

        Raises Refused (``unplanned_replica``, ``unplanned_merge``), Unavailable (``plans_unread``), and Corrupt and Unavailable as ``read`` does.
        """
        open_ = list(stated)
        if not open_:
            return
        if not digest or digest not in self._read:
            self._see(plan, digest)
        for _ in range(MAX_READ):
            open_ = [one for one in open_ if not self._has(one)]
            if not open_:
                return
            if not self._unread:
                raise _unplanned(open_[0], "no plan of the job")
            wanted = self._unread[-1]
            try:
                older = await read(wanted)
            except NotFound as error:
                raise _unplanned(open_[0], "a plan of the job is not in the store, and no newer one") from error
            if wanted in self._unread:  # else the check of another checkpoint has read it meanwhile
                self._unread.remove(wanted)
                self._see(older, wanted)
        raise Unavailable("plans are still being read", code="plans_unread", retry_after_s=1.0)

    def _has(self, one: Signer | Merge) -> bool:
        match one:
            case Signer():
                return (one.replica, one.pnode_id) in self._primaries
            case Merge():
                fits = not one.num_learning or (one.primary, one.num_learning) in self._counts
                return fits and (one.replica, one.pnode_id) in self._contributors

    def _see(self, plan: model_pb2.Plan, digest: str) -> None:
        self._read.add(digest)
        if plan.job_id != self.job_id:
            return
        learning: dict[str, int] = {}
        for item in plan.assignments:
            learning[item.vnode] = learning.get(item.vnode, 0) + (item.weight > 0)
            if item.role == model_pb2.ROLE_CONTRIBUTOR:
                self._contributors.add((item.replica, item.pnode_id))
        primaries = [item for item in plan.assignments if item.role == model_pb2.ROLE_PRIMARY]
        self._primaries.update((item.replica, item.pnode_id) for item in primaries)
        self._counts.update((item.replica, max(AT_LEAST, learning[item.vnode])) for item in primaries)
        if plan.parent_digest and plan.parent_digest not in self._read and plan.parent_digest not in self._unread:
            self._unread.append(plan.parent_digest)


def _unplanned(one: Signer | Merge, who: str) -> Refused:
    match one:
        case Signer():
            return Refused(
                f"{who} had {one.replica} as a primary on {one.pnode_id[:8]}, which signed a commit behind the checkpoint",
                code="unplanned_replica",
            )
        case Merge():
            return Refused(
                f"{who} had {one.replica} contribute to {one.primary} with {one.num_learning} replicas that learn",
                code="unplanned_merge",
            )
