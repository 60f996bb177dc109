"""What the holder of a model's head decides, round by round: the job's next step, the plan, the manifest; and what follows from decisions that are known.

Everything is written to the store first, then named by a head write, then acted upon. A round that meets a store that is away ends; nothing is
decided until it is back. Every decision is an event with its reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from dataservice import keys
from dcnr.crashpoints import reached
from dcnr.errors import DcnrError, InvariantBroken, Refused, Stale
from dcnr.ports import Clock, ObjectStore
from dcnr.tracing import UNTRACED, Tracer, of_job
from dcnr.v1 import identity_pb2, model_pb2
from orchestrator import publishing
from orchestrator.audit_events import Unshown
from orchestrator.changes import Activate, Change, Decide, MoveJob, NameManifest, NamePlan
from orchestrator.checkpoints import Judged
from orchestrator.contribution import Contributions
from orchestrator.desired import desired_states
from orchestrator.documents import put_once, sealed
from orchestrator.drawing import Drawing
from orchestrator.ends import Ends
from orchestrator.exits import ExitBook
from orchestrator.head_loop import HeadLoop
from orchestrator.history import History
from orchestrator.inventory import START_GRACE_S, Inventory
from orchestrator.jobbook import JobBook
from orchestrator.jobs import Progress, ends_as, next_change, state_of, waits_for_time
from orchestrator.naming import Naming
from orchestrator.observing import Observer
from orchestrator.offers import PlanPolicy
from orchestrator.planner import Planner
from orchestrator.planning import handed_over, plan_at_rest, plan_changes, plan_reason, plan_request
from orchestrator.progress import progress_of, reports_of
from orchestrator.releases import ReleaseBook
from orchestrator.signal import Signal
from orchestrator.silence import NodeRecord
from orchestrator.track import TrackRecords
from orchestrator.view import ModelView, ViewLoader
from trust.identity import NodeKey
from trust.network import NetworkPolicy

ROUND_S: Final = 0.2
PLAN_REVIEW_S: Final = 2.0
"""Without news the plan is looked at again this often."""
JOIN_SETTLE_S: Final = 1.5
"""A new job's first plan waits until no node has joined or left for this long (and at most `START_GRACE_S`)."""
SWEEP_S: Final = 300.0
"""Stored states are listed this often to condemn and delete what nothing names any more."""
GRANT_LIFETIME_S: Final = 3600
"""Grants for writing live this long; younger uploads are never condemned."""
RELEASED: Final = frozenset((model_pb2.JOB_STATE_FAILED, model_pb2.JOB_STATE_CANCELLED, model_pb2.JOB_STATE_EXPIRED))
"""After these ends nothing stays placed; a completed model stays where it is until the next job."""


@dataclass(slots=True)
class _Term:
    """What the decider remembers within one term."""

    epoch: int
    since: float
    planned_at: float
    reviewed_at: float = -1e9
    reviewed_version: int = -1
    complete_since: float | None = None
    placing_since: float | None = None
    is_behind: bool = False
    """Whether the last round ended with a plan that was not read back yet."""
    unplanned: str = ""
    """Why the newest plan was not named."""


class Decider:
    """One per model. ``view`` gives the newest complete view; ``nodes_changed`` fires when the inventory changed."""

    def __init__(
        self, *, key: NodeKey, policy: Callable[[], NetworkPolicy], store: ObjectStore, clock: Clock, loop: HeadLoop, view: Callable[[], ModelView | None],
        jobs: JobBook, jobs_read_at: Callable[[], float], inventory: Inventory, nodes_changed: Signal, exits: ExitBook, history: History,
        plan_policy: PlanPolicy, loader: ViewLoader, drawing: Drawing, observer: Observer, records: TrackRecords,
        releases: ReleaseBook, tracer: Tracer = UNTRACED,
    ) -> None:  # fmt: skip
        self._key, self._policy, self._store, self._clock, self._loop = key, policy, store, clock, loop
        self._view, self._jobs, self._jobs_read_at = view, jobs, jobs_read_at
        self._inventory, self._nodes_changed, self._exits, self._history = inventory, nodes_changed, exits, history
        self._planner, self._observer, self._records, self._loader = Planner(plan_policy), observer, records, loader
        self._term: _Term | None = None
        self.naming = Naming(key=key, store=store, clock=clock, loader=loader, history=history, drawing=drawing, releases=releases)
        self._tracer = tracer
        self._emptied: set[tuple[str, str]] = set()
        self._ends = Ends(store, key, clock, policy, jobs, history)
        self._contributions = Contributions()
        self._nodes_changed_at = clock.monotonic()
        self._planned_s = 0.0
        """How long the planner thought in this round."""
        self.wake = Signal()
        """Fires with whatever a round may act upon."""
        self.trouble = ""
        self.num_late: Callable[[ModelView], int] = lambda _: 0
        """How many intervals will be drawn late; the audit desk puts itself here."""

    def recorded(self, judged: Judged) -> None:
        """A checkpoint that the next manifest may name."""
        self.naming.recorded(judged)
        self.wake.fire()

    def unshown(self, one: Unshown) -> None:
        """A PNode shows no evidence of what it learned."""
        found = self._contributions.unshown(one, self._clock.monotonic())
        if found is not None:
            self._history.say("node_not_useful", found.node_id, found.reason, replica=found.replica)
            self._nodes_changed.fire()

    async def run(self) -> None:
        """Rounds until cancelled."""
        seen = nodes = -1
        while True:
            await asyncio.sleep(
                min(self._planned_s, ROUND_S)
            )  # while news come all the time, half of the time at most is spent on plans
            self._planned_s = 0.0
            seen = await self.wake.wait(seen, ROUND_S)
            if self._nodes_changed.version != nodes:
                nodes, self._nodes_changed_at = self._nodes_changed.version, self._clock.monotonic()
            try:
                await self._round()
                self.trouble = (self._term.unplanned if self._term is not None else "") or self._ends.trouble
            except Stale:
                continue  # the head has moved: the next round starts from the newer view
            except InvariantBroken:
                raise
            except DcnrError as error:
                self.trouble = error.message
                await asyncio.sleep(ROUND_S)

    async def _round(self) -> None:
        view = self._current()
        now = self._clock.monotonic()
        if view is None:
            if not self._loop.is_holder():
                self._term = None
            return
        term = self._term
        if term is None or term.epoch != view.head.epoch:
            term = self._begin_term(view, now)
        await self._ends.write(view)
        if self._jobs_read_at() < term.since:
            return
        wall_ms, taken_back = int(self._clock.wall() * 1000), view.manifest.retracted if view.manifest is not None else ()
        change = next_change(view.head, self._jobs.records, self._progress(view, term, now), wall_ms, taken_back)
        if waits_for_time(change, self._clock) or (
            ends_as(change) == model_pb2.JOB_STATE_COMPLETED and await self.naming.lacks_newest(view)
        ):
            change = None  # finished means durable: what is lost comes again first
        if change is not None:
            await self._loop.decide(change)
            reached("job.moved")
            self._tell(change, view)
            self.wake.fire()
        elif view.head.active.job_id:
            reports, nodes = reports_of(self._inventory, now), self._inventory.nodes()
            for item in self._contributions.look(view, reports, nodes, now, self._clock.wall()):
                self._history.say("node_not_useful", item.node_id, item.reason, replica=item.replica)
                if item.came_to_work:  # that one did not is in the books already
                    self._observer.brought_nothing(view.model, item.node_id, item.vnode, item.replica, item.reason)
                self.naming.useless(item.vnode, item.replica)
                self._nodes_changed.fire()
            # In every other round at most, where each makes a plan: else nothing would ever be named. A fence comes first: whoever takes a place is behind it
            if not term.is_behind and not self.naming.fences(view, now):
                await self._plan(view, term, now)
            term.is_behind = (seen := self._current()) is None
            if seen is not None:  # a manifest goes by the plan and the fences that count now
                await self._manifest(seen, now)
                await self._empty_strays(seen)
        else:
            term.unplanned = ""
            await self._release(view)

    def _current(self) -> ModelView | None:
        """The view, if this process holds the head and the view shows what that head names."""
        view, known = self._view(), self._loop.core.known
        if view is None or known is None or not self._loop.is_holder():
            return None
        ours, newest = view.head, known.head
        same = (ours.epoch, ours.plan_digest, ours.manifest_digest, ours.active.job_id, ours.active.state) == (
            newest.epoch, newest.plan_digest, newest.manifest_digest, newest.active.job_id, newest.active.state,
        )  # fmt: skip
        return view if same and len(ours.decided) == len(newest.decided) else None

    def _begin_term(self, view: ModelView, now: float) -> _Term:
        self._term = term = _Term(view.head.epoch, now, now)
        self.naming.begin(now)
        self._emptied.clear()
        for item in view.plan.assignments if view.plan is not None else ():
            self._inventory.expect(item.pnode_id, now)
        return term

    def _progress(self, view: ModelView, term: _Term, now: float) -> Progress | None:
        report = reports_of(self._inventory, now)
        since = now - term.complete_since if term.complete_since is not None else 0.0
        num_late = self.num_late(view) if view.head.active.state == model_pb2.JOB_STATE_SETTLING else 0
        progress = progress_of(view, report, self._exits, since, num_late)
        if progress is None or not progress.manifest_complete or view.head.active.state == model_pb2.JOB_STATE_PAUSED:
            term.complete_since = None
        elif term.complete_since is None:
            term.complete_since = now
        return progress

    def _tell(self, change: Change, view: ModelView) -> None:
        match change:
            case Activate(job_id=job_id):
                self._history.say("job_state_changed", job_id, "it is its turn", state="placing")
            case MoveJob(job_id=job_id, before=before, after=after):
                name = model_pb2.JobState.Name(after).removeprefix("JOB_STATE_").lower()
                reason = self._why_moved(job_id, before, name)
                self._history.say("job_state_changed", job_id, reason, state=name)
            case Decide(outcome=data):
                outcome = model_pb2.Outcome.FromString(data)
                name = model_pb2.JobState.Name(outcome.state).removeprefix("JOB_STATE_").lower()
                self._history.say("job_ended", outcome.job_id, outcome.reason or "everything is durable", state=name)
                self._note_placements(view, f"job {name}", (item.replica for item in view.plan.assignments) if view.plan else ())
            case NamePlan() | NameManifest():
                pass  # told where they are made

    def _why_moved(self, job_id: str, before: model_pb2.JobState.ValueType, state: str) -> str:
        record = self._jobs.records.get(job_id)
        said = record.pause.reason if record is not None and record.pause is not None else ""
        if before == model_pb2.JOB_STATE_PAUSED:
            return said or "its maintainers let it go on"
        return {
            "running": "every replica works",
            "settling": "what every source has learned of every batch is durable",
            "paused": said or "its maintainers paused it",
        }.get(state, "")

    # Plan

    async def _plan(self, view: ModelView, term: _Term, now: float) -> None:
        job, head = view.job, view.head
        if job is None or not self._due(view, term, now):
            return
        if head.active.state == model_pb2.JOB_STATE_PAUSED and (view.plan is None or view.plan.job_id != head.active.job_id):
            return await self._release(view)  # paused before it was placed: it is placed when it goes on
        term.reviewed_at, term.reviewed_version = now, self._nodes_changed.version
        previous = view.plan
        request = plan_request(
            view, job, self._inventory, now, network_id=self._policy().network_id, holder=self._key.node_id,
            since_last_plan_s=now - term.planned_at, now_unix_ms=int(self._clock.wall() * 1000), expected=self._records.paces(),
        )  # fmt: skip
        request = replace(request, nodes=self._contributions.judged(request.nodes, now))
        made = await asyncio.to_thread(self._planner.make, request)
        self._planned_s = self._clock.monotonic() - now
        if made.stays and previous is not None and previous.epoch == head.epoch:
            return
        made.plan.reason = plan_reason(previous, made.plan)
        try:
            self._planner.named(await self._publish(view, made.plan, job.request_digest))
        except Refused as error:
            if error.code != "plan_too_large":
                raise
            if not term.unplanned:
                self._history.say("placement_refused", made.plan.job_id, error.message)
            term.unplanned = f"{error.message}; {error.remedy}"
            return
        term.unplanned = ""
        term.planned_at = self._clock.monotonic()
        self._tracer.past("plan", of_job(made.plan.job_id), term.planned_at - now, number=int(made.plan.number))

    def _due(self, view: ModelView, term: _Term, now: float) -> bool:
        if view.head.active.state != model_pb2.JOB_STATE_PLACING or (view.plan and view.plan.job_id == view.head.active.job_id):
            term.placing_since = None
        else:
            if term.placing_since is None:
                term.placing_since = now
            settled = now - max(self._nodes_changed_at, term.since) >= JOIN_SETTLE_S
            if not settled and now - term.placing_since < START_GRACE_S:
                return False
        changed = term.reviewed_version != self._nodes_changed.version
        moves_on = bool(handed_over(view, self._inventory))
        return changed or moves_on or now - term.reviewed_at >= PLAN_REVIEW_S or self._epoch_is_new(view) or self._pauses(view)

    @staticmethod
    def _epoch_is_new(view: ModelView) -> bool:
        return view.plan is not None and view.plan.epoch != view.head.epoch

    @staticmethod
    def _pauses(view: ModelView) -> bool:
        """Whether the plan is halted and the job goes on, or the other way round."""
        return view.plan is not None and view.plan.halted != (view.head.active.state == model_pb2.JOB_STATE_PAUSED)

    async def _publish(self, view: ModelView, plan: model_pb2.Plan, request_digest: str) -> str:
        """Plan and desired states into the store, then the head. Returns the digest under which it is named. Raises Refused (``plan_too_large``)."""
        known = self._loop.core.known
        assert known is not None
        before = {item.pnode_id for item in view.plan.assignments} if view.plan is not None else set()
        hosting = {node_id for node_id, record in self._inventory.nodes().items() if self._is_astray(record)}
        num_told = len(before | hosting | {item.pnode_id for item in plan.assignments})
        plan.sequence = int(known.head.sequence) + publishing.sequences_meanwhile(num_told)
        costs = view.job.costs if view.job is not None else ()
        made = publishing.published(view.model, plan, self._key, costs, request_digest, before | hosting)
        await publishing.put(self._store, made)
        self._loader.wrote(made)
        await self._loop.decide(NamePlan(view.head.active.job_id, view.head.plan_digest, made.stored.digest, int(plan.sequence)))
        reached("plan.named")
        self._emptied.clear()
        self._history.say(
            "plan_made", plan.job_id or view.model, plan.reason, number=plan.number, waiting=", ".join(plan.waiting), lead=plan.lead_batches,
            lead_reason=plan.lead_reason,
        )  # fmt: skip
        for change in plan_changes(view.plan, plan):
            self._history.say(change.kind, change.replica, change.reason, **change.facts)
        gone = {item.replica for item in view.plan.assignments} if view.plan is not None else set()
        self._note_placements(view, plan.reason, gone - {item.replica for item in plan.assignments})
        return made.stored.digest

    def _note_placements(self, view: ModelView, outcome: str, replicas: Iterable[str]) -> None:
        wanted = set(replicas)
        report = reports_of(self._inventory, self._clock.monotonic())
        for item in view.plan.assignments if view.plan is not None else ():
            if item.replica in wanted:
                found = report(item)
                measured = found.step_s if found is not None else 0.0
                self._history.placed(
                    view.model, view.head.plan_digest, item.replica, item.pnode_id, outcome, item.predicted_step_s, measured
                )

    async def _release(self, view: ModelView) -> None:
        """While no job runs: after one that did not complete nothing stays placed, and whoever hosts what the plan does not give it is told so. What is told
        beside a plan is of its term: one of an earlier term is renewed for that, and leaves a model that was completed where it is.
        """
        plan = view.plan
        if plan is None:
            return
        is_released = state_of(plan.job_id, view.head, self._jobs.records.get(plan.job_id)) in RELEASED
        if not (is_released and plan.assignments) and (plan.epoch == view.head.epoch or not self._astray(view)):
            await self._empty_strays(view)
            return
        job = view.job if not is_released and view.job is not None and view.job.request.job_id == plan.job_id else None
        made = plan_at_rest(plan, view.head, self._key.node_id, stays=job is not None)
        await self._publish(view, made, job.request_digest if job is not None else "")

    async def _empty_strays(self, view: ModelView) -> None:
        """A PNode that hosts what an older plan gave it, and that the plan does not know, is told to host nothing."""
        plan, digest = view.plan, view.head.plan_digest
        if plan is None or plan.epoch != view.head.epoch:
            return  # what is beside a plan is of its term: the plan is renewed first
        for node_id in self._strays(view):
            desired = desired_states(
                model_pb2.Plan(
                    network_id=plan.network_id, model=plan.model, number=plan.number, epoch=view.head.epoch, holder=self._key.node_id,
                    job_id=plan.job_id,
                ),
                digest, int(view.head.plan_sequence), (), view.head.active.request_digest, [node_id],
            )[node_id]  # fmt: skip
            data = sealed(identity_pb2.DOMAIN_DESIRED_STATE, desired, self._key).data
            await put_once(self._store, keys.desired(view.model, digest, node_id), data)
            reached("stray.stored")
            self._emptied.add((digest, node_id))

    def _strays(self, view: ModelView) -> list[str]:
        digest = view.head.plan_digest
        return [one for one in self._astray(view) if not view.hosted_by(one) and (digest, one) not in self._emptied]

    def _astray(self, view: ModelView) -> list[str]:
        others = [names for known, names in self._inventory.hosting_by().items() if known not in ("", view.head.plan_digest)]
        nodes = self._inventory.nodes()
        return sorted(node_id for node_id in frozenset().union(*others) if self._is_astray(nodes[node_id]))

    def _is_astray(self, record: NodeRecord) -> bool:
        """Whether a PNode that is attached hosts what the plan of no model gives it. What it says of its plan is one model's only."""
        given = self._inventory.ties.given(record.node_id)
        return record.streams > 0 and any(one.replica not in given for one in record.beat.replicas)

    # Manifest

    async def _manifest(self, view: ModelView, now: float) -> None:
        made = await self.naming.next(
            view, self._jobs.records, now, sweep_s=SWEEP_S, grant_lifetime_s=GRANT_LIFETIME_S, unknown=self._jobs.unknown
        )
        if made is not None:
            reached("manifest.stored")
            change = NameManifest(view.head.active.job_id, view.head.manifest_digest, made.digest, self.naming.found_fault)
            await self._loop.decide(change)
            reached("manifest.named")
            self.naming.done()
            if self._term is not None and self.naming.went_back:
                self._term.reviewed_at = -1e9  # whoever holds what was taken back is replaced at once
