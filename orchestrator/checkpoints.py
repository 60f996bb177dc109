"""Judges a recorded checkpoint before any manifest may name it: made by the plan's primary, signed by its worker, whole in the store, a state that can
be restored, and with a lineage that follows exactly from its ancestors and the deltas that they took in, all of which plans of the job have.

The ancestry is followed through stored commits until a state whose lineage is known: one that the manifest names, one judged before, or the one
that the job began with.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from dataservice import keys
from dataservice.manifest_form import Contribution
from dcnr import limits
from dcnr.asked_work import work_digest
from dcnr.errors import Corrupt, NotFound, Refused, Unavailable
from dcnr.ids import digest_of, number_of
from dcnr.intervals import IntervalSet
from dcnr.ports import Clock, ObjectInfo, ObjectStore
from dcnr.v1 import identity_pb2, model_pb2
from orchestrator.ancestry import Ancestry, contributions_of, intervals_of
from orchestrator.behind import Behind
from orchestrator.documents import get_exact, open_plan
from orchestrator.jobs import intervals
from orchestrator.judging import Reads, Refusals, Turns
from orchestrator.learners import Learners, Merge, Signer
from orchestrator.states import StateCheck
from orchestrator.view import JobFacts, ModelView
from trust.commits import MAX_COMMIT_BYTES, Place, VerifiedCommit, follows, open_commit, open_delta
from trust.envelope import digest_of_envelope, parse_envelope
from trust.network import NetworkPolicy

MAX_ANCESTORS: Final = 4096
"""Commits followed back to a known state. A longer chain is refused with everything that goes on from it: its PNode brings nothing any more, and after a while
the VNode is placed elsewhere, from the state that the manifest names (`orchestrator.contribution`).
"""
MAX_ANCESTRY_BYTES: Final = 128 * limits.MIB
"""Of these commits together: they are held at once."""
MAX_KNOWN: Final = 16_384
STATE_MISSING: Final = "state_missing"
"""Code of what an upload cures: the state, or a commit that leads to it, is not in the store."""
LEADS_NOWHERE: Final = frozenset(
    ("unknown_ancestor", "wrong_commit", "bad_lineage", "unplanned_replica", "unplanned_merge", "unknown_anchor", "no_steps")
)
"""Codes of what is refused for its ancestry, and with it everything that goes on from there."""
NOTHING_NEW: Final = "nothing_new"
"""Code of what adds no batch to what is named: it is told with what goes on from there."""
FENCED: Final = "fenced"
"""Code of what a replica brings that holds what was taken back."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A checkpoint that may be named, and who learned what since the state ``base``, from which its ancestry was followed."""

    checkpoint: model_pb2.Checkpoint
    contributions: tuple[Contribution, ...]
    base: str = ""


class CheckpointJudge:
    """One per model. Every reason to refuse is a Refused (never, snapshot anew) or Unavailable (ask again)."""

    def __init__(self, store: ObjectStore, policy: Callable[[], NetworkPolicy], clock: Clock, reads: Reads | None = None) -> None:
        self._store, self._policy, self._clock, self._states = store, policy, clock, StateCheck(store)
        self._known: OrderedDict[tuple[str, str, str, str], Ancestry] = OrderedDict()
        """By what the job learns, and the commit that ends in the state: replicas that learn alike come to one state on ways of their own."""
        self._looked_at: OrderedDict[str, str] = OrderedDict()
        self._lacking: OrderedDict[str, str] = OrderedDict()
        """By the commit of a checkpoint: the ancestor that was not in the store. Until it is there nothing is read for that checkpoint again."""
        self._behind = Behind(store)
        self._learners: tuple[str, Learners] | None = None
        """By what the job that was judged for last is to learn: in a store that went back one of its name that was asked for anew may learn something else."""
        self._asked: tuple[str, str] | None = None
        """Digest of the request that was judged for last, and what it is to learn."""
        self._reads, self._turns = reads or Reads(), Turns()
        self._refused, self._dead_ends = Refusals(clock), Refusals(clock)
        """Of commits themselves, where it took reading to refuse them, and of whatever names them as its parent."""

    async def judge(self, view: ModelView, checkpoint: model_pb2.Checkpoint, envelope: identity_pb2.Envelope) -> Judged:
        """Raises Refused, Corrupt (both: never) or Unavailable."""
        job = view.job
        if job is None or view.plan is None or checkpoint.job_id != job.request.job_id:
            raise Refused("the checkpoint is not of the active job", code="wrong_job")
        _check_primary(view.plan, checkpoint)
        _check_digest(view, checkpoint)
        place = Place(self._policy().network_id, view.model, checkpoint.job_id, checkpoint.vnode)
        found = open_commit(envelope, place, now_wall=self._clock.wall())
        commit = found.commit
        if (
            digest_of_envelope(envelope) != checkpoint.commit_digest
            or commit.state_digest != checkpoint.digest
            or commit.parent_digest != checkpoint.parent_digest
            or commit.replica != checkpoint.replica
            or commit.incarnation != checkpoint.incarnation
            or found.delegation.pnode_id != checkpoint.pnode_id
        ):
            raise Refused("the commit is not about this checkpoint", code="wrong_commit")
        _check_one_end(commit)
        if view.chain is not None and (found.delegation.pnode_id, checkpoint.vnode) in view.chain.crowded():
            raise Unavailable(
                "more of its PNode's work there waits for audits than is taken in: it is named when less does",
                code="waiting_for_audit",
            )
        async with self._turns.turn(checkpoint.vnode):
            self._refused.check(checkpoint.commit_digest)
            await self._check_lacking(checkpoint.commit_digest)
            ancestry = await self._ancestry(view, job, place, checkpoint, found)
            await self._check_object(view.model, checkpoint)
            if self._looked_at.get(checkpoint.digest) != checkpoint.commit_digest:  # the same record is repeated until it is named
                with self._refused.noting(checkpoint.commit_digest):
                    await self._check_state(view, checkpoint, job)
            self._remember(checkpoint, self._work_of(view), ancestry)
            return Judged(checkpoint, ancestry.contributions, ancestry.base)

    def leads_nowhere(self, checkpoint: model_pb2.Checkpoint, code: str) -> bool:
        """Whether an error with that code was about how the checkpoint came to be: an ancestor's commit that is not in the store, or one that does not hold."""
        return code in LEADS_NOWHERE or (code == STATE_MISSING and checkpoint.commit_digest in self._lacking)

    async def _check_lacking(self, commit_digest: str) -> None:
        key = self._lacking.get(commit_digest)
        if key is not None:
            await self._head(key, "an ancestor's commit")
            self._lacking.pop(commit_digest, None)

    async def _head(self, key: str, what: str) -> ObjectInfo:
        try:
            return await self._store.head(key)
        except NotFound as error:
            raise Unavailable(f"{what} is not in the store", code=STATE_MISSING) from error

    def _remember(self, checkpoint: model_pb2.Checkpoint, work: str, ancestry: Ancestry) -> None:
        self._known[(work, checkpoint.vnode, checkpoint.digest, checkpoint.commit_digest)] = ancestry
        self._looked_at[checkpoint.digest] = checkpoint.commit_digest
        for table in (self._known, self._looked_at):
            _bound(table)

    async def _check_object(self, model: str, checkpoint: model_pb2.Checkpoint) -> None:
        """Both that others need: the state, and the commit by which its ancestry is followed."""
        await self._head(keys.commit(model, checkpoint.vnode, checkpoint.commit_digest), "its commit")
        info = await self._head(keys.state(model, checkpoint.vnode, checkpoint.digest), "the state object")
        if info.size_bytes != checkpoint.size_bytes:
            raise Refused(f"the state object has {info.size_bytes} bytes, not {checkpoint.size_bytes}", code="wrong_size")

    async def _check_state(self, view: ModelView, checkpoint: model_pb2.Checkpoint, job: JobFacts) -> None:
        good = [*_named(view.manifest, checkpoint.vnode), *_named(view.beginning, checkpoint.vnode)]
        await self._states.check(view.model, checkpoint, good, job)

    async def _ancestry(
        self, view: ModelView, job: JobFacts, place: Place, checkpoint: model_pb2.Checkpoint, newest: VerifiedCommit
    ) -> Ancestry:
        """What follows from the commit and its ancestors, which is what the checkpoint claims."""
        known = self._known_at(view, place, newest.commit)
        if known is not None:
            chain = [(checkpoint.commit_digest, newest)]
            ancestry = await self._added(view, place, known, chain)
            _check_lineage(checkpoint, ancestry, job)
            if view.chain is not None and (sought := self._behind.sought(place, chain)).grounds:
                async with self._reads.place():
                    with self._refused.noting(checkpoint.commit_digest):
                        await self._behind.find(place, sought)
            return ancestry
        self._dead_ends.check(newest.commit.parent_commit)
        async with self._reads.place():
            with self._refused.noting(checkpoint.commit_digest):
                chain, known = await self._followed(view, place, newest, checkpoint.commit_digest)
                ancestry = await self._added(view, place, known, chain)
                _check_lineage(checkpoint, ancestry, job)
                if view.chain is not None:
                    await self._behind.find(place, self._behind.sought(place, chain))
                return ancestry

    async def _followed(
        self, view: ModelView, place: Place, newest: VerifiedCommit, commit_digest: str
    ) -> tuple[list[tuple[str, VerifiedCommit]], Ancestry]:
        """The commits back to a known state, the oldest first, and what is known of that."""
        chain: list[tuple[str, VerifiedCommit]] = []
        digest, current, num_bytes = commit_digest, newest, 0
        while True:
            chain.append((digest, current))
            num_bytes += current.commit.ByteSize()
            known = self._known_at(view, place, current.commit)
            if known is not None:
                chain.reverse()
                return chain, known
            if not current.commit.parent_commit or len(chain) > MAX_ANCESTORS or num_bytes > MAX_ANCESTRY_BYTES:
                why = f"its ancestry leads to no known state within {len(chain)} commits of {num_bytes} bytes"
                error = Refused(why, code="unknown_ancestor")
                if len(chain) > 1:  # else nobody knows yet that its parent is what it says
                    self._dead_ends.note(newest.commit.parent_commit, error)
                raise error
            digest = current.commit.parent_commit
            current = await self._parent(place, current.commit, commit_digest)

    async def _added(self, view: ModelView, place: Place, known: Ancestry, chain: list[tuple[str, VerifiedCommit]]) -> Ancestry:
        """What these commits add to a known state."""
        audited = view.chain is not None
        added = intervals_of(chain, place) if audited else (one for _, found in chain for one in contributions_of(found, place))
        known = known.after(added)
        await self._check_planned(view, place, [found for _, found in chain])
        for one in known.contributions:
            if audited and is_fenced(view, one.vnode, one.replica):
                raise Refused(f"{one.replica} may hold what was taken back: nothing that it learned counts", code=FENCED)
        return known

    async def _check_planned(self, view: ModelView, place: Place, chain: list[VerifiedCommit]) -> None:
        """Who signed these commits, and what they took in, has to stand in plans of the job."""
        if view.plan is None:
            return
        stated: list[Signer | Merge] = []
        for found in chain:
            stated.append(Signer(found.commit.replica, found.delegation.pnode_id))
            for merged in found.commit.merges:
                delta = open_delta(merged.delta, place)
                stated.append(Merge(found.commit.replica, delta.replica, delta.delegation.pnode_id, int(merged.replicas)))
        work = self._work_of(view)
        if self._learners is None or self._learners[0] != work:
            self._learners = work, Learners(place.job_id)
        await self._learners[1].check(stated, view.plan, view.head.plan_digest, partial(self._plan, place.model))

    def _work_of(self, view: ModelView) -> str:
        """What the active job learns, as PNodes have it with their snapshots; where its beginning cannot be read, that of this very request."""
        if view.job is None or view.beginning is None:
            return view.job.request_digest if view.job is not None else ""
        if self._asked is None or self._asked[0] != view.job.request_digest:
            self._asked = view.job.request_digest, work_digest(view.job.request, view.beginning)
        return self._asked[1]

    async def _plan(self, model: str, digest: str) -> model_pb2.Plan:
        data = await get_exact(self._store, keys.plan(model, digest), digest, max_bytes=limits.MAX_PLAN_BYTES)
        return open_plan(data, self._policy(), model)

    async def _parent(self, place: Place, commit: model_pb2.Commit, newest: str) -> VerifiedCommit:
        key = keys.commit(place.model, place.vnode, commit.parent_commit)
        try:
            data = (await self._store.get(key, max_bytes=MAX_COMMIT_BYTES)).data
        except NotFound as error:
            self._lacking[newest] = key
            _bound(self._lacking)
            raise Unavailable("an ancestor's commit is not in the store", code=STATE_MISSING) from error
        if digest_of(data) != commit.parent_commit:
            raise Corrupt("a stored commit has another digest than its name", code="wrong_digest")
        parent = open_commit(parse_envelope(data, MAX_COMMIT_BYTES), place)
        if not follows(commit, parent.commit):
            raise Refused("the parent's commit is about another state", code="wrong_commit")
        _check_one_end(parent.commit)
        return parent

    def _known_at(self, view: ModelView, place: Place, commit: model_pb2.Commit) -> Ancestry | None:
        """What is known of the state that it goes on from: judged before, named by the manifest, which has credited it already, or what the job began with.

        Known is only what its parent commit has made too: else nobody could walk back from it, and whoever came to those bits on a way of its own is followed.
        """
        digest = commit.parent_digest
        known = self._known.get((self._work_of(view), place.vnode, digest, commit.parent_commit))
        if view.chain is not None:
            on_line = view.chain.checkpoints.get(digest)
            if on_line is not None and _made(on_line, place, commit):
                return Ancestry(intervals(on_line.lineage), base=digest)
            if known is not None and known.base not in view.chain.checkpoints:
                known = None  # it led to a state that was taken back or is lost: followed anew to one that counts
        if known is not None or not digest:
            return known
        for checkpoint in _named(view.manifest, place.vnode):
            if checkpoint.digest == digest and _made(checkpoint, place, commit):
                return Ancestry(intervals(checkpoint.lineage), base=digest)
        begun = _named(view.beginning, place.vnode)
        is_first = not commit.parent_commit and bool(begun) and begun[0].digest == digest
        return Ancestry(IntervalSet.empty(), base=digest) if is_first else None


def _bound(table: OrderedDict[Any, Any]) -> None:
    while len(table) > MAX_KNOWN:
        table.popitem(last=False)


def named(view: ModelView, checkpoint: model_pb2.Checkpoint) -> bool:
    """Whether the manifest under the head names the checkpoint, or one of the same replica with as many batches. Which life made that is no matter: one that
    began anew with less takes nothing back, and is named once it holds more.
    """
    entry = next((item for item in view.manifest.entries if item.vnode == checkpoint.vnode), None) if view.manifest else None
    if entry is None:
        return False
    return any(
        item.digest == checkpoint.digest
        or (item.job_id == checkpoint.job_id and item.replica == checkpoint.replica and item.step >= checkpoint.step)
        for item in entry.working
    )


def condemned(view: ModelView, digest: str) -> bool:
    """Whether that state may never be named again."""
    return view.manifest is not None and (digest in view.manifest.condemned or digest in view.manifest.retracted)


def is_fenced(view: ModelView, vnode: str, replica: str) -> bool:
    """Whether that replica holds what was taken back, or may: the manifest under the head says from which number on replicas do not."""
    first = (
        next((int(one.first_replica) for one in view.manifest.fences if one.vnode == vnode), 0) if view.manifest is not None else 0
    )
    return number_of(replica) < first


def _made(named: model_pb2.Checkpoint, place: Place, commit: model_pb2.Commit) -> bool:
    """Whether that checkpoint of the job is what the parent of the commit made."""
    return (named.job_id, named.vnode, named.commit_digest) == (place.job_id, place.vnode, commit.parent_commit)


def _check_one_end(commit: model_pb2.Commit) -> None:
    if commit.state_digest and commit.anchor_digest:
        raise Refused("a commit that names both a state and an anchor, of which only one is ever replayed", code="wrong_commit")


def _check_primary(plan: model_pb2.Plan, checkpoint: model_pb2.Checkpoint) -> None:
    for item in plan.assignments:
        if item.replica == checkpoint.replica and item.role == model_pb2.ROLE_PRIMARY:
            if item.vnode == checkpoint.vnode and item.pnode_id == checkpoint.pnode_id:
                return
            break
    raise Refused(f"{checkpoint.replica} is not the primary of {checkpoint.vnode} in the plan", code="not_primary")


def _check_lineage(checkpoint: model_pb2.Checkpoint, ancestry: Ancestry, job: JobFacts) -> None:
    lineage, claimed = ancestry.lineage, intervals(checkpoint.lineage)
    if claimed != lineage or len(lineage) != checkpoint.step:
        raise Refused(
            f"the lineage of {len(claimed)} batches does not follow from its ancestors, which give {len(lineage)}",
            code="bad_lineage",
        )
    if (highest := lineage.highest()) is not None and highest >= job.num_batches:
        raise Refused("the lineage holds batches that the job does not have", code="bad_lineage")


def _check_digest(view: ModelView, checkpoint: model_pb2.Checkpoint) -> None:
    if condemned(view, checkpoint.digest):
        raise Refused("its digest was condemned", code="condemned")


def _named(manifest: model_pb2.Manifest | None, vnode: str) -> list[model_pb2.Checkpoint]:
    """The checkpoints that a manifest names of a VNode, newest first."""
    entry = next((item for item in manifest.entries if item.vnode == vnode), None) if manifest is not None else None
    return [one for one in (*entry.working, entry.cleared) if one.digest] if entry is not None else []
