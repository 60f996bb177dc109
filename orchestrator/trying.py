"""One try of a question over one way: sent to the first hop with all hops named, answered to whichever of our streams the last hop, or those before it, use."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from dcnr import tracing
from dcnr.errors import DcnrError, Unavailable
from dcnr.groups import apart, first_cause
from dcnr.question_tensors import header_of, tensor_message
from dcnr.question_wire import Chunk, Heard, Words
from dcnr.tensor import Array, TensorAssembler
from dcnr.v1 import vnode_pb2
from orchestrator.company import Fits
from orchestrator.infer_streams import InferStream, InferStreams
from orchestrator.questions import MAX_INPUT_BYTES, Question, check_readout
from orchestrator.routing import Way
from trust.delegation import VerifiedDelegation

MAX_HOPS: Final = 256
MAX_COMPUTE_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What the last hop said."""

    output: Array
    state_digest: str
    replica: str
    step: int
    timings: Mapping[str, vnode_pb2.InferTiming]
    """By VNode, as the hops say."""
    drafted: bytes = b""
    """Tokens by which the first hop extended the question, as it says."""
    session: bytes = b""
    """Under which stages keep keys and values, if they were to,"""
    kept: int = 0
    """and of how many places all of them do, as they say."""

    @property
    def waited_s(self) -> float:
        """Waiting alone."""
        return sum(bounded_s(item.waited_s) for item in self.timings.values())

    @property
    def computed_s(self) -> float:
        """Waiting and computing, all hops together."""
        return sum(bounded_s(item.waited_s) + bounded_s(item.computed_s) for item in self.timings.values())


class WayFailed(Exception):
    """This way does not answer; another one may: never the end of a question. ``pnode_id`` names who is at fault, as far as that is known."""

    def __init__(self, message: str, *, code: str, pnode_id: str, is_gone: bool = False) -> None:
        super().__init__(message)
        self.message, self.code, self.pnode_id, self.is_gone = message, code, pnode_id, is_gone


class Try:
    """Listens on the streams of all workers of its way until the answer is whole."""

    def __init__(self, question: Question, way: Way, question_id: bytes) -> None:
        self._question, self.way, self._id = question, way, question_id
        self._session = question_id if question.begins_session else question.session
        self._done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._head: vnode_pb2.InferAnswer | None = None
        self._assembler: TensorAssembler | None = None
        self._from = ""

    async def answer(
        self, streams: InferStreams, workers: Mapping[str, VerifiedDelegation], *, network_id: str, model: str, caller: str, deadline_s: float,
    ) -> Answer:  # fmt: skip
        """The answer. ``workers``: by PNode of the way. Raises WayFailed, Unavailable where no stream can be had."""
        opened: dict[str, InferStream] = {}
        try:
            await self._open(streams, workers, opened)
            for before, after in pairwise(self.way.hops):
                if before.pnode_id != after.pnode_id:
                    streams.goes_on(workers[before.pnode_id], [workers[after.pnode_id]])
            first = opened[self.way.hops[0].pnode_id]
            words = self._words(network_id, model, caller, deadline_s)
            try:
                first.ask(words, self._fits())
            except Unavailable as error:
                raise WayFailed(error.message, code="busy", pnode_id=first.pnode_id) from error
            try:
                answer = await self._done
                first.waited(answer.waited_s)
                return answer
            finally:
                if self._done.cancelled():
                    first.cancel(self._id)
        finally:
            if not self._done.cancel() and not self._done.cancelled():
                self._done.exception()  # whatever else went wrong is what counts
            for stream in opened.values():
                stream.forget(self._id)

    async def _open(self, streams: InferStreams, workers: Mapping[str, VerifiedDelegation], opened: dict[str, InferStream]) -> None:
        """Listens to all workers of the way; those that are not open yet are dialled side by side."""
        missing = []
        for pnode_id in dict.fromkeys(hop.pnode_id for hop in self.way.hops):
            stream = streams.open_one(workers[pnode_id])
            if stream is None:
                missing.append(pnode_id)
            else:
                stream.listen(self._id, self)
                opened[pnode_id] = stream
        if missing:
            await apart(self._dial(streams, [workers[pnode_id] for pnode_id in missing], opened))

    async def _dial(self, streams: InferStreams, workers: Sequence[VerifiedDelegation], opened: dict[str, InferStream]) -> None:
        async def one(worker: VerifiedDelegation) -> None:
            try:
                stream = await streams.opened(worker)
                stream.listen(self._id, self)
            except DcnrError as error:
                if error.code == "too_many_streams":
                    raise
                raise WayFailed(error.message, code="unreachable", pnode_id=worker.pnode_id, is_gone=True) from error
            opened[worker.pnode_id] = stream

        try:
            async with asyncio.TaskGroup() as group:
                for worker in workers:
                    group.create_task(one(worker))
        except BaseExceptionGroup as failed:
            raise first_cause(failed) from None

    def _words(self, network_id: str, model: str, caller: str, deadline_s: float) -> Words:
        hops = self.way.hops
        if len(hops) > MAX_HOPS:
            raise Unavailable(f"a way of {len(hops)} stages is longer than {MAX_HOPS}", code="way_too_long")
        request = vnode_pb2.InferRequest(
            id=self._id, network_id=network_id, model=model, caller=caller, deadline_s=deadline_s, traceparent=tracing.current(),
            session=self._session, offset=self._question.offset,
            hops=[
                vnode_pb2.InferHop(
                    vnode=hop.vnode, replica=hop.replica, state_digest=hop.state_digest, delegation=hop.delegation, codec=self._question.codec,
                    answers=hop is hops[-1], draft=0 if number else self._question.draft, last=self._question.last if hop is hops[-1] else 0,
                    drawing=None if number or not self._question.draft else self._question.drawing.message(),
                )
                for number, hop in enumerate(hops)
            ],
        )  # fmt: skip
        needed = {hop.vnode for hop in hops}
        inputs = {name: encoded for name, encoded in self._question.inputs.items() if name in needed}
        request.tensors.extend(tensor_message(name, encoded.header) for name, encoded in inputs.items())
        return Words(vnode_pb2.InferMessage(request=request), list(inputs.values()))

    def _fits(self) -> Fits | None:
        """None for what is computed alone."""
        asked = self._question
        return None if asked.draft or self._session else Fits(asked.num_samples, asked.batch_size, len(self.way.pnodes))

    # What the streams tell

    def lost(self, pnode_id: str, reason: str) -> None:
        """The connection to one of the way's workers broke."""
        self._fail(WayFailed(f"{pnode_id[:8]}: {reason}", code="stream_broken", pnode_id=pnode_id, is_gone=True))

    def heard(self, pnode_id: str, message: Heard) -> None:
        """An answer may come from the last hop or back along the way; the first one that begins is taken."""
        if self._done.done():
            return
        try:
            if isinstance(message, Chunk):
                if self._from == pnode_id and self._assembler is not None:
                    self._assembler.add(message.payload)
                    self._finish()
            elif message.WhichOneof("kind") == "failure":
                self._failed(pnode_id, message.failure)
            elif not self._from:
                self._from = pnode_id
                self._begin(message.answer)
        except DcnrError as error:
            self._fail(WayFailed(error.message, code="bad_answer", pnode_id=self.way.hops[-1].pnode_id))

    def _failed(self, pnode_id: str, failure: vnode_pb2.InferFailure) -> None:
        named = failure.pnode_id if failure.pnode_id in self.way.pnodes else pnode_id
        gone = failure.code in ("not_here", "successor_unreachable")
        self._fail(
            WayFailed(f"{failure.vnode[:64]}: {failure.message[:256]}", code=failure.code[:64], pnode_id=named, is_gone=gone)
        )

    def _begin(self, answer: vnode_pb2.InferAnswer) -> None:
        last = self.way.hops[-1]
        if (answer.vnode, answer.state_digest, answer.replica) != (last.vnode, last.state_digest, last.replica):
            raise Unavailable("an answer of another stage or state than was asked", code="bad_answer")
        if len(answer.tensors) != 1:
            raise Unavailable(f"an answer of {len(answer.tensors)} tensors", code="bad_answer")
        item = answer.tensors[0]
        shape = tuple(int(length) for length in item.shape)
        check_readout(self.way.table.stages, last.vnode, self._question, len(self._drafted(answer)), item.dtype, shape)
        self._head, self._assembler = answer, TensorAssembler(header_of(item), max_bytes=MAX_INPUT_BYTES)
        self._finish()

    def _finish(self) -> None:
        """Gives the answer, if it is whole."""
        if self._assembler is None or self._head is None or self._assembler.missing_bytes:
            return
        head, names = self._head, {hop.vnode for hop in self.way.hops}
        timings = {item.vnode: item for item in head.timings if item.vnode in names}
        kept = min((int(timings[name].kept) if name in timings else 0) for name in names)
        self._done.set_result(
            Answer(
                self._assembler.finite_array(), head.state_digest, head.replica, int(head.step), timings, self._drafted(head), self._session, kept,
            )
        )  # fmt: skip

    def _drafted(self, answer: vnode_pb2.InferAnswer) -> bytes:
        """By which tokens the first hop extended the question, as the last one that told says."""
        told = [item.drafted for item in answer.timings if item.vnode == self.way.hops[0].vnode]
        return told[-1] if told else b""

    def _fail(self, error: WayFailed) -> None:
        if not self._done.done():
            self._done.set_exception(error)


def bounded_s(seconds: float) -> float:
    """A duration as a hop says it: what is no time counts as none."""
    return min(seconds, MAX_COMPUTE_S) if math.isfinite(seconds) and seconds > 0 else 0.0
