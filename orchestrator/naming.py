"""Brings judged checkpoints into the next manifest, and takes out of it what the store has lost. One per model; only the holder asks it.

The manifest is written here and named by the head elsewhere; what was taken in is forgotten only when that is done. A checkpoint that the rules refuse is
remembered with the reason, so that whoever records it again is told instead of waiting for ever.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from dataservice import keys
from dataservice.manifest_form import CheckpointRecord, Manifest, from_proto, record_from_proto, to_proto
from dataservice.manifests import Outcome, Refusal, Rules, StoredState, next_manifest
from dcnr import limits
from dcnr.errors import InvariantBroken
from dcnr.ids import Digest, number_of
from dcnr.ports import Clock, ObjectStore
from dcnr.v1 import identity_pb2, model_pb2
from orchestrator import retention
from orchestrator.audit_events import Decision
from orchestrator.audit_retention import EvidenceKeeper, kept_for_return
from orchestrator.audited import audited_manifest
from orchestrator.chain import Chain
from orchestrator.checkpoints import FENCED, NOTHING_NEW, Judged, is_fenced, named
from orchestrator.documents import Stored, put_all, sealed
from orchestrator.drawing import Drawing
from orchestrator.history import History
from orchestrator.jobs import JobRecord
from orchestrator.releases import ReleaseBook
from orchestrator.told_before import ToldBefore
from orchestrator.verdicts import BACK, Taken, Verdicts, behind_of, news, take
from orchestrator.view import ModelView, ViewLoader
from trust.identity import NodeKey

MANIFEST_S: Final = 0.5
"""Checkpoints recorded within this time share a manifest."""
SWEEP_AGAIN_S: Final = 10.0
"""From a sweep that left condemned states to the next."""
FENCE_AGAIN_S: Final = 20.0
"""A fence is raised for one that should have begun anew this often at most."""
LOST_LOOKS: Final = 5
"""A named state counts as lost when this many looks in a row did not find it: one read may be stale."""
MAX_REFUSED: Final = 4096
"""Refusals remembered; the oldest is forgotten, its checkpoint then judged anew."""
WORDS: Final[Mapping[str, str]] = {
    "too_fragmented": "its lineage is in too many pieces for its share of a manifest: learn on and snapshot later, when gaps have closed",
    "missing_object": "its state is not in the store any more",
    FENCED: "it holds what was taken back, or may",
    "not_primary": "the plan has another primary by now",
    NOTHING_NEW: "it adds no batch to what is named",
    "older_incarnation": "a checkpoint of a newer incarnation is named",
}


class Naming:
    """See the module."""

    def __init__(
        self, *, key: NodeKey, store: ObjectStore, clock: Clock, loader: ViewLoader, history: History, drawing: Drawing,
        releases: ReleaseBook,
    ) -> None:  # fmt: skip
        self.verdicts: Verdicts = lambda _view: ()
        """What the audit desk has decided; the desk puts itself here."""
        self._poisoned: dict[str, str] = {}
        """VNodes of which a replica has to go though no fence keeps it out, with the newest such replica: until it is replaced."""
        self._astray: set[str] = set()
        """Replicas of the plan of which the last record was about a state that nobody can follow back to one that counts."""
        self._fenced_at: dict[str, float] = {}
        """When a fence was raised for that last."""
        self._fencing: frozenset[str] = frozenset()
        """VNodes that the manifest fences for that which `next` made last."""
        self.went_back = False
        """Whether the manifest that `next` made last takes something back."""
        self.found_fault = False
        """Whether it does so because of somebody's fault, who is quarantined for it."""
        self._drawing, self._evidence, self._releases = drawing, EvidenceKeeper(store), releases
        self._key, self._store, self._clock, self._loader, self._history = key, store, clock, loader, history
        self._pending: dict[tuple[str, str], Judged] = {}
        self._taken: list[Judged] = []
        self._refused: OrderedDict[tuple[str, str], str] = OrderedDict()
        """By VNode and commit: replicas that learn alike come to one state, and one may be named where the other was not."""
        self._missed: dict[tuple[str, str], int] = {}
        """Named states, by VNode and digest, that the last looks did not find, with how many looks."""
        self._told: set[Digest] = set()
        self._gone_since: dict[Digest, float] = {}
        """Condemned digests that listings lack, and since when."""
        self._told_before = ToldBefore(store)
        self._manifested_at = self._swept_at = 0.0

    def begin(self, now: float) -> None:
        """A term begins. What was judged in another is judged again as its PNode repeats it: the store may have gone back, and what it had is there no more,
        or brings something after all.
        """
        self._manifested_at, self._swept_at, self._gone_since = -1e9, now, {}
        self._pending.clear()
        self._taken.clear()
        self._refused.clear()

    def recorded(self, judged: Judged) -> None:
        """A checkpoint that the next manifest may name."""
        self._pending[(judged.checkpoint.vnode, judged.checkpoint.digest)] = judged

    def poisoned(self, vnode: str, replica: str) -> None:
        """A replica brings, or holds, what can never count, though it should have begun with what does: a manifest raises the fence, and another takes its
        place.
        """
        self._poisoned[vnode] = max(self._poisoned.get(vnode, replica), replica, key=number_of)

    def leads_nowhere(self, replica: str) -> None:
        """A primary of the plan has recorded a checkpoint of which an ancestor's commit is not in the store, or does not hold."""
        self._astray.add(replica)

    def leads_back(self, replica: str) -> None:
        """A manifest names something of that replica."""
        self._astray.discard(replica)

    def useless(self, vnode: str, replica: str) -> None:
        """A primary has brought nothing for so long that it is of no use. Where that is since its state leads nowhere, nothing that goes on from it will ever
        be named: a new replica begins with the checkpoint that counts, on the same PNode where no other fits. One that is merely slow goes on.
        """
        if replica in self._astray:
            self.poisoned(vnode, replica)

    def fences(self, view: ModelView, now: float) -> bool:
        """Whether the next manifest raises a fence. A plan before that would be in vain: whoever it promotes stands on what is about to be fenced."""
        return view.manifest is not None and bool(self._to_fence(view, now))

    def refusal(self, checkpoint: model_pb2.Checkpoint) -> str:
        """Why a judged checkpoint will not be named; empty if that is open."""
        return self._refused.get((checkpoint.vnode, checkpoint.commit_digest), "")

    async def lacks_newest(self, view: ModelView) -> bool:
        """Whether a VNode's newest checkpoint is not found in the store; one that stays away is left out by `next`. Raises Unavailable."""
        entries = view.manifest.entries if view.manifest is not None else ()
        newest = [(entry.vnode, entry.working[0].digest) for entry in entries if entry.working]
        await self._look(view, newest)
        return any(state in self._missed for state in newest)

    async def next(
        self, view: ModelView, jobs: Mapping[str, JobRecord], now: float, *, sweep_s: float, grant_lifetime_s: int, unknown: Collection[str] = ()
    ) -> Stored | None:  # fmt: skip
        """The successor of the manifest under the head, in the store; None while there is nothing new. ``unknown``: jobs that the store has beside ``jobs``.
        Raises Unavailable.
        """
        active = view.head.active.job_id
        self._told_before.saw(view, now, grant_lifetime_s)
        self._drop(view, active)
        if view.manifest is None or view.job is None:
            return None
        if self._missed:
            await self._look(view, list(self._missed))
        lost = frozenset(Digest(digest) for (_, digest), looks in self._missed.items() if looks >= LOST_LOOKS)
        sweep = now - self._swept_at >= sweep_s
        decisions = news(view.chain, self.verdicts(view)) if view.chain is not None else []
        to_fence = self._to_fence(view, now)
        waiting = self._pending or decisions or to_fence
        if not sweep and not lost and (not waiting or now - self._manifested_at < MANIFEST_S):
            return None
        wall_ms = int(self._clock.wall() * 1000)
        self._taken, self._fencing = list(self._pending.values()), to_fence
        checkpoints = [item.checkpoint for item in self._taken]
        stored = [StoredState(one.vnode, Digest(one.digest), int(one.size_bytes), wall_ms) for one in checkpoints]
        kept: frozenset[Digest] = frozenset()
        if sweep:
            self._swept_at = now
            await self._releases.refresh()  # what another orchestrator was told a moment ago counts
            kept, left = await retention.kept_states(view, self._loader, jobs, self._releases.kept, unknown), False
            vnodes = [entry.vnode for entry in view.manifest.entries]
            if view.chain is not None:
                kept |= kept_for_return(view.chain.ledger)
                left = await self._evidence.sweep(view.model, view.chain, wall_ms, grant_lifetime_s * 1000)
            left |= await self._told_before.sweep(view, now, wall_ms, grant_lifetime_s)
            stored = await retention.stored_states(self._store, view.model, vnodes)
            if await retention.delete_condemned(self._store, view.model, view.manifest, stored, kept) or left:
                self._swept_at = now - sweep_s + SWEEP_AGAIN_S
            self._note_gone(view.manifest, stored, now)
            await self._look(view, retention.unlisted_states(view.manifest, stored))
        self._manifested_at = now
        primaries = {
            item.vnode: item.replica
            for item in (view.plan.assignments if view.plan is not None else ())
            if item.role == model_pb2.ROLE_PRIMARY
        }
        rules = Rules(
            job_id=active, epoch=int(view.head.epoch), holder=self._key.node_id, graph_digest=view.job.request.graph_digest,
            primaries=primaries, stored=stored, now_unix_ms=wall_ms, grant_lifetime_ms=grant_lifetime_s * 1000, kept=kept, lost=lost,
            first=_first(view), forgotten=frozenset(one for one, since in self._gone_since.items() if now - since > grant_lifetime_s),
        )  # fmt: skip
        outcome = await self._outcome(view, view.manifest, rules, decisions)
        self._tell(view, outcome, lost)
        if outcome.manifest is None:
            self.done()
            return None
        made = sealed(identity_pb2.DOMAIN_MANIFEST, to_proto(outcome.manifest), self._key)
        if len(made.data) > limits.MAX_MANIFEST_BYTES:
            raise InvariantBroken(f"a manifest of {len(made.data)} bytes, which no reader takes", code="manifest_too_large")
        await put_all(self._store, [(keys.manifest(view.model, made.digest), made.data)])
        return made

    def _drop(self, view: ModelView, active: str) -> None:
        """What the next manifest has no use for: it is named, or of another job, or was judged before the fence was raised that keeps it out."""
        for key, judged in list(self._pending.items()):
            checkpoint = judged.checkpoint
            if named(view, checkpoint) or checkpoint.job_id != active:
                del self._pending[key]
            elif _holds_fenced(view, judged):
                del self._pending[key]
                self._refused[(checkpoint.vnode, checkpoint.commit_digest)] = f"{FENCED}: {WORDS[FENCED]}"
                self._history.say("checkpoint_refused", checkpoint.replica, WORDS[FENCED], code=FENCED, step=checkpoint.step)

    async def _outcome(self, view: ModelView, manifest: model_pb2.Manifest, rules: Rules, decisions: Sequence[Decision]) -> Outcome:
        """By the rules of a network with audits, or without."""
        self.went_back = self.found_fault = False
        parent, digest = from_proto(manifest), view.head.manifest_digest
        next_replica = int(view.plan.next_replica) if view.plan is not None else 0
        if view.chain is None or view.job is None:
            self.went_back = bool(self._fencing)
            return self._unaudited(
                replace(parent, fences={**parent.fences, **dict.fromkeys(self._fencing, next_replica)}), digest, rules
            )
        taken = Taken()
        if decisions:
            going_back = decisions[-1].verdict in BACK
            kept = await self._can_return_to(view, manifest, rules) if going_back else frozenset()
            taken = take(view.chain.ledger, decisions, behind_of(view.job.costs), kept, rules.now_unix_ms)
        taken = replace(taken, fenced=taken.fenced | self._fencing)
        self.went_back = bool(taken.fenced)
        self.found_fault = taken.found_fault
        outcome = audited_manifest(
            view.chain, parent, digest, self._taken, taken, rules, partial(self._drawing.verdict, view), next_replica
        )
        self._tell_verdicts(view.chain, taken)
        return outcome

    def _unaudited(self, parent: Manifest, digest: str, rules: Rules) -> Outcome:
        """After ``parent`` with its new fences; what is about to be fenced is not named."""
        records = [record_from_proto(item.checkpoint) for item in self._taken]
        kept = [one for one in records if one.vnode not in self._fencing]
        learned = {Digest(item.checkpoint.digest): item.contributions for item in self._taken}
        outcome = next_manifest(parent, digest, kept, replace(rules, is_due=bool(self._fencing)), learned)
        fenced = (Refusal(one, "retracted") for one in records if one.vnode in self._fencing)
        return replace(outcome, refused=(*fenced, *outcome.refused))

    async def _can_return_to(self, view: ModelView, manifest: model_pb2.Manifest, rules: Rules) -> frozenset[str]:
        """States that are in the store and stay there, and what the job began with."""
        stored = await retention.stored_states(self._store, view.model, [entry.vnode for entry in manifest.entries])
        first = {str(one.digest) for one in rules.first.values()}
        return frozenset({str(one.digest) for one in stored} - set(manifest.condemned) - set(map(str, rules.lost)) | first)

    def done(self) -> None:
        """The head names what `next` returned."""
        for item in self._taken:
            self._pending.pop((item.checkpoint.vnode, item.checkpoint.digest), None)
        self._taken = []
        self._fenced_at |= dict.fromkeys(self._fencing, self._manifested_at)
        self._told.clear()
        self._missed = {state: looks for state, looks in self._missed.items() if looks < LOST_LOOKS}

    def _note_gone(self, manifest: model_pb2.Manifest, listed: Sequence[StoredState], now: float) -> None:
        """Which condemned states a listing lacks; one that was cut off says nothing."""
        if max(Counter(one.vnode for one in listed).values(), default=0) >= retention.MAX_LISTED:
            self._gone_since = {}
            return
        there = {one.digest for one in listed}
        gone = [Digest(one) for one in manifest.condemned if one not in there]
        self._gone_since = {one: self._gone_since.get(one, now) for one in gone}

    def _to_fence(self, view: ModelView, now: float) -> frozenset[str]:
        """VNodes with a replica to be replaced that still has its place and that no fence keeps out, unless theirs was raised just now."""
        placed = {item.replica for item in view.plan.assignments} if view.plan is not None else set[str]()
        self._astray &= placed
        self._poisoned = {
            vnode: replica for vnode, replica in self._poisoned.items() if replica in placed and not is_fenced(view, vnode, replica)
        }
        return frozenset(vnode for vnode in self._poisoned if now - self._fenced_at.get(vnode, -FENCE_AGAIN_S) >= FENCE_AGAIN_S)

    async def _look(self, view: ModelView, states: Sequence[tuple[str, str]]) -> None:
        missing = await retention.missing_states(self._store, view.model, states)
        for state in states:
            looks = self._missed.pop(state, 0)
            if state[1] in missing:
                self._missed[state] = looks + 1

    def _tell_verdicts(self, chain: Chain, taken: Taken) -> None:
        """What was decided, and where VNodes return to."""
        for one in taken.decisions:
            known = chain.ledger.intervals[one.interval]
            self._history.say(
                f"interval_{one.verdict.value}", known.replica, one.reason, interval=one.interval, pnode=known.pnode_id,
                batches=len(known.batches), evidence=one.evidence,
            )  # fmt: skip
        for vnode, back in (taken.way.returns if taken.way is not None else {}).items():
            self._history.say(
                "vnode_went_back", vnode, f"{len(back.retracted)} checkpoints are taken back, {len(back.needed_again)} batches are needed again",
                target=back.target, interval=taken.way.interval if taken.way is not None else "",
            )  # fmt: skip

    def _tell(self, view: ModelView, outcome: Outcome, lost: frozenset[Digest]) -> None:
        """Refusals and losses, each once."""
        for refusal in outcome.refused:
            record = refusal.record
            if refusal.reason == "older":
                continue  # its replica is told that it is named once a head names this manifest; until then it waits
            reason = WORDS.get(refusal.reason, refusal.reason)
            new = (record.vnode, record.commit_digest) not in self._refused
            self._refused[(record.vnode, record.commit_digest)] = f"{refusal.reason}: {reason}"
            if new and refusal.reason not in ("named", NOTHING_NEW):
                self._history.say("checkpoint_refused", record.replica, reason, code=refusal.reason, step=record.step)
        while len(self._refused) > MAX_REFUSED:
            self._refused.popitem(last=False)
        if view.manifest is None or outcome.manifest is None:
            return
        for entry in view.manifest.entries:
            newest = entry.working[0] if entry.working else None
            if newest is None or newest.digest not in lost - self._told:
                continue
            self._told.add(Digest(newest.digest))
            after = outcome.manifest.entries[entry.vnode].working[0]
            self._history.say(
                "checkpoint_lost", entry.vnode,
                f"the store does not have its newest checkpoint any more ({newest.step} batches): one with {len(after.lineage)} batches counts now, "
                "and its replica brings the state again if it has it; look whether something else deletes objects",
                digest=newest.digest, replica=newest.replica,
            )  # fmt: skip


def _holds_fenced(view: ModelView, judged: Judged) -> bool:
    """Whether it is a fenced replica's, or, where audits are in force, holds what one learned and no manifest names."""
    learned = {one.replica for one in judged.contributions} if view.chain is not None else set[str]()
    return any(is_fenced(view, judged.checkpoint.vnode, replica) for replica in {judged.checkpoint.replica, *learned})


def _first(view: ModelView) -> dict[str, CheckpointRecord]:
    entries = view.beginning.entries if view.beginning is not None else ()
    return {entry.vnode: record_from_proto(entry.working[0]) for entry in entries if entry.working}
