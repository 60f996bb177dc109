"""Both sides of audits in the daemon: this machine audits for others (`AuditTasks`), and shows what others are to audit (`Challenges`, `Verdicts`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from dataservice.objects import ObjectClient
from dcnr.ids import NodeId
from dcnr.v1 import local_pb2, orchestrator_pb2
from pnode.audit_tasks import AuditTasks
from pnode.budget import Budget, Reservation
from pnode.challenges import Challenges
from pnode.duties import Duties
from pnode.home import Home
from pnode.orders import HostingOptions
from pnode.placing import Say
from pnode.provision import Provisioner
from pnode.trail import Fetch
from pnode.verdicts import Verdicts, sweep
from trust.network import NetworkPolicy

ACTIVE: Final = orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE
LEFT: Final = "evidence"
"""Under this name the budget holds the disk that evidence of replicas takes which are not here any more: no replica has it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Who is asked, and with what it answers: ``say`` brings an answer to an orchestrator, ``send`` an order to the worker."""

    node_id: NodeId
    policy: Callable[[], NetworkPolicy]
    home: Home
    objects: ObjectClient
    fetch: Fetch
    duties: Duties
    send: Callable[[local_pb2.ToWorker], Awaitable[bool]]
    say: Callable[[NodeId, orchestrator_pb2.PNodeMessage], bool]
    tell: Say
    now_wall: Callable[[], float]


class Audits:
    """One per daemon. ``busy``: why no work is taken now, or empty."""

    def __init__(
        self, asked: Asked, provisioner: Provisioner, budget: Budget, options: HostingOptions, busy: Callable[[], str], group: asyncio.TaskGroup
    ) -> None:  # fmt: skip
        self._evidence, self._now_wall = asked.home.evidence, asked.now_wall
        duties = asked.duties
        self._tasks = AuditTasks(
            node_id=asked.node_id, policy=asked.policy, home=asked.home, objects=asked.objects, provisioner=provisioner, budget=budget,
            options=options, term=duties.term_of, busy=busy, freed=duties.room_freed, send=asked.send, say=asked.say, tell=asked.tell,
            now_wall=asked.now_wall, group=group,
        )  # fmt: skip
        self._challenges = Challenges(
            node_id=asked.node_id, policy=asked.policy, evidence=self._evidence, objects=asked.objects, term=duties.term_of,
            send=asked.send, say=asked.say, tell=asked.tell, now_wall=asked.now_wall, group=group,
        )  # fmt: skip
        self._verdicts = Verdicts(
            node_id=asked.node_id, policy=asked.policy, evidence=self._evidence, fetch=asked.fetch, newest=duties.manifests,
            hosted=lambda: {one.assignment.replica: one if one.state == ACTIVE else None for one in duties.hosted}, send=asked.send,
            tell=asked.tell, now_wall=asked.now_wall, left=lambda num_bytes: budget.found(LEFT, Reservation(0, num_bytes)),
            max_left_bytes=options.evidence_bytes,
        )  # fmt: skip

    async def run(self) -> None:
        """Follows the verdicts on this machine's work until cancelled."""
        await asyncio.to_thread(sweep, self._evidence, self._now_wall())
        await self._verdicts.run()

    async def asked(self, orchestrator: NodeId, message: orchestrator_pb2.OrchestratorMessage) -> None:
        """A task or a challenge from an orchestrator's stream."""
        if message.WhichOneof("kind") == "challenge":
            self._challenges.asked(orchestrator, message.challenge)
        else:
            await self._tasks.asked(orchestrator, message.audit_task)

    async def heard(self, message: local_pb2.FromWorker) -> None:
        """What the worker has found, or gathered."""
        if message.WhichOneof("kind") == "gathered":
            self._challenges.gathered(message.gathered)
        else:
            await self._tasks.audited(message.audited)

    def worker_down(self, reason: str) -> None:
        """Nobody will answer any more."""
        self._tasks.worker_down(reason)
        self._challenges.worker_down(reason)

    def stop(self) -> None:
        """Ends what is under way."""
        self._tasks.stop()
        self._challenges.stop()
