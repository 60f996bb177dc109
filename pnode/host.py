"""One hosted replica: its core decides, this shell acts. A fault ends the replica with its reason, never the worker.

Everything runs on the worker's event loop except computing (one thread of its own), encoding, reading and writing (the worker's executor). Events are
handled in the order in which they were posted; sources of events are bounded (frames by the core's window, answers by their questions), so
the queue is too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

from dcnr import logs
from dcnr.codecs import codecs_sent
from dcnr.errors import DcnrError, InvariantBroken
from dcnr.groups import first_cause
from dcnr.ids import digest_of
from dcnr.intervals import IntervalSet
from dcnr.ports import Clock
from dcnr.v1 import local_pb2
from pnode.arrivals import tensors_of
from pnode.books import Books, Ended
from pnode.chain import CommitChain, Link
from pnode.exchange import Way
from pnode.frames import Expected
from pnode.handing import HandingOver
from pnode.hosted import Averages, Fixed, Neighbours, captured, write_whole
from pnode.hub import LinkHub
from pnode.inputs import EVALUATION_WAIT_S, Inputs
from pnode.merge_calls import MergeCalls
from pnode.merges import Merges
from pnode.no_books import NoBooks
from pnode.outbox import Outbox
from pnode.pace import Pace
from pnode.spool import Frame
from pnode.successor_links import SuccessorLinks
from pnode.ticking import Ticking
from vnode import events as ev
from vnode.compute import Compute
from vnode.core import ReplicaCore
from vnode.due import WakeAt
from vnode.events import Event, Instruction
from vnode.replica_view import ReplicaView
from vnode.state import StateInfo, counted
from vnode.vocabulary import TRAIN_LANE, Lane, Mode, Peer, TensorHandle

DISK_RETRY_S: Final = 5.0


class ReplicaHost:
    """Runs from `run` until `release` or a fault; ``news`` is called when reports should go out at once."""

    def __init__(
        self, fixed: Fixed, *, core: ReplicaCore, compute: Compute, info: StateInfo, chain: CommitChain, inputs: Inputs,
        outbox: Outbox, hub: LinkHub, clock: Clock, executor: Executor, thread: ThreadPoolExecutor, pace: Pace, epoch: int,
        snapshot: Callable[[local_pb2.SnapshotReady], None], news: Callable[[], None], told: Callable[[str, str, str], None], calls: MergeCalls,
        books: Callable[[ReplicaHost], Books | NoBooks],
    ) -> None:  # fmt: skip
        self.fixed, self.inputs, self.epoch, self.averages = fixed, inputs, epoch, Averages()
        self.failed = self.durable_digest = self._disk_trouble = ""
        self._core, self._compute, self._info, self._chain, self._outbox = core, compute, info, chain, outbox
        self._hub, self._clock, self._executor, self._thread, self._pace = hub, clock, executor, thread, pace
        self._snapshot, self._news = snapshot, news
        self._events: deque[Event] = deque()
        self._draining, self._ticking = False, Ticking(clock, self.post)
        self._links = SuccessorLinks(fixed.successors, clock, self.post)
        self._group: asyncio.TaskGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended, self._leaving, self.handing = asyncio.Event(), asyncio.Event(), HandingOver(info.lineage)
        self._commits, self.num_learned = info.step, len(info.lineage)
        self._was_complete, self._rate_bytes_s, self.books = False, 0.0, books(self)
        self.merges = Merges(
            fixed, host=self, info=info, chain=chain, compute=compute, calls=calls, directory=hub, clock=clock, executor=executor,
            told=told,
        )  # fmt: skip

    # ---- as the data plane sees it ------------------------------------------------------------------------------------------

    @property
    def peer(self) -> Peer:
        """Replica and incarnation."""
        return self.fixed.standing.peer

    @property
    def network_id(self) -> str:
        """Only inside this network."""
        return self.fixed.standing.network_id

    @property
    def model(self) -> str:
        """Whose replica."""
        return self.fixed.standing.model

    @property
    def job_id(self) -> str:
        """Whose batches."""
        return self.fixed.standing.job_id

    @property
    def outbox(self) -> Outbox:
        """Its outputs."""
        return self._outbox

    @property
    def slowest_bytes_s(self) -> float:
        """Measured rate towards other machines, moving average; 0 before anything was sent."""
        return self._rate_bytes_s

    def post(self, event: Event) -> None:
        """Takes an event; it is handled soon, after those posted before."""
        if self._ended.is_set():
            return
        self._events.append(event)
        if not self._draining:
            self._draining = True
            asyncio.get_running_loop().call_soon(self._drain)

    def expected(self, edge: int) -> Expected:
        """What may arrive over an edge."""
        fixed = self.fixed
        return Expected(
            fixed.stage.inputs[edge].spec, fixed.batch_size, codecs_sent(fixed.wanted_codec), proven=isinstance(self.books, Books)
        )

    def attach(self, target: Peer, pnode_id: str, way: Way) -> int:
        """A new link to a successor's replica. Raises Stale (older incarnation), Refused (no successor, or not from there)."""
        return self._links.attach(target, pnode_id, way)

    def detach(self, link: int) -> None:
        """That link is gone."""
        self._links.detach(link)

    def carried(self, num_bytes: int, seconds: float) -> None:
        """Measures what other machines take from us."""
        if seconds > 0:
            rate = num_bytes / seconds
            self._rate_bytes_s = rate if not self._rate_bytes_s else self._rate_bytes_s + 0.1 * (rate - self._rate_bytes_s)

    # ---- as the worker sees it ----------------------------------------------------------------------------------------------

    def view(self) -> ReplicaView:
        """For reports."""
        return self._core.view()

    def plan(self, neighbours: Neighbours) -> None:
        """The newest plan around this replica, its role in it included; what has not changed goes on undisturbed."""
        self.merges.plan(neighbours)
        self._links.plan(neighbours.successors)
        primary = neighbours.primary
        self.post(
            ev.PlanChanged(
                self._clock.monotonic(),
                {edge: tuple(one.share for one in asked) for edge, asked in neighbours.predecessors.items()},
                frozenset(neighbours.successors), neighbours.lead_batches, tuple(one.share for one in neighbours.siblings), neighbours.role,
                primary.replica if primary is not None else None, neighbours.halted, neighbours.widest_lead_batches,
                neighbours.tempo,
            )
        )  # fmt: skip
        for edge in range(len(self.fixed.stage.inputs)):
            asked = neighbours.predecessors.get(edge, ())
            self._hub.want(self, edge, {one.replica: one.pnode_id for one in asked})

    def snapshot_again(self, reason: str) -> None:
        """The last snapshot will not be named: the next one comes with whatever leads to it."""
        self._chain.hand_over_anew()
        self.post(ev.CheckpointLost(self._clock.monotonic(), reason))

    def head_seen(self) -> None:
        """The horizon starts anew."""
        self.post(ev.HeadSeen(self._clock.monotonic()))

    def named(self, lineage: IntervalSet, digest: str) -> None:
        """A manifest names a checkpoint of this VNode."""
        self.durable_digest = digest
        self.merges.named(digest)
        self.post(ev.CheckpointNamed(self._clock.monotonic(), lineage))

    async def run(self) -> None:
        """Until released or failed; all its edges, tasks and files end with it."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                ticking = group.create_task(self._ticking.run())
                self._hub.add(self)
                await self._ended.wait()
                ticking.cancel()
                for task in self._tasks:
                    task.cancel()
        except BaseExceptionGroup as errors:
            raise first_cause(errors) from errors
        finally:
            self._ended.set()
            self._group = None
            self._hub.remove(self)
            self.merges.close()
            self.books.close()
            self._links.close()
            self._outbox.close()

    async def release(self, *, hand_over: bool, until_taken: bool = False) -> bool:
        """Ends this replica. With ``hand_over`` it learns nothing more and goes when its state is captured; with ``until_taken`` also that state must be
        durable, and its successors must have all that it made. True if nothing of this is missing.
        """
        handed = True
        self._leaving.set()
        if hand_over and not self._ended.is_set():
            self.post(ev.Leave(self._clock.monotonic()))
            handed = await self.handing.over(self._core.view, until_taken=until_taken)
        self._ended.set()
        self.handing.end()
        return handed and not self.failed

    def fail(self, reason: str) -> None:
        """Ends this replica with a reason that reports show."""
        if not self.failed:
            self.failed = reason or "failed"
            self._ended.set()
            self.handing.end()
            self._news()

    # ---- carrying out -------------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Handles all waiting events; events that this posts are handled in the same go."""
        try:
            while self._events and not self._ended.is_set():
                event = self._events.popleft()
                if not isinstance(event, ev.Tick):
                    self._ticking.stirred()
                for instruction in self._core.handle(event):
                    self._carry_out(instruction)
        except Exception as error:  # noqa: BLE001  VNode boundary: a bug here ends this replica, not its neighbours
            self.fail(logs.told("replica_failed", error, replica=self.peer.replica))
        finally:
            self._draining = False
            self.handing.moved()

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case ev.SendNeed() | ev.SendWindow() | ev.SendAck() | ev.SendDurable():
                self._hub.say(self, instruction)
            case ev.SendFrame():
                self._links.send(instruction)
            case ev.DropFrames():
                self._outbox.drop(instruction.lane, instruction.batches)
            case ev.Learn():
                self.spawn(self._learn, instruction)
            case ev.Forward():
                self.spawn(self._forward, instruction)
            case ev.TakeSnapshot():
                self.spawn(self._take_snapshot, instruction)
            case ev.ReadInput():
                self.spawn(self._read, instruction)
            case WakeAt():
                self._ticking.wake(instruction.at_s)
            case ev.Stop():
                self.fail(instruction.reason)
            case _:
                self.merges.carry_out(instruction)

    def spawn(self, work: Callable[[Any], Coroutine[Any, Any, None]], job: Any) -> asyncio.Task[None] | None:
        """Runs beside the loop's other work; ends with this replica, and ends it with its faults."""
        if self._group is None or self._ended.is_set():
            return None
        task = self._group.create_task(self._guarded(work, job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _guarded(self, work: Callable[[Any], Coroutine[Any, Any, None]], job: Any) -> None:
        try:
            await work(job)
        except Exception as error:  # noqa: BLE001  VNode boundary
            self.fail(logs.told("replica_failed", error, replica=self.peer.replica))

    async def _learn(self, job: ev.Learn) -> None:
        try:
            await self.inputs.ready(TRAIN_LANE, job.batch)
            target, inputs = self.inputs.target(TRAIN_LANE, job.batch), tensors_of(job.inputs)
            await self.books.before_learning()
            result, seconds = await self.on_thread(lambda: self._compute.learn(job.batch, inputs, target(), job.num_learned))
            frame = await self._kept(TRAIN_LANE, job, result.output, job.num_learned)
            await self.books.learned(job.batch, job.inputs, result, job.num_learned, frame)
            await self._pace.rest(self._leaving)
        except Exception as error:  # noqa: BLE001  VNode boundary: the core decides what a failed step means
            self._computation_failed(TRAIN_LANE, job.batch, error)
            return
        self._chain.learned(job.batch, result.loss)
        self.num_learned = job.num_learned + 1
        self.averages.add(job.batch, seconds, result.loss)
        self.post(ev.Learned(self._clock.monotonic(), job.batch, result.loss, seconds))
        self._tell_completion()

    async def _kept(self, lane: Lane, job: ev.Learn | ev.Forward, output: TensorHandle, step: int) -> asyncio.Future[Frame] | None:
        if not job.keep:
            return None
        await self._outbox.keep(lane, job.batch, output, step)
        return self._outbox.newest(lane, job.batch)

    def _tell_completion(self) -> None:
        if self.num_learned >= self._info.num_batches and not self._was_complete:
            self._was_complete = True
            self._news()

    async def _forward(self, job: ev.Forward) -> None:
        try:
            if job.mode is Mode.EVAL:
                await self.inputs.ready(job.lane, job.batch, EVALUATION_WAIT_S)
            target = self.inputs.target(job.lane, job.batch) if job.mode is Mode.EVAL else lambda: None
            inputs = tensors_of(job.inputs)
            result, seconds = await self.on_thread(lambda: self.merges.held_out.forward(self._compute, job, inputs, target()))
            frame = await self._kept(job.lane, job, result.output, self.num_learned)
            if job.mode is Mode.FORWARD_ONLY:
                await self.books.forwarded(job.batch, job.inputs, result.output, self.num_learned, frame)
            await self._pace.rest(self._leaving)
        except Exception as error:  # noqa: BLE001  VNode boundary: the core decides what a failed pass means
            self._computation_failed(job.lane, job.batch, error)
            return
        now = self._clock.monotonic()
        self.post(ev.Forwarded(now, job.lane, job.batch, seconds, result.sum_loss, result.correct, result.count))

    async def on_thread(self, work: Callable[[], Any]) -> tuple[Any, float]:
        """The result, and the seconds that it took of this worker, pauses that the volunteer's limit asks for included."""
        begun = self._pace.begin()
        try:
            result = await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            seconds = self._pace.end(begun)
        return result, seconds

    def failed_on_thread(self, error: Exception) -> None:
        """A computation that is for no batch failed: the core decides what that means."""
        self._computation_failed(TRAIN_LANE, 0, error)

    def _computation_failed(self, lane: Lane, batch: int, error: Exception) -> None:
        """A neighbour's bad tensor, a shard that is away or a loss that is not finite costs one batch for now; anything else ends this replica."""
        again = isinstance(error, DcnrError) and (not isinstance(error, InvariantBroken) or error.code == "not_finite")
        self.averages.failed(lane, batch, error)
        reason = f"{lane.split} {batch}: {logs.told('computation_failed', error, replica=self.peer.replica)}"
        self.post(ev.ComputeFailed(self._clock.monotonic(), lane, batch, reason, fatal=not again))

    async def _read(self, job: ev.ReadInput) -> None:
        try:
            array = await self.inputs.read(job.lane, job.batch)
        except DcnrError:
            self.post(ev.InputFailed(self._clock.monotonic(), job.edge, job.lane, job.batch))
            return
        self.post(ev.FrameArrived(self._clock.monotonic(), job.edge, job.lane, job.batch, array))

    @property
    def trouble(self) -> str:
        """What keeps this replica from its work though it lives: a disk that refuses, shards that cannot be had. Empty if all is well."""
        return self._disk_trouble or self.inputs.trouble

    # ---- snapshots ----------------------------------------------------------------------------------------------------------

    def state_info(self, lineage: IntervalSet) -> StateInfo:
        """What the state says about itself if it is captured now."""
        return replace(self._info, parent=self._chain.state_digest, epoch=self.epoch, step=counted(self._commits), lineage=lineage)

    def relearned(self, info: StateInfo) -> None:
        """The state is that of an anchor now, or one was captured of it."""
        self._commits, self.num_learned, self.averages.is_stuck = info.step, len(info.lineage), False
        self._tell_completion()

    async def _take_snapshot(self, job: ev.TakeSnapshot) -> None:
        info = self.state_info(job.lineage)
        try:
            (data, digest), _ = await self.on_thread(lambda: captured(self._compute, info))
            log = await self.books.log(info.parent)
        except Exception as error:  # noqa: BLE001  VNode boundary: a state that cannot be captured must not be trained on unseen
            self.failed_on_thread(error)
            return
        link = self._chain.close(state=digest, steps=digest_of(log) if log else "")
        ended = self.books.ended(link.commit, log, info)
        self._commits, self.averages.is_stuck = info.step, False
        self.post(ev.SnapshotTaken(self._clock.monotonic(), job.lineage, digest))
        if self._group is not None:  # not among the tasks that an end cancels: what is captured is handed over
            self._group.create_task(self._store(data, link, info, ended))

    async def _store(self, data: bytes, link: Link, info: StateInfo, ended: Ended | None) -> None:
        path = self.fixed.work_dir / "snapshots" / f"{link.state}.safetensors"
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, write_whole, path, data)
        except OSError as error:
            self._disk_trouble = f"the disk refuses snapshots: {error.strerror}; tried again every {DISK_RETRY_S:.0f} s"
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DISK_RETRY_S):
                    await self._leaving.wait()
            self.snapshot_again(f"the disk refused it: {error.strerror}")
            return
        self._disk_trouble = ""
        await self.books.keep(ended, link.digest, path)
        self._snapshot(self._chain.ready(link, path=str(path), size_bytes=len(data), lineage=info.lineage, epoch=self.epoch))
        self.handing.kept(info.step, info.lineage)
