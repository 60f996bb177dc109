"""Brings one replica into the worker: what it needs is verified, the volunteer's limits admit it, its state is fetched, and the worker is told.

What cannot be had now is tried again with growing pauses. What the limits do not admit is reported as failed with the numbers, unless the worker is letting
go of something: then it waits for that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from dcnr.errors import DcnrError, InvalidInput, Refused, Unavailable
from dcnr.ids import NodeId
from dcnr.v1 import local_pb2, model_pb2, orchestrator_pb2
from pnode.budget import Budget
from pnode.leaving import BEING_FREED, Leaving
from pnode.models import Hosted, Model
from pnode.orders import Orders
from pnode.provision import Job, Provisioner
from trust.network import NetworkPolicy

RETRY_FIRST_S: Final = 0.5
RETRY_LONGEST_S: Final = 15.0

Say = Callable[[str, str, str], None]
"""Records an event: kind, subject, reason."""


@dataclass(frozen=True, slots=True)
class Placing:
    """One per daemon. ``resting``: why nothing new is hosted now, or empty."""

    node_id: NodeId
    policy: Callable[[], NetworkPolicy]
    provisioner: Provisioner
    budget: Budget
    orders: Orders
    leaving: Leaving
    send: Callable[[local_pb2.ToWorker], Awaitable[bool]]
    hosted_changed: Callable[[], None]
    say: Say
    resting: Callable[[], str]

    async def provision(self, entry: Model, hosted: Hosted) -> None:
        """Returns once the worker is told to host it, or it is refused."""
        replica, pause_s, told = hosted.assignment.replica, RETRY_FIRST_S, ""
        while True:
            try:
                hosted.state = orchestrator_pb2.ASSIGNMENT_STATE_PROVISIONING
                self.hosted_changed()
                told_worker = await self._host(entry, hosted)
                hosted.task = None
                if entry.desired != told_worker:  # a newer one came meanwhile, and `reconcile` leaves alone what is provisioned
                    await self.update(entry, hosted)
                return self.hosted_changed()
            except (Refused, InvalidInput) as error:
                hosted.state, hosted.reason, hosted.task = orchestrator_pb2.ASSIGNMENT_STATE_FAILED, error.message, None
                hosted.awaits_room = False
                self.say("assignment_refused", replica, f"{error.code}: {error.message}")
                return self.hosted_changed()
            except DcnrError as error:
                if error.code != told:
                    self.say("provisioning_waits", replica, error.message)
                told, hosted.reason, hosted.awaits_room = error.code, error.message, error.code == BEING_FREED
            await self.leaving.pause(pause_s)
            pause_s = min(RETRY_LONGEST_S, pause_s * 2)

    async def _host(self, entry: Model, hosted: Hosted) -> model_pb2.DesiredState:
        desired, assignment = entry.desired, hosted.assignment
        assert desired is not None
        self._may_begin()
        job = await self.provisioner.job(desired)
        cost = hosted.cost = self.provisioner.cost(job, assignment.vnode)
        wanted, used = self.orders.reservation(cost, assignment), await self.orders.options.used_disk_bytes()
        free = self.orders.options.free_disk_bytes()
        try:
            self.budget.admit(assignment.replica, wanted, free_disk_bytes=free, used_disk_bytes=used)
        except Refused as error:
            raise self.leaving.refused(error) from error
        hosted.awaits_room = False
        self.leaving.stays(assignment.replica)
        head = entry.authority.head
        hosted.await_head(head, desired, self.policy())
        donors = [one.pnode_id for one in assignment.siblings if one.pnode_id != self.node_id]
        named = head.manifest_digest if head else ""
        state, remarks = await self.provisioner.state(job, assignment.vnode, named, donors, replica=assignment.replica)
        for remark in remarks:
            self.say("checkpoint_unusable", assignment.replica, remark)
        work = await self.provisioner.work(job)
        message = self._order(desired, hosted, job)  # nothing is awaited from here on: a newer plan would not reach the worker
        message.state_path, message.state_digest, message.state_commit = str(state.path), state.digest, state.commit_digest
        message.from_earlier_job, message.work_digest = state.is_of_earlier_job, work
        hosted.num_batches = int(message.num_batches)
        self._may_begin()  # it may have begun to leave while this was fetched, and the worker has handed over what it knew of
        hosted.is_ordered = True
        if not await self.send(local_pb2.ToWorker(host=message)):
            raise Unavailable("the worker does not run", code="no_worker")
        hosted.reason = f"restored {len(state.lineage)} batches from {state.origin}"
        self.say("replica_hosted", assignment.replica, hosted.reason)
        return desired

    def _may_begin(self) -> None:
        """Raises Unavailable (``resting``) where nothing new is hosted now."""
        if why := self.resting():
            raise Unavailable(why, code="resting")

    async def update(self, entry: Model, hosted: Hosted) -> None:
        """Tells the worker what is desired of a replica that it hosts."""
        desired = entry.desired
        assert desired is not None
        try:
            job = await self.provisioner.job(desired, reads_data=False)
        except DcnrError as error:
            self.say("provisioning_waits", hosted.assignment.replica, error.message)
            return
        await self.send(local_pb2.ToWorker(host=self._order(desired, hosted, job)))

    def _order(self, desired: model_pb2.DesiredState, hosted: Hosted, job: Job) -> local_pb2.HostReplica:
        """As desired, within what the volunteer lends: with siblings a replica takes more memory, and one that runs without room for that works alone until
        there is some.
        """
        order, replica = self.orders.host(desired, hosted.assignment, job), hosted.assignment.replica
        lacked, hosted.lacks_bytes = hosted.lacks_bytes, 0
        if hosted.cost is None:
            return order
        wanted = self.orders.reservation(hosted.cost, hosted.assignment)
        try:
            self.budget.widen(replica, wanted.memory_bytes)
        except Refused as error:
            hosted.lacks_bytes = wanted.memory_bytes - self.budget.reserved[replica].memory_bytes
            order.assignment.ClearField("siblings")
            if not lacked:
                self.say("provisioning_waits", replica, f"it works without its siblings: {error.message}")
        return order
