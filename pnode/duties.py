"""What this PNode has to do: judges desired states, keeps the newest on disk, and makes the worker host exactly that.

Order of every change: verify, confirm the term, persist, act. A replica that cannot be provisioned now is tried again with growing pauses; one that the
volunteer's limits do not admit is reported as failed with the numbers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from dcnr import limits
from dcnr.crashpoints import reached
from dcnr.errors import Corrupt, DcnrError, InvalidInput, Refused, Unavailable
from dcnr.ids import NodeId
from dcnr.ports import Clock
from dcnr.v1 import identity_pb2, local_pb2, model_pb2, orchestrator_pb2
from pnode.authority import Accepted, Ignored, Source, Term, Unconfirmed, Verdict, place_of
from pnode.budget import Budget
from pnode.headcheck import HeadCheck
from pnode.home import Home, read_message
from pnode.leaving import Leaving
from pnode.models import Hosted, Model, Models, order_of
from pnode.orders import HostingOptions, Orders
from pnode.placing import Placing, Say
from pnode.provision import Provisioner
from pnode.told_heads import Told
from pnode.written import Written
from trust.envelope import open_single, parse
from trust.network import NetworkPolicy

MAX_NAME_CHARS = 80
"""Of what may be no name of a model, in an event."""
DISK_RETRY_S = 2.0
"""What the disk did not take is written again after this time."""


class Duties:
    """All models of this PNode. Methods are called from one event loop only. ``resting``: why nothing new is hosted now, or empty."""

    def __init__(
        self, *, node_id: NodeId, policy: Callable[[], NetworkPolicy], home: Home, provisioner: Provisioner, budget: Budget,
        heads: HeadCheck, options: HostingOptions, send: Callable[[local_pb2.ToWorker], Awaitable[bool]],
        hosted_changed: Callable[[], None], say: Say, clock: Clock, group: asyncio.TaskGroup, resting: Callable[[], str] = str,
    ) -> None:  # fmt: skip
        self._node_id, self._policy, self._home = node_id, policy, home
        self._provisioner, self._budget, self._heads, self._leaving = provisioner, budget, heads, Leaving(budget)
        self._send, self._hosted_changed, self._say, self._clock, self._group = send, hosted_changed, say, clock, group
        orders = Orders(home, options, lambda: self._policy().audits_drawn)
        self._placing = Placing(node_id, policy, provisioner, budget, orders, self._leaving, send, hosted_changed, say, resting)
        self._models = Models(node_id, policy, self._forgotten)
        self._reconciling, self._stopping = asyncio.Lock(), False
        self._written = Written(home, say)

    # -- what others tell ------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Takes up the persisted desired states and heads, so that a restart goes on without any orchestrator."""
        for path in sorted(self._home.root.glob("desired-*.pb")):
            try:
                envelope = read_message(path, identity_pb2.Envelope, max_bytes=limits.MAX_ENVELOPE_BYTES)
                assert envelope is not None
                desired, signer = self._open_desired(envelope)
                entry = self._models.entry(desired.model, with_work=bool(desired.assignments))
            except (Corrupt, Refused, InvalidInput, Unavailable) as error:
                self._say("desired_state_damaged", path.stem, error.message)
                continue
            entry.authority.term = Term(int(desired.epoch), signer)
            entry.authority.applied(desired)
            entry.desired = desired
            entry.shown = self._written.load_head(desired.model)

    async def desired_received(self, envelope: identity_pb2.Envelope) -> None:
        """Judges a desired state from any orchestrator's stream."""
        model = ""
        try:
            desired, signer = self._open_desired(envelope)
            model = desired.model[:MAX_NAME_CHARS]
            self._check_listed(signer)
            entry = self._models.entry(desired.model, with_work=bool(desired.assignments))
        except (Corrupt, Refused, InvalidInput) as error:
            self._say("desired_state_refused", model, error.message)
            return
        entry.keep(desired, envelope)
        await self._judged(entry, entry.authority.offered(desired, signer))

    async def head_received(self, envelope: identity_pb2.Envelope, source: Source) -> Told | None:
        """Takes in a head; a newer one renews the horizon, also where an orchestrator merely tells it, which confirms nothing. None: it was refused."""
        model = ""
        try:
            payload, signer = open_single(envelope, identity_pb2.DOMAIN_HEAD, max_bytes=limits.MAX_HEAD_BYTES)
            head = parse(model_pb2.Head, payload, limits.MAX_HEAD_BYTES)
            model = head.model[:MAX_NAME_CHARS]
            self._check_listed(signer.node_id)
            entry = self._models.entry(head.model, with_work=False)
        except (Corrupt, Refused, InvalidInput) as error:
            self._say("head_refused", model, error.message)
            return None
        before = entry.authority.term
        for verdict in entry.authority.head_read(head, signer.node_id, source):
            await self._judged(entry, verdict)
        term = entry.authority.term
        if term is not None and term == Term(int(head.epoch), signer.node_id):
            known = entry.authority.head
            if known is None or (head.epoch, head.sequence) > (known.epoch, known.sequence):
                entry.authority.head = head
            if (news := (term.epoch, int(head.sequence))) > entry.news:
                entry.news = news
                await self._send(local_pb2.ToWorker(head_seen=local_pb2.HeadSeen(epoch=term.epoch)))
        elif term is None or int(head.epoch) > term.epoch:
            self._confirm(entry, head.model, signer.node_id)
        if term != before and term is not None:
            self._say("term_confirmed", term.holder, f"the head names epoch {term.epoch}")
            await self._written.head(head.model, envelope)
        elif entry.authority.head is not None and place_of(entry.authority.head) == place_of(head) > entry.shown:
            entry.shown, obeyed = place_of(head), place_of(entry.desired) if entry.desired is not None else (0, 0)
            self._written.shows(head.model, envelope)
            if entry.kept < obeyed <= entry.shown:
                entry.kept = obeyed
                self._group.create_task(self._written.head(head.model, envelope))
        is_over = term is not None and head.epoch <= term.epoch and term != Term(int(head.epoch), signer.node_id)
        return Told(head.model, signer.node_id, is_over=is_over)

    def head_granted(self, news: orchestrator_pb2.HeadNews) -> None:
        """Remembers the grant that came with a head. Raises Refused, Corrupt for one that is not for that head.

        Who signed that head does not matter: the grant is for one object of the network's own store, and what it reads is verified.
        """
        self._heads.granted(parse(model_pb2.Head, news.head.payload, limits.MAX_HEAD_BYTES).model, news.head_url)

    async def worker_up(self) -> None:
        """A new worker runs: everything is provisioned anew."""
        self._leaving.worker_down()
        for entry in self._models:
            for replica in list(entry.hosted):
                self._forget(entry, replica)
                self._budget.release(replica)
        await self.reconcile()

    def worker_down(self, reason: str) -> None:
        """The worker is gone, and with it every replica."""
        self._leaving.worker_down()
        for entry in self._models:
            for hosted in entry.hosted.values():
                if hosted.task is not None:
                    hosted.task.cancel()
                hosted.state, hosted.reason = orchestrator_pb2.ASSIGNMENT_STATE_FAILED, reason

    def worker_reported(self, report: orchestrator_pb2.ReplicaReport) -> None:
        """The worker's word on a replica."""
        self._leaving.reported(report)
        for entry in self._models:
            hosted = entry.hosted.get(report.replica)
            if hosted is None or hosted.task is not None:
                continue
            hosted.is_seen = True
            hosted.state, hosted.reason = report.state, report.reason
            if report.reason.startswith("bad_state") and self._provisioner.give_up(report.restored_from):
                self._say("checkpoint_unusable", report.replica, f"{report.restored_from[:12]}: {report.reason}")
                hosted.task = self._group.create_task(self._placing.provision(entry, hosted))

    def worker_knows(self, replicas: Collection[str]) -> None:
        """All replicas that its report names."""
        self._leaving.named(replicas)

    def has_learned_all(self, report: orchestrator_pb2.ReplicaReport) -> bool:
        """Whether that replica has nothing left to learn."""
        return 0 < self._num_batches(report.replica) <= report.num_learned

    def is_done(self, report: orchestrator_pb2.ReplicaReport) -> bool:
        """Whether that replica and all behind it have nothing left to learn, and what it learned is durable."""
        return 0 < self._num_batches(report.replica) <= min(report.num_learned, report.num_durable, report.floor)

    def _num_batches(self, replica: str) -> int:
        """Of the job for which that replica is hosted; 0 while it is not known."""
        return next((int(one.num_batches) for entry in self._models if (one := entry.hosted.get(replica)) is not None), 0)

    # -- what is to be done ----------------------------------------------------------------------------------------------------

    async def reconcile(self) -> None:
        """Makes the worker host what is desired: idempotent, called after every change; one after the other, since each waits for the worker."""
        async with self._reconciling:
            for entry in self._models:
                if entry.desired is not None and not self._stopping:
                    await self._settle(entry, entry.desired)
        self._hosted_changed()

    async def _settle(self, entry: Model, desired: model_pb2.DesiredState) -> None:
        wanted = {assignment.replica: assignment for assignment in desired.assignments}
        self._provisioner.placed(desired.model, desired.job_id, wanted)
        for replica in [name for name in entry.hosted if name not in wanted]:
            await self._let_go(entry, replica, hand_over=True)
            self._say("replica_released", replica, f"plan {desired.plan_number} does not place it here")
        for replica, assignment in wanted.items():
            hosted = entry.hosted.get(replica)
            if hosted is not None and _steps_down(hosted.assignment, assignment):
                await self._let_go(entry, replica, hand_over=True)
                hosted = None
            if hosted is None:
                hosted = entry.hosted[replica] = Hosted(assignment, desired.model)
                hosted.task = self._group.create_task(self._placing.provision(entry, hosted))
            elif hosted.assignment != assignment or hosted.task is None:
                hosted.assignment = assignment
                if hosted.task is None:
                    await self._placing.update(entry, hosted)

    def stop(self) -> None:
        """No further replica is provisioned."""
        self._stopping = True
        for entry in self._models:
            tasks = [hosted.task for hosted in entry.hosted.values()]
            for task in [*tasks, entry.confirming, entry.writing]:
                if task is not None:
                    task.cancel()

    # -- what others ask -------------------------------------------------------------------------------------------------------

    @property
    def hosted(self) -> list[Hosted]:
        """All replicas, sorted by id."""
        return sorted((item for entry in self._models for item in entry.hosted.values()), key=lambda item: item.assignment.replica)

    @property
    def may_grow(self) -> bool:
        """Whether there is room now for what a replica lacks to work with its siblings: `reconcile` gives it."""
        return any(0 < one.lacks_bytes <= self._budget.free_memory_bytes for one in self.hosted)

    @property
    def awaits_room(self) -> bool:
        """Whether a replica waits here for memory that is being freed: nothing else may take it."""
        return any(one.awaits_room for one in self.hosted)

    def room_freed(self) -> None:
        """Something else than a replica has given back what it had reserved."""
        self._leaving.freed()

    def neighbours(self) -> list[tuple[str, model_pb2.Neighbour]]:
        """Predecessors and siblings of all hosted replicas, each with its model: the machines that this worker dials."""
        return [
            (item.model, neighbour)
            for item in self.hosted
            for neighbour in (*item.assignment.predecessors, *item.assignment.siblings)
            if neighbour.replica != item.assignment.replica
        ]

    def siblings_of(self, model: str, checkpoint: model_pb2.Checkpoint) -> list[str]:
        """The other replicas of that checkpoint's VNode which are hosted here."""
        entry = self._models.get(model)
        mine = [one.assignment for one in entry.hosted.values()] if entry is not None else []
        return [item.replica for item in mine if item.vnode == checkpoint.vnode and item.replica != checkpoint.replica]

    def term(self) -> tuple[str, Term | None, model_pb2.DesiredState | None]:
        """Model, term and desired state with the highest epoch (for reports)."""
        name, entry = max(self._models.items(), key=lambda item: item[1].epoch, default=("", None))
        return (name, entry.authority.term, entry.desired) if entry is not None else ("", None, None)

    def heads_seen(self) -> list[identity_pb2.Envelope]:
        """The newest confirmed head of each model, as it was signed."""
        return self._written.heads(model for model, _ in self._models.items())

    def holder(self) -> NodeId | None:
        """The holder of the newest confirmed term."""
        term = self.term()[1]
        return term.holder if term else None

    def holders(self) -> list[NodeId]:
        """The holders of all models' confirmed terms."""
        return sorted({entry.authority.term.holder for entry in self._models if entry.authority.term is not None})

    def term_of(self, model: str) -> Term | None:
        """The confirmed term of one model; None where none is."""
        entry = self._models.get(model)
        return entry.authority.term if entry is not None else None

    def job_of(self, replica: str) -> str:
        """The job for which a replica is placed here; empty where none places it any more."""
        placed = (one.desired for _, one in self._models.items() if one.desired is not None)
        return next((str(one.job_id) for one in placed if any(item.replica == replica for item in one.assignments)), "")

    def manifests(self) -> list[tuple[str, str]]:
        """Each model with the digest of the newest manifest that a confirmed head names."""
        return [(name, one.authority.head.manifest_digest) for name, one in self._models.items() if one.authority.head is not None]

    # -- inside ----------------------------------------------------------------------------------------------------------------

    def _open_desired(self, envelope: identity_pb2.Envelope) -> tuple[model_pb2.DesiredState, NodeId]:
        payload, signer = open_single(envelope, identity_pb2.DOMAIN_DESIRED_STATE)
        return parse(model_pb2.DesiredState, payload), signer.node_id

    def _check_listed(self, signer: NodeId) -> None:
        """Nothing is kept for a claim by others: they could fill the few places with names of their own."""
        if not self._policy().is_orchestrator(signer):
            raise Refused(f"{signer} is not listed in the network document", code="unlisted_orchestrator")

    async def _judged(self, entry: Model, verdict: Verdict) -> None:
        match verdict:
            case Accepted(desired):
                if await self._taken(entry, desired):
                    await self.reconcile()
            case Unconfirmed(model, claimed):
                self._confirm(entry, model, claimed.holder)
            case Ignored(code, reason) if code not in ("stale", "not_yet", "unconfirmed"):
                self._say("not_obeyed", code, reason)

    async def _taken(self, entry: Model, desired: model_pb2.DesiredState) -> bool:
        """Whether it is persisted and in force: a newer one, or another term, may have come while it waited for the disk."""
        envelope = entry.envelopes.get(order_of(desired))
        reached("desired.accepted")
        if envelope is None:
            return False
        async with self._written.turn:
            if not _is_accepted(entry, desired):
                return False
            if not await self._written.desired(desired.model, envelope):
                if entry.unwritten is None or place_of(entry.unwritten) < place_of(desired):
                    entry.unwritten = desired
                if entry.writing is None or entry.writing.done():
                    entry.writing = self._group.create_task(self._write_again(entry))
                return False
            reached("desired.persisted")
            if not _is_accepted(entry, desired):
                return False
            entry.authority.applied(desired)
            entry.desired = desired
        self._say("plan_accepted", desired.model, f"plan {desired.plan_number} of {desired.holder[:8]}, epoch {desired.epoch}")
        return True

    async def _write_again(self, entry: Model) -> None:
        """No orchestrator repeats a desired state on a stream that lives: what the disk did not take is judged and written again from here."""
        while entry.unwritten is not None and not self._stopping:
            await asyncio.sleep(DISK_RETRY_S)
            desired, entry.unwritten = entry.unwritten, None
            await self._judged(entry, entry.authority.offered(desired, NodeId(desired.holder)))

    def _confirm(self, entry: Model, model: str, claimant: NodeId) -> None:
        if (entry.confirming is None or entry.confirming.done()) and not self._stopping:
            entry.confirming = self._group.create_task(self._confirming(entry, model, claimant))

    async def _confirming(self, entry: Model, model: str, claimant: NodeId) -> None:
        """Reads the head a few times; a claim that the head does not support by then is left alone until it is repeated."""
        pause_s = 0.2
        for _ in range(6):
            try:
                envelope, source = await self._heads.read(model, claimant)
                payload, signer = open_single(envelope, identity_pb2.DOMAIN_HEAD, max_bytes=limits.MAX_HEAD_BYTES)
                head = parse(model_pb2.Head, payload, limits.MAX_HEAD_BYTES)
                before = entry.authority.term
                for verdict in entry.authority.head_read(head, signer.node_id, source):
                    await self._judged(entry, verdict)
                if entry.authority.term != before and entry.authority.term is not None:
                    self._say("term_confirmed", entry.authority.term.holder, f"the head names epoch {entry.authority.term.epoch}")
                    await self._written.head(model, envelope)
                if not entry.authority.unconfirmed:
                    return
            except DcnrError as error:
                self._say("head_unreadable", model, error.message)
            await asyncio.sleep(pause_s)
            pause_s = min(5.0, pause_s * 2)
        epoch = entry.authority.term.epoch if entry.authority.term else 0
        for claim in entry.authority.unconfirmed:
            self._say("claim_not_supported", claim.holder, f"claims epoch {claim.epoch}, the head names epoch {epoch}: not obeyed")

    def _forgotten(self, name: str, model: Model) -> None:
        """Another model takes the place: what this one had here ends, and so does what a restart would take up."""
        if model.confirming is not None:
            model.confirming.cancel()
        for replica in list(model.hosted):
            self._group.create_task(self._let_go(model, replica, hand_over=False))
        model.unwritten = None
        self._provisioner.placed(name, "", ())
        self._group.create_task(self._written.forget(name, lambda: self._models.get(name) is not None))
        self._say("model_forgotten", name, "another model takes its place, and it has no work here")

    async def _let_go(self, entry: Model, replica: str, *, hand_over: bool) -> None:
        """Its room is free once it has ended, which may take as long as handing over does."""
        hosted = self._forget(entry, replica)
        self._leaving.began(replica, is_seen=hosted is not None and hosted.is_seen)
        told = await self._send(local_pb2.ToWorker(release=local_pb2.ReleaseReplica(replica=replica, hand_over=hand_over)))
        if not told or hosted is None or not hosted.is_ordered:
            self._leaving.ended(replica)

    def _forget(self, entry: Model, replica: str) -> Hosted | None:
        hosted = entry.hosted.pop(replica, None)
        if hosted is not None and hosted.task is not None:
            hosted.task.cancel()
        return hosted


def _is_accepted(entry: Model, desired: model_pb2.DesiredState) -> bool:
    """Whether one that was accepted still would be."""
    return isinstance(entry.authority.offered(desired, NodeId(desired.holder)), Accepted)


def _steps_down(before: model_pb2.DesiredAssignment, after: model_pb2.DesiredAssignment) -> bool:
    """A primary that becomes something else begins anew: its state is no displacement from anybody's anchor."""
    return before.role == model_pb2.ROLE_PRIMARY != after.role
