"""What a replica writes down while it works, where audits are in force: the log of its steps, which its statements name, and the evidence behind it.

Nothing here computes, and nothing waits on the compute thread but the capture of a state where the checks of the stage ask for one in between: digests and
files are the work of a thread of its own, which does one thing after the other. At most `MAX_BACKLOG` entries are unwritten; then the next one waits.
A disk that refuses costs the evidence of the interval, not the replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from blake3 import blake3

from dcnr import limits
from dcnr.errors import DcnrError, InvariantBroken, for_others
from dcnr.ids import Digest, digest_of
from dcnr.v1 import identity_pb2, local_pb2, model_pb2
from pnode.arrivals import Arrival
from pnode.chain import Standing
from pnode.evidence import EvidenceFolder, Interval
from pnode.outbox import bytes_of
from pnode.spool import Frame
from trust.evidence import MAX_STATEMENTS
from trust.ledger import waits_for_audit
from trust.step_logs import MAX_ENTRIES
from vnode.compute import StepResult
from vnode.state import StateInfo
from vnode.vocabulary import Peer, TensorHandle

MAX_BACKLOG: Final = 8
CROWDED_ENTRIES: Final = MAX_ENTRIES * 3 // 4
"""Of one log: then the interval should end soon."""
CROWDED_STATEMENTS: Final = MAX_STATEMENTS // 2
"""Of one interval: the same, before it has more than an auditor reads."""
CROWDED_SHARE: Final = 0.25
"""The same for the part of the evidence's room that one interval takes."""
SPARED_SHARE: Final = 0.5
"""Evidence of intervals that were not drawn goes when all of it takes more than this part of the room."""

T = TypeVar("T")
Inputs = Sequence[TensorHandle]
Sender = tuple[Peer, bytes]
Encoded = asyncio.Future[Frame] | None
"""An output for whoever wants it."""
Capture = Callable[[StateInfo], Awaitable[bytes]]
"""The whole state as it is now, with that about itself."""


@dataclass(frozen=True, slots=True)
class Ended:
    """An interval whose last statement is signed, and the one that begins with its last state."""

    interval: Future[Interval]
    following: Future[Interval]
    is_idle: bool
    """Whether nothing was learned or taken in."""
    is_measured: bool
    """Whether a delta ends it, which was measured against what the next one begins with."""


class Books:
    """One per audited replica; used from one event loop. ``inputs``: numbers of the stage's inputs that come from other VNodes.

    A state in between is captured when another entry is to follow, not before: where the interval ends, or an anchor is made, its statement names the state.

    ``is_read``: whether other VNodes read its outputs. Then every entry states its output, also one that nobody wants now: what is not said cannot be checked.
    ``held`` hears why nothing more may be learned ("" when it may), ``crowded`` that the interval should end soon.
    """

    def __init__(
        self, standing: Standing, order: local_pb2.HostReplica, info: StateInfo, *, inputs: Collection[int], is_read: bool, span_steps: int,
        capture: Capture, held: Callable[[str], None], crowded: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._standing, self._inputs, self._is_read, self._span_steps = standing, frozenset(inputs), is_read, span_steps
        self._capture, self._held, self._crowded, self._max_bytes = capture, held, crowded, int(order.evidence_bytes)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"evidence-{standing.peer.replica}")
        self._spared_bytes = int(SPARED_SHARE * self._max_bytes)
        self._tasks: set[asyncio.Task[None]] = set()
        self._order, self._info, self._lineage = order, info, info.lineage
        self._steps: list[model_pb2.Step] = []
        self._entry = self._segment = self._merges = self._bytes = self._open_bytes = self._anchor_bytes = self._num_open = 0
        self._lost = self._why = ""
        self._asked_to_end = self._has_grown = self._is_unkept = False
        self._due: model_pb2.Step | None = None
        """The last entry, where the state after it is to be named if another one follows."""
        self._known_senders: set[Sender] = set()
        self._folder = EvidenceFolder(Path(order.evidence_dir))
        self._interval = self._submit(self._first, Path(order.state_path))

    # ---- entries -------------------------------------------------------------------------------------------------------------

    async def before_learning(self) -> None:
        """To be called before every batch that is to be learned: the state as it is now is captured where it is to be named."""
        step, self._due = self._due, None
        if step is not None:
            self._track(partial(self._name_state, step, self._interval, self._entry, await self._captured()))

    async def learned(self, batch: int, inputs: Inputs, result: StepResult, num_learned: int, frame: Encoded) -> None:
        """One batch was learned; ``frame``: its output as encoded, where it is kept. Raises InvariantBroken where `before_learning` was left out."""
        if self._due is not None:
            raise InvariantBroken(f"the state before batch {batch} was to be captured", code="state_not_captured")
        step = model_pb2.Step(batch=batch, num_learned=num_learned, loss=result.loss, lr=result.lr)
        self._lineage, self._has_grown = self._lineage.add(batch), True
        await self._note(step, inputs, result.output, frame)

    async def forwarded(self, batch: int, inputs: Inputs, output: TensorHandle, num_learned: int, frame: Encoded) -> None:
        """One batch was computed again with the weights of now. Above the room for evidence, where nothing may be learned, its digests alone are kept, unless
        the interval holds what somebody may ask for.
        """
        if self._why and self._bytes >= self._max_bytes and not self._has_grown:
            self._is_unkept, self._lost = True, "there was no room for the inputs and outputs of what was computed again"
        await self.before_learning()  # as it was before this entry, which changed nothing
        await self._note(model_pb2.Step(batch=batch, num_learned=num_learned, forward_only=True), inputs, output, frame)

    async def merged(self, displacements: Sequence[bytes]) -> None:
        """The state took these in; an anchor of it follows."""
        self._has_grown, self._due = True, None
        for data in displacements:
            self._write(f"delta-{self._merges}", data)
            self._merges += 1

    async def _note(self, step: model_pb2.Step, inputs: Inputs, output: TensorHandle, frame: Encoded) -> None:
        while len(self._tasks) >= MAX_BACKLOG:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        entry, self._entry = self._entry, self._entry + 1
        self._steps.append(step)
        self._track(partial(self._keep, entry, step, inputs, output if frame is None and self._is_read else frame))
        if self._entry % self._span_steps == 0:  # also behind one that learned nothing: checks count entries
            self._due = step

    async def _keep(self, entry: int, step: model_pb2.Step, inputs: Inputs, output: Encoded | TensorHandle) -> None:
        refused: OSError | None = None
        try:
            await self._run(self._add_inputs, entry, step, inputs)  # at once: the first entry of a sender carries its delegation
        except OSError as error:
            refused = error  # the output belongs in the log all the same
        if output is not None:
            sent = await asyncio.shield(output) if isinstance(output, asyncio.Future) else output
            await self._run(self._add_output, entry, step, sent)
        if refused is not None:
            raise refused
        self._judge()

    async def _captured(self) -> bytes:
        try:
            return await self._capture(replace(self._info, lineage=self._lineage))
        except DcnrError as error:
            self._lost = f"a state in between could not be captured: {error.message}"
            return b""

    async def _name_state(self, step: model_pb2.Step, interval: Future[Interval], entry: int, data: bytes) -> None:
        step.state_digest = await self._run(digest_of, data)
        await self._run(lambda: self._folder.between(interval.result(), entry, data))

    # ---- statements ----------------------------------------------------------------------------------------------------------

    async def log(self, begin: Digest | str) -> bytes:
        """The serialised StepLog of what was noted since the last statement, which began with that state or anchor."""
        await self._settled()
        standing = self._standing
        log = model_pb2.StepLog(
            network_id=standing.network_id, model=standing.model, job_id=standing.job_id, vnode=standing.vnode, replica=standing.peer.replica,
            incarnation=standing.peer.incarnation, begin_digest=begin, steps=self._steps,
        )  # fmt: skip
        return log.SerializeToString(deterministic=True)

    def anchored(self, statement: identity_pb2.Envelope, log: bytes, anchor: bytes, info: StateInfo) -> None:
        """What was noted since the last statement belongs to this one, which names that anchor; with it the interval goes on."""
        self._write(f"anchor-{self._segment}", anchor)
        self._info, self._lineage, self._due = info, info.lineage, None
        self._signed(statement, log)
        if self._lost:
            self._write("lost", self._lost.encode())
        self._anchor_bytes += len(anchor)
        self._judge()

    def _signed(self, statement: identity_pb2.Envelope, log: bytes) -> None:
        self._steps = []
        self._write(f"statement-{self._segment}", statement.SerializeToString(deterministic=True))
        self._write(f"steps-{self._segment}", log)
        self._segment += 1

    def ended(
        self, statement: identity_pb2.Envelope, log: bytes, info: StateInfo, *, displacement: bytes = b"", anchor: bytes = b"", is_measured: bool = False,
    ) -> Ended:  # fmt: skip
        """The interval ends with it; the next one begins with a state that says ``info`` of itself: behind a displacement with that anchor, against which it
        was measured, or not.
        """
        interval = self._interval
        if displacement:
            self._write(f"delta-{self._merges}", displacement)
        self._signed(statement, log)
        if self._lost:
            self._write("lost", self._lost.encode())
        is_idle = not self._has_grown and not displacement
        self._begin(info)
        if displacement:
            self._write("begin", anchor)
        return Ended(interval, self._interval, is_idle, is_measured)

    async def keep(self, ended: Ended | None, name: Digest, state: Path | None) -> None:
        """The interval has that name, and ends with the state in that file, with which the next one begins. Of one in which nothing was learned no inputs and
        outputs are kept.
        """
        if ended is None:
            return
        await self._quietly(self._close, ended, name, state)
        await self._measure()

    # ---- other lives of a replica ----------------------------------------------------------------------------------------------

    async def rebased(self, anchor: bytes, info: StateInfo) -> None:
        """A contributor stands on that anchor, which says that of itself, and on nothing else; what it learned since its last delta is gone."""
        await self._settled()
        before = self._interval
        self._begin(info)
        self._write("begin", anchor)
        await self._quietly(lambda: self._folder.drop(before.result()))
        await self._measure()

    # ---- verdicts --------------------------------------------------------------------------------------------------------------

    async def decided(self, names: Collection[str], num_open: int, spared: Sequence[str] = ()) -> None:
        """Evidence of these intervals may go, that of ``spared`` ones, oldest first, when room is short; so many of this replica wait for an audit."""
        self._num_open = num_open
        await self._quietly(lambda: self._folder.decided(names))
        await self._quietly(lambda: self._folder.spared(spared, self._spared_bytes))
        await self._measure()

    def close(self) -> None:
        """Nothing more is noted; what is signed stays on disk."""
        for task in self._tasks:
            task.cancel()
        self._submit(self._leave)
        self._thread.shutdown(wait=False)

    # ---- inside ----------------------------------------------------------------------------------------------------------------

    def _begin(self, info: StateInfo) -> None:
        order = local_pb2.HostReplica()
        order.CopyFrom(self._order)
        order.from_earlier_job = False
        interval = self._submit(lambda: self._folder.open(order.SerializeToString()))
        self._interval, self._info, self._lineage, self._due = interval, info, info.lineage, None
        self._steps, self._entry, self._segment, self._merges = [], 0, 0, 0
        self._open_bytes = self._anchor_bytes = 0
        self._lost, self._asked_to_end, self._has_grown, self._is_unkept, self._known_senders = "", False, False, False, set()

    def _judge(self) -> None:
        why = ""
        if waits_for_audit(self._num_open):
            why = f"waiting_for_audit: {self._num_open} intervals are not cleared"
        elif self._bytes >= self._max_bytes:
            why = f"waiting_for_audit: {self._bytes // limits.MIB} MiB of evidence are kept until they are audited"
            if self._has_grown:  # it is named, judged and let go; an interval without would cost a state and free nothing
                self._ask_to_end()
        elif self._is_unkept:
            why = "waiting_for_audit: a checkpoint comes first, so that what is learned next has all of its evidence"
            self._ask_to_end()
        room = CROWDED_SHARE * self._max_bytes - self._open_bytes - self._anchor_bytes
        if self._entry >= CROWDED_ENTRIES or self._segment >= CROWDED_STATEMENTS or room <= 0:
            self._ask_to_end()
        if why != self._why:
            self._why = why
            self._held(why)

    def _ask_to_end(self) -> None:
        if not self._asked_to_end and (self._entry or self._segment):
            self._asked_to_end = True
            self._crowded("much evidence since the last checkpoint")

    async def _measure(self) -> None:
        await self._quietly(self._count)
        self._judge()

    async def _settled(self) -> None:
        while self._tasks:
            await asyncio.gather(*self._tasks)

    def _track(self, work: Callable[[], Awaitable[object]]) -> None:
        task = asyncio.ensure_future(self._bearing(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _bearing(self, work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        except OSError as error:
            self._lost = f"the disk refused it: {for_others(error)}"

    async def _quietly(self, work: Callable[..., Any], *given: Any) -> None:
        await self._bearing(partial(self._run, work, *given))

    async def _run(self, work: Callable[..., Any], *given: Any) -> Any:
        return await asyncio.wrap_future(self._submit(work, *given))

    def _submit(self, work: Callable[..., T], *given: Any) -> Future[T]:
        """Of two works the one given first is over when the other begins."""
        return self._thread.submit(partial(work, *given))

    def _write(self, name: str, data: bytes) -> None:
        interval = self._interval
        written = self._submit(lambda: interval.result().write(name, data))
        self._track(lambda: asyncio.shield(asyncio.wrap_future(written)))  # `close` cuts nothing off that is signed

    # on the thread

    def _first(self, state: Path) -> Interval:
        self._folder.load()
        interval = self._folder.open(self._order.SerializeToString())
        interval.take("begin", state)
        self._count()
        return interval

    def _leave(self) -> None:
        self._folder.close()
        self._folder.drop(self._interval.result())

    def _count(self) -> None:
        self._folder.shed(self._spared_bytes)
        self._folder.shed_idle()
        self._bytes = self._folder.num_bytes

    def _close(self, ended: Ended, name: Digest, state: Path | None) -> None:
        """What the disk does not take to its end nobody can ask for: it goes."""
        interval = ended.interval.result()
        try:
            if state is not None:
                interval.take("end", state)
                ended.following.result().take("begin", state)
            if ended.is_measured:
                interval.take("measured", ended.following.result().path / "begin")
            self._folder.closed(interval, name, is_idle=ended.is_idle)
        except OSError:
            self._folder.drop(interval)
            raise

    def _add_inputs(self, entry: int, step: model_pb2.Step, inputs: Inputs) -> None:
        """All digests first: these have to be in the log whatever the disk does."""
        parts: list[tuple[model_pb2.EvidencePart, memoryview]] = []
        for port, handle in enumerate(inputs):
            if port not in self._inputs:
                continue
            part = model_pb2.EvidencePart(kind=model_pb2.EVIDENCE_KIND_INPUT, batch=step.batch, port=port, entry=entry)
            if isinstance(handle, Arrival):
                sender = (handle.source, handle.delegation.payload)  # replicas of one worker have the same delegation
                part.frame.CopyFrom(handle.proof(with_delegation=sender not in self._known_senders))
                self._known_senders.add(sender)
                payload = handle.encoded.payload
                step.inputs.append(bytes.fromhex(handle.encoded.header.digest))
            else:
                payload = bytes_of(handle)
                step.inputs.append(blake3(payload).digest())
            parts.append((part, payload))
        for part, payload in parts:
            self._add(part, payload)

    def _add_output(self, entry: int, step: model_pb2.Step, output: Frame | TensorHandle) -> None:
        """The digest first, as with inputs."""
        if isinstance(output, Frame):
            payload, header = output.encoded.payload, output.encoded.header
            step.outputs.add(codec=header.codec, digest=bytes.fromhex(header.digest))
        else:
            payload = bytes_of(output)
            step.outputs.add(codec="raw", digest=blake3(payload).digest())
        self._add(model_pb2.EvidencePart(kind=model_pb2.EVIDENCE_KIND_OUTPUT, batch=step.batch, entry=entry), payload)

    def _add(self, part: model_pb2.EvidencePart, data: memoryview) -> None:
        if self._is_unkept:
            return
        self._open_bytes = self._folder.add(part, data)
        self._count()
