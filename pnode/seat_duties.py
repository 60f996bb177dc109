"""The daemon's side of seats: takes the wish of a head's holder, verifies what it names, and makes the worker serve what the volunteer's limits leave room for.

Nothing is believed of a wish but what is wanted: the manifest must lie on the chain under the confirmed head, or be the one that k of n maintainers
released; the graph is that of a job which they signed, and a state is one that the manifest names. An accepted wish stays in force until the holder of a
confirmed head sends another one, so questions are answered while every orchestrator is away.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dcnr import limits
from dcnr.errors import DcnrError, InvalidInput, Refused, Unavailable
from dcnr.ids import NodeId, check_name
from dcnr.ports import Clock
from dcnr.v1 import identity_pb2, local_pb2, model_pb2, orchestrator_pb2
from pnode.budget import Budget
from pnode.duties import Duties
from pnode.orders import HostingOptions
from pnode.placing import Say
from pnode.provision import Job, Provisioner
from pnode.seat_manifests import SeatManifests
from pnode.seating import FILE_GONE, LOADING, Held, Key, Told, Wanted, settle
from pnode.trail import Fetch
from trust.network import NetworkPolicy
from vnode.costs import seat_alone_bytes, seat_bytes

REVIEW_S: Final = 1.0
RETRY_FIRST_S: Final = 0.5
RETRY_LONGEST_S: Final = 15.0
MAX_SEATS: Final = 64
MAX_PENDING: Final = 8
"""Wishes of orchestrators that no confirmed head names as its holder yet."""
MAX_GONE: Final = 3
"""So often a state is brought again whose file was gone when the worker came to read it; once more, and it is told as a failure."""
MAX_CACHE_BYTES: Final = 1024 * limits.MIB
"""For keys and values of texts, however much is lent."""


@dataclass(frozen=True, slots=True)
class Around:
    """What seats need of the daemon's other parts."""

    policy: Callable[[], NetworkPolicy]
    fetch: Fetch
    provisioner: Provisioner
    budget: Budget
    options: HostingOptions
    duties: Duties
    delegation: Callable[[], identity_pb2.Envelope | None]
    """Of the worker that runs."""
    takes_no_work: Callable[[], str]
    send: Callable[[local_pb2.ToWorker], Awaitable[bool]]
    changed: Callable[[], None]
    say: Say
    clock: Clock


@dataclass(frozen=True, slots=True)
class _Read:
    """A wish whose manifest and graph were verified."""

    wish: orchestrator_pb2.SeatWish
    newest: str = ""
    """The manifest that said what was taken back."""
    job: Job | None = None
    checkpoints: dict[str, model_pb2.Checkpoint] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    """By VNode, why there is no state of it to serve."""


@dataclass(slots=True, eq=False)
class _Seat:
    """One state on its way into the worker, or in it."""

    wanted: Wanted
    task: asyncio.Task[None] | None = None
    reason: str = LOADING
    report: orchestrator_pb2.SeatReport = field(default_factory=orchestrator_pb2.SeatReport)
    failed_s: float | None = None
    """When it turned out that it cannot be loaded; it is tried again after `RETRY_LONGEST_S`."""
    num_gone: int = 0


class SeatDuties:
    """One per daemon; `run` reviews until cancelled."""

    def __init__(self, around: Around, group: asyncio.TaskGroup) -> None:
        self._around, self._group = around, group
        self._pending: dict[tuple[str, NodeId], orchestrator_pb2.SeatWish] = {}
        self._accepted: dict[str, orchestrator_pb2.SeatWish] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._read: dict[str, _Read] = {}
        self._trouble: dict[str, str] = {}
        self._manifests = SeatManifests(around.policy, around.fetch)
        self._seats: dict[Key, _Seat] = {}
        self._refused: dict[tuple[str, str], str] = {}
        self._told = Told()
        self._cache_bytes = 0
        """That the worker was told it may keep of texts."""
        self._callers: list[str] | None = None
        """Who may ask, as the worker was told."""
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._accept()
            await self._tell_who_may_ask()
            await self._settle()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REVIEW_S):
                    await self._news.wait()
            self._news.clear()

    def stop(self) -> None:
        """Nothing further is fetched."""
        for task in (*self._reading.values(), *(seat.task for seat in self._seats.values())):
            if task is not None:
                task.cancel()

    # -- what others tell ------------------------------------------------------------------------------------------------------

    def wished(self, node_id: NodeId, wish: orchestrator_pb2.SeatWish) -> None:
        """A wish from an orchestrator's stream. It counts once a confirmed head names that orchestrator as its holder."""
        try:
            check_name(wish.model)
            if not self._around.policy().is_orchestrator(node_id):
                raise Refused(f"{node_id} is not listed in the network document", code="unlisted_orchestrator")
            if len(wish.vnodes) > MAX_SEATS:
                raise InvalidInput(f"{len(wish.vnodes)} seats; at most {MAX_SEATS}", code="too_many_seats")
        except DcnrError as error:
            self._around.say("seats_refused", wish.model[:80], f"{error.code}: {error.message}")
            return
        self._pending.pop((wish.model, node_id), None)
        self._pending[wish.model, node_id] = wish
        while len(self._pending) > MAX_PENDING:
            del self._pending[next(iter(self._pending))]
        self._news.set()

    async def worker_up(self) -> None:
        """A new worker serves nothing yet; it hears who may ask."""
        self.worker_down()
        await self._tell_who_may_ask()
        self._news.set()

    def worker_down(self) -> None:
        """The worker is gone, and with it every seat."""
        for seat in self._seats.values():
            if seat.task is not None:
                seat.task.cancel()
        self._seats.clear()
        self._told.keep(())
        self._cache_bytes, self._callers = 0, None

    def heard(self, reports: Sequence[orchestrator_pb2.SeatReport]) -> None:
        """The worker's word on its seats."""
        for report in reports:
            seat = self._seats.get((report.model, report.vnode, report.state_digest))
            if seat is None or seat.task is not None:
                continue
            if (
                report.reason.startswith(FILE_GONE)
                and seat.num_gone < MAX_GONE
                and (read := self._read.get(report.model)) is not None
            ):
                seat.num_gone += 1
                seat.task = self._group.create_task(self._load(seat, read))
                continue
            was_ready, seat.report, seat.reason = seat.report.ready, report, report.reason
            if report.ready and not was_ready:
                seat.failed_s = None
                if self._told.is_news(report.model, report.vnode, ""):
                    self._around.say("seat_ready", report.vnode, f"state {report.state_digest[:12]} of {report.model}")
                self._around.changed()
                self._news.set()
            elif not report.ready and report.reason != LOADING and seat.failed_s is None:
                self._failed(seat, report.reason)

    def reports(self) -> list[orchestrator_pb2.SeatReport]:
        """For beats: what is served, and what is wished and is not, with the reason; at most 64."""
        if self._around.delegation() is None:
            return []
        reports = [self._report(seat) for seat in self._seats.values()]
        here = {(report.model, report.vnode) for report in reports}
        for model, wish in sorted(self._accepted.items()):
            read = self._read.get(model)
            for vnode in wish.vnodes:
                if (model, vnode) not in here:
                    reason = (
                        self._trouble.get(model) or self._refused.get((model, vnode)) or (read.reasons.get(vnode) if read else None)
                    )
                    reports.append(
                        orchestrator_pb2.SeatReport(
                            model=model, vnode=vnode, reason=(reason or LOADING)[:200], manifest_digest=wish.manifest_digest
                        )
                    )
        return reports[:MAX_SEATS]

    def _report(self, seat: _Seat) -> orchestrator_pb2.SeatReport:
        report = orchestrator_pb2.SeatReport()
        report.CopyFrom(seat.report)
        model, vnode, digest = seat.wanted.key
        report.model, report.vnode, report.state_digest, report.manifest_digest = model, vnode, digest, seat.wanted.manifest_digest
        if not report.ready:
            report.reason = seat.reason[:200]
        delegation = self._around.delegation()
        if delegation is not None:
            report.delegation.CopyFrom(delegation)
        return report

    # -- which wish counts -----------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        for model in [model for model in self._accepted if self._around.duties.term_of(model) is None]:
            self._forget(model)
        for (model, node_id), wish in list(self._pending.items()):
            term = self._around.duties.term_of(model)
            if term is None or term.holder != node_id:
                continue
            del self._pending[model, node_id]
            if wish == self._accepted.get(model):
                continue
            self._accepted[model] = wish
            self._trouble.pop(model, None)
            self._begin_reading(wish)
        if self._around.policy().audits_drawn:
            for model, newest in self._around.duties.manifests():
                read = self._read.get(model)
                if read is not None and read.job is not None and read.newest != newest and self._reading[model].done():
                    self._begin_reading(read.wish)  # it may take back what is served

    def _forget(self, model: str) -> None:
        """Another model has taken the place of this one."""
        self._reading.pop(model).cancel()
        del self._accepted[model]
        self._read.pop(model, None)
        self._trouble.pop(model, None)

    def _begin_reading(self, wish: orchestrator_pb2.SeatWish) -> None:
        if (task := self._reading.get(wish.model)) is not None:
            task.cancel()
        self._reading[wish.model] = self._group.create_task(self._keep_reading(wish))

    async def _keep_reading(self, wish: orchestrator_pb2.SeatWish) -> None:
        """Until it is read: what it names may come to the store, and heads here, a moment later."""
        pause_s = RETRY_FIRST_S
        while True:
            try:
                self._read[wish.model] = await self._verified(wish)
                self._trouble.pop(wish.model, None)
                self._news.set()
                return
            except DcnrError as error:
                self._trouble[wish.model] = f"{error.code}: {error.message}"
                self._around.say("seats_wait", wish.model, self._trouble[wish.model])
            await asyncio.sleep(pause_s)
            pause_s = min(RETRY_LONGEST_S, 2 * pause_s)

    async def _verified(self, wish: orchestrator_pb2.SeatWish) -> _Read:
        """Raises Refused, Corrupt, NotFound, Unavailable."""
        if not wish.vnodes:
            return _Read(wish)
        if self._around.policy().audits_drawn and not wish.cleared:
            raise Refused("where audits are in force only cleared states are served", code="not_cleared")
        newest = dict(self._around.duties.manifests()).get(wish.model, "")
        manifest, retracted = await self._manifests.wished(wish, newest)
        desired = model_pb2.DesiredState(model=wish.model, job_id=wish.job_id, request_digest=wish.request_digest)
        job = await self._around.provisioner.job(desired, reads_data=False)
        if job.request.graph_digest != manifest.graph_digest:
            raise Refused("the signed job has another graph than the manifest", code="unsigned_job")
        read = _Read(wish, newest, job)
        entries = {entry.vnode: entry for entry in manifest.entries}
        for vnode in wish.vnodes:
            entry = entries.get(vnode)
            named = None if entry is None else _named(entry, is_cleared=wish.cleared)
            if named is None or vnode not in job.stages:
                read.reasons[vnode] = "no_state: the manifest names none that may be served"
            elif named.digest in retracted:
                read.reasons[vnode] = "retracted: the newest manifest takes this state back"
            else:
                read.checkpoints[vnode] = named
        return read

    # -- what is done about it -------------------------------------------------------------------------------------------------

    async def _settle(self) -> None:
        around, now_s = self._around, self._around.clock.monotonic()
        if around.takes_no_work() or around.delegation() is None:
            return
        failed = [key for key, seat in self._seats.items() if seat.failed_s is not None and now_s - seat.failed_s > RETRY_LONGEST_S]
        wanted = [one for read in self._read.values() for one in self._wanted(read)]
        by_key = {one.key: one for one in wanted}
        for key, seat in self._seats.items():
            seat.wanted = by_key.get(key, seat.wanted)
        held = [Held(key, seat.wanted.manifest_digest, seat.report.ready) for key, seat in self._seats.items() if key not in failed]
        settled = settle(wanted, held, around.budget.free_memory_bytes)
        self._refused = settled.refused
        self._told.keep({one.key[:2] for one in wanted} - settled.refused.keys())
        await self._lend(settled.spare_bytes)
        for key in [*failed, *settled.drop]:
            await self._drop(key)
        for one in settled.load:
            self._seats[one.key] = seat = _Seat(one)
            seat.task = self._group.create_task(self._load(seat, self._read[one.model]))

    async def _tell_who_may_ask(self) -> None:
        """Orchestrators of the network document as it is now."""
        listed = sorted(self._around.policy().orchestrator_ids)
        if listed != self._callers and await self._around.send(
            local_pb2.ToWorker(callers=local_pb2.WorkerCallers(orchestrators=listed))
        ):
            self._callers = listed

    async def _lend(self, spare_bytes: int) -> None:
        """What neither replicas nor seats have reserved may hold what is kept of texts, whole MiB of it."""
        max_bytes = min(MAX_CACHE_BYTES, spare_bytes // limits.MIB * limits.MIB)
        if max_bytes != self._cache_bytes and await self._around.send(
            local_pb2.ToWorker(caches=local_pb2.WorkerCaches(max_bytes=max_bytes))
        ):
            self._cache_bytes = max_bytes

    def _wanted(self, read: _Read) -> list[Wanted]:
        if read.job is None:
            return []
        batch_size, wish = int(read.job.graph.train.batch_size), read.wish
        return [
            Wanted(
                wish.model, vnode, checkpoint.digest, wish.manifest_digest, wish.previous_manifest_digest,
                seat_bytes(read.job.stages[vnode], batch_size), seat_alone_bytes(read.job.stages[vnode], batch_size),
            )
            for vnode, checkpoint in sorted(read.checkpoints.items())
        ]  # fmt: skip

    async def _drop(self, key: Key) -> None:
        seat = self._seats.pop(key, None)
        if seat is not None and seat.task is not None:
            seat.task.cancel()
        model, vnode, digest = key
        await self._around.send(local_pb2.ToWorker(seat=local_pb2.HostSeat(model=model, vnode=vnode, state_digest=digest)))

    async def _load(self, seat: _Seat, read: _Read) -> None:
        """Brings the state, and orders the worker to serve it."""
        around, one, job = self._around, seat.wanted, read.job
        assert job is not None
        try:
            around.provisioner.cost(job, one.vnode)
            path: Path = await around.provisioner.named(one.model, read.checkpoints[one.vnode])
            order = local_pb2.HostSeat(
                model=one.model, vnode=one.vnode, state_digest=one.state_digest, state_path=str(path), graph=job.graph_bytes,
                threads=around.options.threads, cpu_share=around.options.cpu_share,
            )  # fmt: skip
            if not await around.send(local_pb2.ToWorker(seat=order)):
                raise Unavailable("the worker does not run", code="no_worker")
        except DcnrError as error:
            self._failed(seat, f"{error.code}: {error.message}")
        seat.task = None

    def _failed(self, seat: _Seat, reason: str) -> None:
        seat.reason, seat.failed_s = reason, self._around.clock.monotonic()
        if self._told.is_news(seat.wanted.model, seat.wanted.vnode, reason):
            self._around.say("seat_failed", seat.wanted.vnode, reason)


def _named(entry: model_pb2.ManifestEntry, *, is_cleared: bool) -> model_pb2.Checkpoint | None:
    if is_cleared:
        return entry.cleared if entry.HasField("cleared") else None
    return entry.working[0] if entry.working else None
