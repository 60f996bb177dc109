"""The daemon's side of being audited: whose challenges this machine answers, and how an interval's evidence gets into the store.

A challenge is taken from the holder of the confirmed head alone. The bundle is made by the worker, one at a time, and uploaded under a grant; what cannot be
had is said, with the reason. A challenge that is repeated is answered again; one whose time is over is not. Asked again while it is under way, it has the time
that the newest challenge gives.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from dataservice.objects import ObjectClient
from dcnr.errors import DcnrError, Unavailable
from dcnr.ids import Digest, NodeId, check_digest, check_name, check_replica_id
from dcnr.v1 import data_pb2, identity_pb2, local_pb2, model_pb2, orchestrator_pb2
from pnode.authority import Term, check_asked
from pnode.placing import Say
from trust.envelope import open_single, parse
from trust.network import NetworkPolicy

MAX_WAITING: Final = 32
"""Challenges that wait for their turn; the orchestrator repeats those that find no place."""
MAX_ANSWERS: Final = 64
UPLOAD_AGAIN_S: Final = 2.0


class Challenges:
    """One per daemon. ``term``: the confirmed one of a model; ``say`` brings an answer to an orchestrator; ``evidence``: where replicas keep theirs."""

    def __init__(
        self, *, node_id: NodeId, policy: Callable[[], NetworkPolicy], evidence: Path, objects: ObjectClient, term: Callable[[str], Term | None],
        send: Callable[[local_pb2.ToWorker], Awaitable[bool]], say: Callable[[NodeId, orchestrator_pb2.PNodeMessage], bool], tell: Say,
        now_wall: Callable[[], float], group: asyncio.TaskGroup,
    ) -> None:  # fmt: skip
        self._node_id, self._policy, self._evidence, self._objects, self._term = node_id, policy, evidence, objects, term
        self._send, self._say, self._tell, self._now_wall, self._group = send, say, tell, now_wall, group
        self._waiting: OrderedDict[str, tuple[model_pb2.Challenge, NodeId]] = OrderedDict()
        self._answers: OrderedDict[str, model_pb2.Evidence] = OrderedDict()
        self._gathering: tuple[Path, asyncio.Future[local_pb2.EvidenceGathered]] | None = None
        self._deadline: tuple[str, asyncio.Timeout] | None = None
        """Of the interval that is under way."""
        self._attempts = itertools.count()
        self._work: asyncio.Task[None] | None = None

    def asked(self, orchestrator: NodeId, envelope: identity_pb2.Envelope) -> None:
        """A challenge from an orchestrator's stream. Whatever is not the holder's word is told and left."""
        try:
            challenge = self._open(envelope)
        except DcnrError as error:
            self._tell("challenge_refused", orchestrator, f"{error.code}: {error.message}")
            return
        answer = self._answers.get(challenge.interval)
        if answer is not None and answer.digest:
            self._say(orchestrator, orchestrator_pb2.PNodeMessage(evidence=answer))
        elif challenge.interval in self._waiting or len(self._waiting) < MAX_WAITING:
            self._waiting[challenge.interval] = (challenge, orchestrator)
            self._give_time(challenge)
            if self._work is None or self._work.done():
                self._work = self._group.create_task(self._answer_all())

    def gathered(self, gathered: local_pb2.EvidenceGathered) -> None:
        """The worker's answer. One to an attempt that is over counts for no later one."""
        if self._gathering is not None and str(self._gathering[0]) == gathered.path and not self._gathering[1].done():
            self._gathering[1].set_result(gathered)

    def worker_down(self, reason: str) -> None:
        """Nobody will answer any more."""
        if self._gathering is not None and not self._gathering[1].done():
            self._gathering[1].set_exception(Unavailable(f"the worker is gone: {reason}", code="no_worker"))

    def stop(self) -> None:
        """Ends what is under way."""
        if self._work is not None:
            self._work.cancel()

    def _open(self, envelope: identity_pb2.Envelope) -> model_pb2.Challenge:
        payload, signer = open_single(envelope, identity_pb2.DOMAIN_CHALLENGE)
        challenge = parse(model_pb2.Challenge, payload)
        check_asked(challenge, signer.node_id, node_id=self._node_id, policy=self._policy(), term=self._term(challenge.model))
        check_digest(challenge.interval)
        check_name(challenge.model)
        check_name(challenge.vnode)
        check_replica_id(challenge.replica)
        return challenge

    async def _answer_all(self) -> None:
        while self._waiting:
            challenge, orchestrator = next(iter(self._waiting.values()))
            answer = await self._answer(challenge)
            newest, orchestrator = self._waiting.pop(challenge.interval)
            if answer is None:
                if newest is not challenge and self._left_s(newest) > 0:
                    self._waiting[challenge.interval] = (newest, orchestrator)
                continue
            self._answers[answer.interval] = answer
            while len(self._answers) > MAX_ANSWERS:
                self._answers.popitem(last=False)
            self._say(orchestrator, orchestrator_pb2.PNodeMessage(evidence=answer))

    async def _answer(self, challenge: model_pb2.Challenge) -> model_pb2.Evidence | None:
        """None where the time was over: what is said then counts no more. Each attempt has a file of its own: the worker may still write to that of another."""
        path = self._evidence / f"{challenge.interval}.{next(self._attempts)}.bundle"
        try:
            async with asyncio.timeout(self._left_s(challenge)) as deadline:
                self._deadline = (challenge.interval, deadline)
                gathered = await self._gathered(challenge, path)
                await self._upload(challenge, gathered, path)
        except TimeoutError:
            self._tell("challenge_late", challenge.replica, f"the evidence of {challenge.interval[:12]} was not there in time")
            return None
        except DcnrError as error:
            self._tell("evidence_missing", challenge.replica, f"{challenge.interval[:12]}: {error.message}")
            return model_pb2.Evidence(interval=challenge.interval, reason=error.message[:512])
        finally:
            self._gathering = self._deadline = None
            with contextlib.suppress(OSError):
                await asyncio.to_thread(_remove, self._evidence, challenge.interval)
        self._tell("evidence_shown", challenge.replica, f"{challenge.interval[:12]}: {gathered.size_bytes} bytes")
        return model_pb2.Evidence(interval=challenge.interval, digest=gathered.digest, size_bytes=gathered.size_bytes)

    def _left_s(self, challenge: model_pb2.Challenge) -> float:
        return challenge.until_unix_ms / 1000 - self._now_wall()

    def _give_time(self, challenge: model_pb2.Challenge) -> None:
        """It was asked again while it is under way."""
        if self._deadline is None or self._deadline[0] != challenge.interval or self._deadline[1].expired():
            return
        timer, until_s = self._deadline[1], asyncio.get_running_loop().time() + self._left_s(challenge)
        timer.reschedule(max(until_s, timer.when() or until_s))

    async def _gathered(self, challenge: model_pb2.Challenge, path: Path) -> local_pb2.EvidenceGathered:
        future: asyncio.Future[local_pb2.EvidenceGathered] = asyncio.get_running_loop().create_future()
        self._gathering = (path, future)
        wish = local_pb2.GatherEvidence(
            replica=challenge.replica,
            interval=challenge.interval,
            path=str(path),
            evidence_dir=str(self._evidence / challenge.replica),
        )
        if not await self._send(local_pb2.ToWorker(gather=wish)):
            raise Unavailable("the worker does not run", code="no_worker")
        gathered = await future
        if gathered.reason:
            raise Unavailable(gathered.reason, code="no_evidence")
        check_digest(gathered.digest)
        return gathered

    async def _upload(self, challenge: model_pb2.Challenge, gathered: local_pb2.EvidenceGathered, path: Path) -> None:
        """Until it is in the store; the caller bounds the time."""
        ref = data_pb2.ObjectRef(
            kind=data_pb2.OBJECT_KIND_EVIDENCE, model=challenge.model, owner=challenge.vnode, digest=gathered.digest
        )
        while True:
            try:
                return await self._objects.write_file(
                    ref, path, size_bytes=int(gathered.size_bytes), sha256=Digest(gathered.digest)
                )
            except Unavailable:
                await asyncio.sleep(UPLOAD_AGAIN_S)


def _remove(evidence: Path, interval: str) -> None:
    """The bundle, and what an attempt before may have left."""
    for path in evidence.glob(f"{interval}.*.bundle"):
        path.unlink(missing_ok=True)
