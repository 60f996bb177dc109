"""Brings snapshots into the store and keeps telling the holder of them until a manifest names them. Never on the training path.

Order per snapshot: the commits before it, oldest first, its own, the state object, RecordCheckpoint, repeated. Of one VNode nothing goes up before what
failed ahead of it has, so no state is recorded over a gap in its ancestry. While the store is away the newest snapshot of each replica waits on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable
from pathlib import Path

from dataservice.objects import ObjectClient
from dcnr import limits
from dcnr.client import Orchestrators
from dcnr.crashpoints import reached
from dcnr.errors import Corrupt, DcnrError, NotFound, Refused, Unavailable
from dcnr.ids import Digest, NodeId, digest_of
from dcnr.v1 import common_pb2, data_pb2, local_pb2, orchestrator_pb2
from dcnr.v1.data_pb2_grpc import DataServiceStub
from pnode.placing import Say
from pnode.refusals import Refusals
from pnode.snapshots import Held, Shelf, is_gone, is_spoiled

RETRY_S = 1.0
LONGEST_RETRY_S = 10.0
TROUBLED_S = 5.0
"""Who leaves waits no longer for a store or orchestrators that fail to answer."""
MOST_LOST = 5
"""A snapshot that the store lost so often is given up for a new one."""
ASK_HOLDER_AFTER = 5
"""Refusals for a place that an orchestrator's view of the plan does not show; a view that lags has caught up by then."""


class Uploads:
    """One task works the shelf; `added` and `heard` wake it. ``moved``: how many bytes this machine has uploaded so far."""

    def __init__(
        self, *, network_id: str, shelf: Shelf, objects: ObjectClient, orchestrators: Orchestrators, holder: Callable[[], NodeId | None],
        durable: Callable[[str, common_pb2.IntervalSet, str], Awaitable[None]], anew: Callable[[str, str], Awaitable[None]],
        say: Say, directory: Path, moved: Callable[[], int] = lambda: 0,
    ) -> None:  # fmt: skip
        self._network_id, self._shelf, self._objects, self._orchestrators = network_id, shelf, objects, orchestrators
        self._holder, self._durable, self._anew, self._say, self._directory = holder, durable, anew, say, directory
        self._moved = moved
        self._failed_at: int | None = None
        """How many bytes had gone out as the last pass failed; None: it did not, or something was answered since."""
        self._wake = asyncio.Event()
        self._told: dict[str, NodeId] = {}
        """By model: who decides, as whoever was asked last said."""
        self._refusals = Refusals()
        self.trouble = self._code = ""
        self.store_is_away = False
        """Whether the trouble is the store's: then everything waits for it alone."""

    async def added(self, ready: local_pb2.SnapshotReady) -> None:
        """A new snapshot lies on disk."""
        try:
            await self._shelf.add(ready)
        except Unavailable as error:  # it is brought into the store all the same; a restart finds it once the disk takes the note
            self._say("disk_trouble", ready.replica, error.message)
        self._wake.set()

    async def heard(self, news: orchestrator_pb2.DurableNews) -> None:
        """A manifest names these checkpoints as their VNodes' newest: a newer one that it named before is brought again, and older ones of replicas that are
        placed here no more go from the disk.
        """
        for checkpoint in news.checkpoints:
            held = await self._shelf.unnamed(news.model, checkpoint)
            if held is not None:
                self._say("upload_lost", held.ready.replica, "the manifest does not name it any more: it is brought again")
                self._wake.set()
            if self._shelf.outlived(news.model, checkpoint):
                self._wake.set()
            await self._durable(checkpoint.replica, checkpoint.lineage, checkpoint.digest)

    @property
    def num_pending(self) -> int:
        """Snapshots that no manifest names yet."""
        return sum(1 for _ in self._shelf.pending())

    def unnamed(self) -> set[str]:
        """Their replicas."""
        return {held.ready.replica for held in self._shelf.pending()}

    async def run(self) -> None:
        """Works until cancelled."""
        pause_s = RETRY_S
        while True:
            self._wake.clear()
            waiting, trouble, has_failed = await self._pass()
            self._tell(trouble)
            self._failed_at = self._moved() if has_failed else None
            pause_s = min(LONGEST_RETRY_S, pause_s * 2) if has_failed else RETRY_S
            now = asyncio.get_running_loop().time()
            for replica, why in self._refusals.due(now):
                await self._anew(replica, why)
            limit_s = min(self._refusals.next_in_s(now), pause_s if waiting else math.inf)
            with contextlib.suppress(TimeoutError):
                # `wait_for` forgets a cancellation that comes with the news
                async with asyncio.timeout(limit_s if limit_s < math.inf else None):
                    await self._wake.wait()

    async def _pass(self) -> tuple[bool, tuple[str, DcnrError] | None, bool]:
        """Brings everything that is pending as far as it goes: whether something still waits, the first trouble with its replica, and whether anything
        failed: what the next tries settle by themselves, and what is told as `nobody_found`, is no trouble of uploads.
        """
        waiting, trouble, has_failed = False, None, False
        refused = await self._refused_by_disk(self._shelf.write_notes)
        behind: set[tuple[str, str]] = set()
        for held in list(self._shelf.pending()):
            place = held.ready.model, held.ready.checkpoint.vnode
            if place in behind:
                continue
            try:
                waiting |= not await self._bring(held)
            except DcnrError as error:
                if isinstance(error, Corrupt | NotFound) and await asyncio.to_thread(
                    is_spoiled, held.ready
                ):  # others' word counts for nothing here
                    self._say("snapshot_unusable", held.ready.replica, error.message)
                    self._shelf.discard(held)
                    self._ask_anew(held.ready.replica, error.message)
                    continue
                waiting = has_failed = True
                behind.add(place)
                if not self._passes(held, error):
                    trouble = trouble or (held.ready.replica, error)
            await self._refused_by_disk(self._shelf.tidy)  # what it replaces waits for no other's upload
        self._shelf.let_go()
        refused = await self._refused_by_disk(self._shelf.thin) or await self._refused_by_disk(self._shelf.tidy) or refused
        if refused is not None:
            return True, trouble or ("snapshots", refused), True
        return waiting, trouble, has_failed

    async def _refused_by_disk(self, work: Callable[[], Awaitable[None]]) -> Unavailable | None:
        """What the disk says where it does not do it now either."""
        try:
            await work()
        except Unavailable as error:
            return error
        return None

    def _passes(self, held: Held, error: DcnrError) -> bool:
        if error.code == "not_hosted":
            return held.not_hosted < ASK_HOLDER_AFTER
        return error.code == "no_orchestrator" and not self._orchestrators.known()

    def _tell(self, trouble: tuple[str, DcnrError] | None) -> None:
        """One event when a trouble of another kind begins; the newest words are in `trouble` while it lasts."""
        if trouble is None:
            self.trouble, self._code, self.store_is_away = "", "", False
            return
        replica, error = trouble
        self.trouble = f"{error.message}; {error.remedy}" if error.remedy else error.message
        self.store_is_away = isinstance(error, Unavailable) and error.code.startswith(("store_", "transfer_"))
        if error.code != self._code:
            self._say("upload_waits", replica, self.trouble)
        self._code = error.code

    def _ask_anew(self, replica: str, why: str) -> None:
        self._refusals.refused(replica, why, asyncio.get_running_loop().time())

    async def flush(self, within_s: float, wanted: Callable[[], bool]) -> bool:
        """Waits until nothing is pending; False if time ran out first, or nobody wants it any more. What fails is waited for no longer than `TROUBLED_S` after
        the last byte went out and the last answer came: a trouble that has passed takes no time from what goes up now.
        """
        loop = asyncio.get_running_loop()
        began = alive_at = loop.time()
        while self.num_pending and wanted() and (now := loop.time()) - began < within_s:
            if self._failed_at != self._moved():
                alive_at = now
            elif now - alive_at >= TROUBLED_S:
                break
            self._wake.set()
            await asyncio.sleep(0.1)
        return not self.num_pending

    async def _bring(self, held: Held) -> bool:
        """One snapshot as far as it goes now; True when nothing is left to do for it."""
        try:
            return await self._store(held)
        except Refused as error:
            held.not_hosted += error.code == "not_hosted"
            if error.code != "not_hosted" or held.not_hosted < ASK_HOLDER_AFTER:
                raise
            return await self._record(held)  # the plan may have it elsewhere by now: the holder says whether it is still of use

    async def _store(self, held: Held) -> bool:
        ready, checkpoint = held.ready, held.ready.checkpoint
        if not held.commit_stored:
            await self._store_commits(held)
        if self._shelf.superseded(held):
            self._shelf.discard(held)
            return True
        ref = data_pb2.ObjectRef(
            kind=data_pb2.OBJECT_KIND_STATE, model=ready.model, owner=checkpoint.vnode, digest=checkpoint.digest
        )
        if not held.uploaded:
            if await asyncio.to_thread(is_gone, Path(ready.path)):  # its commits are what could still be brought
                raise NotFound("its state is not on this disk any more")
            await self._objects.write_file(
                ref, Path(ready.path), size_bytes=int(checkpoint.size_bytes), sha256=Digest(checkpoint.digest)
            )
            reached("state.uploaded")
            held.uploaded, self._failed_at = True, None
        return await self._record(held)

    async def _store_commits(self, held: Held, prefer: NodeId | None = None) -> None:
        ready = held.ready
        for commit in (*ready.ancestors, ready.commit):
            data = commit.SerializeToString(deterministic=True)
            ref = data_pb2.ObjectRef(
                kind=data_pb2.OBJECT_KIND_COMMIT, model=ready.model, owner=ready.checkpoint.vnode, digest=digest_of(data)
            )
            await self._objects.write_bytes(ref, data, directory=self._directory, prefer=prefer)
        reached("commit.uploaded")
        held.commit_stored, self._failed_at = True, None

    async def _takes_commits(self, held: Held, holder: NodeId | None) -> bool:
        """Whether the holder itself lets the commits in, after others did not: later snapshots go on from them, so they come before its word on this one."""
        try:
            await self._store_commits(held, holder)
        except Refused as error:
            if error.code != "not_hosted":
                raise
            return False
        return True

    async def _record(self, held: Held) -> bool:
        ready = held.ready
        request = data_pb2.RecordCheckpointRequest(
            network_id=self._network_id, model=ready.model, job_id=ready.job_id, checkpoint=ready.checkpoint, commit=ready.commit
        )
        prefer = self._told.pop(ready.model, None) or self._holder()
        answer = await self._orchestrators.call(
            DataServiceStub, "RecordCheckpoint", request, timeout_s=limits.CALL_TIMEOUT_S, prefer=prefer
        )
        self._failed_at = None
        match answer.status:
            case (
                data_pb2.RECORD_STATUS_NAMED
                | data_pb2.RECORD_STATUS_REFUSED
                | data_pb2.RECORD_STATUS_CONDEMNED
                | data_pb2.RECORD_STATUS_NOTHING_NEW
            ) if not held.commit_stored and await self._takes_commits(held, prefer):
                return False  # its place is here after all
            case data_pb2.RECORD_STATUS_NAMED:
                reached("checkpoint.named")
                held.named = True
                self._refusals.named(ready.replica)
                self._shelf.named(ready.replica, int(ready.checkpoint.step))
                await self._durable(ready.replica, answer.durable_lineage, ready.checkpoint.digest)
                return True
            case data_pb2.RECORD_STATUS_REFUSED | data_pb2.RECORD_STATUS_CONDEMNED:
                self._say("checkpoint_refused", ready.replica, answer.reason or "its digest is condemned")
                self._shelf.discard(held)
                self._ask_anew(ready.replica, answer.reason or "condemned")
                return True
            case data_pb2.RECORD_STATUS_NOTHING_NEW:  # another one now would add nothing either
                self._shelf.discard(held)
                return True
            case data_pb2.RECORD_STATUS_MISSING:
                self._shelf.lost(held)
                self._say("upload_lost", ready.replica, f"{answer.reason}: it is brought again ({held.num_lost})")
                if held.num_lost >= MOST_LOST:
                    self._shelf.discard(held)
                    self._ask_anew(ready.replica, answer.reason)
                    return True
            case data_pb2.RECORD_STATUS_NOT_HOLDER if answer.holder:
                self._told[ready.model] = NodeId(answer.holder)
        return False
