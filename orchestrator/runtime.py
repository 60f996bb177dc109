"""One model inside one orchestrator: its head loop, its view, its jobs and, while this process holds the head, its decider."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from dataservice import keys
from dcnr import limits
from dcnr.errors import DcnrError
from dcnr.ports import Clock, ObjectStore
from dcnr.specs import Registry
from dcnr.tracing import UNTRACED, Tracer
from dcnr.v1 import data_pb2, identity_pb2, model_pb2, orchestrator_pb2
from orchestrator.audit_events import Wait
from orchestrator.auditing import Auditing
from orchestrator.beat_bounds import bounded_beat
from orchestrator.checkpoints import FENCED, NOTHING_NEW, STATE_MISSING, CheckpointJudge, condemned, is_fenced, named
from orchestrator.decider import Decider
from orchestrator.documents import open_head, open_stored_head, sealed
from orchestrator.drawing import Drawing
from orchestrator.exits import ExitBook
from orchestrator.figures import Proxied
from orchestrator.head import HeadCore
from orchestrator.head_events import HeadInstruction, HeadSeen, HeadTimes, StoreWentBack, TermGained, TermLost
from orchestrator.head_loop import HeadLoop
from orchestrator.history import History
from orchestrator.inventory import Inventory
from orchestrator.jobbook import JobBook
from orchestrator.jobs import intervals_message, lacking
from orchestrator.judging import Reads
from orchestrator.mailbox import Mailbox
from orchestrator.observing import Observer
from orchestrator.offers import PlanPolicy
from orchestrator.own_eyes import OwnEyes
from orchestrator.releases import ReleaseBook
from orchestrator.reported import Reported
from orchestrator.serving import Serving
from orchestrator.shown_heads import ShownHeads
from orchestrator.signal import Signal
from orchestrator.standings import Standings
from orchestrator.track import TrackRecords
from orchestrator.unnoticed import Unnoticed
from orchestrator.usage import Books
from orchestrator.versions import Versions
from orchestrator.view import ModelView, ViewLoader, same_documents
from trust.draw import Secret
from trust.identity import NodeKey
from trust.in_force import Amended, InForce
from trust.network import NetworkPolicy
from trust.session import RandomBytes
from trust.trusted import OwnList, is_trusted

JOBS_READ_S: Final = 1.0
JOBS_READ_IDLE_S: Final = 4.0
LOAD_RETRY_S: Final = 0.3
STORE_LOOK_S: Final = 0.5
STORE_TROUBLE_S: Final = 3.0
"""A store that answers (or does not) for so long is told to be back (or away); shorter troubles are nobody's business."""
UNLISTED: Final = "the network document does not list this orchestrator: it decides nothing"
ENDED_BY_REMOVED: Final = "an orchestrator that is listed no longer signed its end, before it was removed or after: if after, change the store's credentials"
DRIFT_S: Final = 30.0
"""How long a store that goes back is told only once."""


@dataclass(slots=True)
class Shared:
    """What all models of one orchestrator have in common."""

    key: NodeKey
    network: InForce
    store: ObjectStore
    clock: Clock
    registry: Registry
    inventory: Inventory
    history: History
    times: HeadTimes = field(default_factory=lambda: HeadTimes(request_timeout_s=limits.HEAD_TTL_S / 4))
    plan_policy: PlanPolicy = field(default_factory=PlanPolicy)
    trusted: OwnList = field(default_factory=OwnList)
    """PNodes that the operator's own file trusts."""
    gateways: frozenset[str] = frozenset()
    """Gateways that this orchestrator's operator knows to limit their callers."""
    draw_secret: Secret | None = None
    """What this orchestrator draws audits with; needed where they are in force."""
    random_bytes: RandomBytes = secrets.token_bytes
    own_eyes: OwnEyes | None = None
    """What verifies evidence here; needed where audits are in force."""
    standings: Standings = field(default_factory=Standings)
    mailbox: Mailbox = field(default_factory=Mailbox)
    books: Books | None = None
    """Told of usage and asked for quotes; without one the history does both."""
    tracer: Tracer = UNTRACED
    observer: Observer = field(default_factory=Observer)
    records: TrackRecords = field(default_factory=TrackRecords)
    reported: Reported = field(default_factory=Reported)
    proxied: Proxied = field(default_factory=Proxied)
    reads: Reads = field(default_factory=Reads)
    nodes_changed: Signal = field(default_factory=Signal)
    news: Signal = field(default_factory=Signal)
    """Fires whenever anything that streams show may have changed."""

    @property
    def policy(self) -> NetworkPolicy:
        """The network document as it is now."""
        return self.network.policy

    def heard(self, pnode_id: str, beat: orchestrator_pb2.Beat) -> orchestrator_pb2.Beat:
        """A beat as it enters: within bounds, and as far as its reports count. Raises InvalidInput for one that is too long."""
        beat = bounded_beat(beat)
        return self.counted(pnode_id, beat) if beat.replicas else beat

    def counted(self, pnode_id: str, beat: orchestrator_pb2.Beat) -> orchestrator_pb2.Beat:
        """A bounded beat as far as its reports count; what does not is told."""
        counted, refused = self.reported.counted(pnode_id, beat)
        for one in refused:
            self.history.say("report_refused", one.replica, one.error.message, code=one.error.code, pnode=one.pnode_id)
        return counted

    def trusts(self, node_id: str) -> bool:
        """Whether that PNode is checked less at the moment."""
        return is_trusted(self.policy, self.trusted, node_id, self.clock.wall())

    def amended(self, amended: Amended) -> None:
        """Tells that another version of the network document is in force."""
        self.history.say("network_amended", self.key.node_id, str(amended))
        if not self.policy.is_orchestrator(self.key.node_id):
            self.history.say("not_listed", self.key.node_id, UNLISTED)
        self.news.fire()


class ModelRuntime:
    """See the module. Everything it knows is read from the store or heard from PNodes: an empty disk is no loss."""

    def __init__(self, model: str, shared: Shared) -> None:
        self.model, self.shared = model, shared
        self.exits = ExitBook()
        self.view: ModelView | None = None
        self.loader = ViewLoader(shared.store, lambda: shared.policy, shared.registry, shared.clock)
        self.jobs = JobBook(model, shared.store, lambda: shared.policy, self.loader)
        self.releases = ReleaseBook(model, shared.store, lambda: shared.policy)
        self.judge = CheckpointJudge(shared.store, lambda: shared.policy, shared.clock, shared.reads)
        self.refresh_jobs = Signal()
        self.trouble = self.jobs_trouble = ""
        self.lacking = ""
        """What this orchestrator has not been given of what the jobs are made of: it leaves the head to others meanwhile."""
        self.waits: Callable[[], Sequence[Wait]] = tuple
        """Whom open audits wait for, while this process decides; the audit desk puts itself here."""
        self._jobs_read_at = -1e9
        self._seen: HeadSeen | None = None
        self._seen_signal = Signal()
        self._went_back_at = -1e9
        self._shown = ShownHeads()
        core = HeadCore(
            shared.policy.network_id,
            model,
            shared.key.node_id,
            lambda head: sealed(identity_pb2.DOMAIN_HEAD, head, shared.key).data,
            lambda data: open_stored_head(data, shared.policy, model, self.head),
            times=shared.times,
            may_hold=lambda: shared.policy.is_orchestrator(shared.key.node_id) and not self.lacking,
        )
        self.loop = HeadLoop(
            core, shared.store, keys.head(model), shared.clock, self._on_news, request_timeout_s=shared.times.request_timeout_s
        )
        self.drawing = Drawing(shared.draw_secret, lambda: shared.policy, shared.clock, shared.trusts)
        self.unnoticed = Unnoticed(lambda: shared.policy)
        self.decider = Decider(
            key=shared.key, policy=lambda: shared.policy, store=shared.store, clock=shared.clock, loop=self.loop, view=lambda: self.view,
            jobs=self.jobs, jobs_read_at=lambda: self._jobs_read_at, inventory=shared.inventory, nodes_changed=shared.nodes_changed,
            exits=self.exits, history=shared.history, plan_policy=shared.plan_policy, loader=self.loader, drawing=self.drawing,
            observer=shared.observer, records=shared.records, releases=self.releases, tracer=shared.tracer,
        )  # fmt: skip
        self.auditing = Auditing(
            model, shared, view=lambda: self.view, job=lambda job_id: self.loader.job(model, job_id), plan=self._plan,
            is_holder=lambda: self.is_holder, wake=self.decider.wake,
        )  # fmt: skip
        self.decider.naming.verdicts, self.drawing.standing = self.auditing.decisions, self.auditing.standing
        self.waits, self.decider.num_late = self.auditing.waits, self.auditing.num_late
        self.auditing.unshown = self.decider.unshown
        self.serving = Serving(
            model, versions=Versions(model, self.loader), releases=self.releases, inventory=shared.inventory, mailbox=shared.mailbox,
            now=shared.clock.monotonic, view=lambda: self.view, is_holder=lambda: self.is_holder,
            tell=lambda kind, reason: shared.history.say(kind, model, reason),
        )  # fmt: skip

    @property
    def head(self) -> model_pb2.Head | None:
        """The newest head read or acknowledged."""
        known = self.loop.core.known
        return known.head if known is not None else None

    @property
    def _active(self) -> str:
        return self.head.active.job_id if self.head is not None else ""

    @property
    def head_bytes(self) -> bytes:
        """Its envelope; empty before the first read."""
        known = self.loop.core.known
        return known.data if known is not None else b""

    @property
    def is_holder(self) -> bool:
        """Whether this process decides right now."""
        return self.loop.is_holder()

    async def run(self) -> None:
        """Runs until cancelled, or until a part breaks: nothing of it is left then in what all models share."""
        no_more = self.shared.nodes_changed.pass_on(self.decider.wake)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.loop.run())
                group.create_task(self._load_views())
                group.create_task(self._read_jobs())
                group.create_task(self.decider.run())
                group.create_task(self._watch_store())
                group.create_task(self.auditing.run())
                group.create_task(self.serving.run())
        finally:
            no_more()

    async def record(self, request: data_pb2.RecordCheckpointRequest) -> data_pb2.RecordCheckpointResponse:
        """The answer to RecordCheckpoint. Raises Unavailable where the checkpoint cannot be judged now."""
        view, head = self.view, self.head
        if view is None or head is None or not self.is_holder:
            return data_pb2.RecordCheckpointResponse(
                status=data_pb2.RECORD_STATUS_NOT_HOLDER, holder=head.holder if head is not None else ""
            )
        checkpoint = request.checkpoint
        await self.auditing.committed(checkpoint, request.commit)
        if condemned(view, checkpoint.digest):
            return data_pb2.RecordCheckpointResponse(status=data_pb2.RECORD_STATUS_CONDEMNED, reason="its digest was condemned")
        if named(view, checkpoint):
            self.decider.naming.leads_back(checkpoint.replica)
            durable = view.durable(checkpoint.job_id).get(checkpoint.vnode)
            return data_pb2.RecordCheckpointResponse(
                status=data_pb2.RECORD_STATUS_NAMED,
                manifest_digest=view.head.manifest_digest,
                durable_lineage=intervals_message(durable) if durable is not None else None,
            )
        if refusal := self.decider.naming.refusal(checkpoint):
            is_idle = refusal.startswith(NOTHING_NEW)
            status = data_pb2.RECORD_STATUS_NOTHING_NEW if is_idle else data_pb2.RECORD_STATUS_REFUSED
            return data_pb2.RecordCheckpointResponse(status=status, reason=refusal)
        try:
            judged = await self.judge.judge(view, checkpoint, request.commit)
        except DcnrError as error:
            if view.has_placed(checkpoint) and self.judge.leads_nowhere(checkpoint, error.code):
                self.decider.naming.leads_nowhere(checkpoint.replica)
            if error.code == STATE_MISSING:
                return data_pb2.RecordCheckpointResponse(status=data_pb2.RECORD_STATUS_MISSING, reason=error.message)
            if error.grpc_status in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
                raise
            if view.has_placed(checkpoint):  # what strangers bring is nobody's news
                self.shared.history.say(
                    "checkpoint_refused", checkpoint.replica, error.message, code=error.code, step=checkpoint.step
                )
            if error.code == FENCED and not is_fenced(view, checkpoint.vnode, checkpoint.replica):
                self.decider.naming.poisoned(checkpoint.vnode, checkpoint.replica)
                self.decider.wake.fire()
            return data_pb2.RecordCheckpointResponse(status=data_pb2.RECORD_STATUS_REFUSED, reason=error.message)
        self.decider.naming.leads_back(checkpoint.replica)
        self.decider.recorded(judged)
        return data_pb2.RecordCheckpointResponse(status=data_pb2.RECORD_STATUS_PENDING)

    def shown(self, envelope: identity_pb2.Envelope) -> None:
        """A PNode shows the newest head it has seen. One that stays newer than the store's says that the store went back."""
        try:
            head = open_head(envelope.SerializeToString(), self.shared.policy, self.model)
        except DcnrError:
            return
        self._shown.shown(head, self.shared.clock.monotonic())
        self.loop.noted(self._shown.waiting)

    def _check_shown(self) -> None:
        known, core = self.head, self.loop.core
        shown = self._shown.evidence(known, self.shared.clock.monotonic(), is_read=core.store_ok)
        if shown is None or known is None:
            return
        self.loop.shown(shown)
        self.shared.history.say(
            "store_rolled_back", self.model, "a PNode knows a newer head than the store holds, and obeys none that is older: the next term is above both",
            remedy="jobs and checkpoints since the backup may be missing: docs/runbooks/store-away.md",
            shown_epoch=shown.epoch, shown_sequence=shown.sequence, epoch=known.epoch, sequence=known.sequence,
        )  # fmt: skip

    async def _plan(self, digest: str) -> model_pb2.Plan:
        plan, _ = await self.loader.plan(self.model, digest)
        return plan

    def _on_news(self, item: HeadInstruction) -> None:
        history = self.shared.history
        match item:
            case HeadSeen():
                self._seen = item
                self._seen_signal.fire()
            case TermGained(epoch=epoch):
                self.refresh_jobs.fire()
                history.say("holder_changed", self.model, f"this orchestrator holds the head in epoch {epoch}", epoch=epoch)
            case TermLost(epoch=epoch, reason=reason):
                history.say("term_lost", self.model, reason, epoch=epoch)
            case StoreWentBack(reason=reason):
                if self.shared.clock.monotonic() - self._went_back_at > DRIFT_S:
                    history.say("store_rolled_back", self.model, reason)
                self._went_back_at = self.shared.clock.monotonic()
            case _:
                pass
        self.shared.news.fire()

    async def _load_views(self) -> None:
        """Follows the head: documents that did not change are kept, a load that fails is repeated with the newest head."""
        seen = 0
        while True:
            seen = await self._seen_signal.wait(seen, limits.HEAD_TTL_S)
            latest, view = self._seen, self.view
            lacking = view is not None and view.lacks_job
            if latest is None or (view is not None and view.head_bytes == latest.data and not lacking):
                continue
            if view is not None and same_documents(view.head, latest.head) and not lacking:
                self.view = replace(view, head=latest.head, head_bytes=latest.data)
                continue
            try:
                self.view = await self.loader.load(self.model, latest.head, latest.data)
                self.trouble = ""
                self._note_lack()
                self._forget_taken_back(view, self.view)
                self._look_again(view, self.view)
            except DcnrError as error:
                self.trouble = f"the documents under the head cannot be read: {error.message}"
                seen = -1
                await asyncio.sleep(LOAD_RETRY_S)
                continue
            self.shared.news.fire()
            self.decider.wake.fire()

    def _look_again(self, before: ModelView | None, view: ModelView) -> None:
        """Beats that came before this plan was read are held against it, before anything is decided by them."""
        self.shared.reported.follow(view)
        self.shared.inventory.planned(self.model, view.hosted, view.feeds)
        if before is not None and before.head.plan_digest == view.head.plan_digest and before.job is view.job:
            return  # only the manifest is a new one: they were held against this plan when they came
        nodes = self.shared.inventory.nodes()
        for record in (nodes[pnode_id] for pnode_id in view.hosted if pnode_id in nodes):
            record.beat = self.shared.counted(record.node_id, record.beat)

    def _note_lack(self) -> None:
        """A holder that cannot read a job would keep those from deciding that can."""
        planned = self.view.plan.job_id if self.view is not None and self.view.plan is not None else ""
        before, wall_unix_ms = self.lacking, int(self.shared.clock.wall() * 1000)
        self.lacking = lacking(self.head, self.jobs.records, planned, wall_unix_ms)
        if self.lacking and not before:
            self.shared.history.say("component_lacking", self.model, self.lacking)

    def _forget_taken_back(self, before: ModelView | None, view: ModelView) -> None:
        """Results of replicas that hold what was taken back."""
        old, new = (
            {one.vnode: one.first_replica for one in item.manifest.fences} if item is not None and item.manifest is not None else {}
            for item in (before, view)
        )
        if view.job is not None and (moved := {vnode for vnode, first in new.items() if first != old.get(vnode)}):
            self.exits.forget(view.job.request_digest, moved)

    async def _watch_store(self) -> None:
        """One event when the store has been away for a while, with the remedy, and one when it is back."""
        told, since = False, self.shared.clock.monotonic()
        while True:
            await asyncio.sleep(STORE_LOOK_S)
            now, is_away = self.shared.clock.monotonic(), not self.loop.core.store_ok
            if is_away == told:
                since = now
            elif now - since >= STORE_TROUBLE_S:
                told, since = is_away, now
                if is_away:
                    reason = f"{self.loop.core.trouble}; nothing is decided until it is back, training goes on"
                    self.shared.history.say("store_away", self.model, reason, remedy="look at the store's own log, disk and quota")
                else:
                    self.shared.history.say("store_back", self.model, "the store answers again: decisions go on")

    async def _read_jobs(self) -> None:
        seen = 0
        while True:
            self._check_shown()
            started = self.shared.clock.monotonic()
            try:
                await self.jobs.refresh(self._active, self.loop.core.num_back)
                self.jobs_trouble = next(
                    (f"job {name} cannot be read: {why}" for name, why in sorted(self.jobs.unread.items())), ""
                )
                for job_id, signer in self.jobs.take_ended_by_removed().items():
                    self.shared.history.say("ended_by_removed", job_id, ENDED_BY_REMOVED, signed_by=signer, model=self.model)
                if self._active not in self.jobs.unread:
                    self._jobs_read_at = started
                await self.releases.refresh()
            except DcnrError as error:
                self.jobs_trouble = f"the jobs cannot be read: {error.message}"
            self._note_lack()
            seen = await self.refresh_jobs.wait(seen, JOBS_READ_S if self.is_holder else JOBS_READ_IDLE_S)
