"""An orchestrator that asks questions over Infer streams, and a small graph with a fan-in whose states lie on disk."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from worker_rig import MODEL, NETWORK_ID, DaemonEnd

from dcnr.graph import Graph, graph_digest, graph_to_bytes, stages_of_graph
from dcnr.ids import digest_of, node_id_of
from dcnr.question_tensors import tensor_message
from dcnr.rpc.dialer import Dialer
from dcnr.specs import TensorSpec
from dcnr.system import SystemClock
from dcnr.tensor import EncodedTensor, TensorAssembler, TensorHeader, chunks, encode
from dcnr.v1 import local_pb2, vnode_pb2
from membership.relays import RelayDialer
from orchestrator.generation import Generation, Wanted
from trust.identity import NodeKey
from vnode.registry import default_registry
from vnode.torch_compute import TorchCompute
from vnode.torch_stage import initial_state
from vnode.vocabulary import Mode

WIDTH = 16
CONTEXT = 24
NUM_LEARNED = 80
NUM_TOKENS = 40
TEXT = b"the quick brown fox jumps over the lazy dog. " * 8
BATCH = 8
WITHIN_S = 60.0
CACHE_BYTES = 1 << 20
CLOCK = SystemClock()


@dataclass(frozen=True)
class Served:
    """A graph and one state per VNode, as a daemon would have laid them on disk."""

    graph: Any
    states: dict[str, Path]

    def digest(self, vnode: str) -> str:
        return digest_of(self.states[vnode].read_bytes())

    def seat(self, vnode: str) -> local_pb2.HostSeat:
        return local_pb2.HostSeat(
            model=MODEL, vnode=vnode, state_digest=self.digest(vnode), state_path=str(self.states[vnode]), graph=graph_to_bytes(self.graph),
            threads=1,
        )  # fmt: skip

    def hop(self, vnode: str, end: DaemonEnd, *, answers: bool = False, codec: str = "raw") -> vnode_pb2.InferHop:
        """Served by a seat of that worker."""
        return vnode_pb2.InferHop(
            vnode=vnode, state_digest=self.digest(vnode), delegation=end.delegation, codec=codec, answers=answers
        )

    def compute(self, vnode: str) -> TorchCompute:
        """The same weights in this process."""
        return compute_of(self.graph, vnode, self.states[vnode])


def compute_of(graph: Any, vnode: str, state: Path) -> TorchCompute:
    compute = _compute(graph, vnode, 1)
    compute.serve(state)
    return compute


def _compute(graph: Any, vnode: str, num_batches: int) -> TorchCompute:
    stage = next(item for item in stages_of_graph(graph, default_registry()) if item.id == vnode)
    return TorchCompute(stage, default_registry(), num_batches=num_batches, seed=7, threads=1)


def served(root: Path) -> Served:
    """a -> b, and c reads both: c's first input has to be carried past b."""
    graph = Graph(
        MODEL, input=TensorSpec("float32", (WIDTH,)), target=TensorSpec("int64", ()), num_classes=4,
        train={"passes": 1, "batch_size": BATCH, "seed": 7, "codec": "raw"},
        data={use: f"dataset:dots#{use}" for use in ("train", "validation", "test")},
    )  # fmt: skip
    both = {"objective": {"name": "local_ce", "config": {}}, "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9}}
    graph.vnode("a", "linear_block", {}, inputs=["input"], **both)
    graph.vnode("b", "linear_block", {}, inputs=["a"], **both)
    graph.vnode("joined", "concat", {}, inputs=["a", "b"])
    graph.vnode("c", "linear_block", {}, inputs=["joined"], **both)
    return _with_states(graph, root)


def served_text(root: Path) -> Served:
    """Bytes in, logits of the next byte out: head -> tail."""
    graph = Graph(
        MODEL, input=TensorSpec("uint8", (CONTEXT,)), target=TensorSpec("uint8", (CONTEXT,)), num_classes=256,
        train={"passes": 1, "batch_size": BATCH, "seed": 7, "codec": "raw"},
        data={use: f"dataset:dots#{use}" for use in ("train", "validation", "test")},
    )  # fmt: skip
    both = {"objective": {"name": "local_ce", "config": {}}, "optimizer": {"name": "adamw", "lr": 1e-2}}
    graph.vnode("head", "byte_embedding", {"width": 16, "blocks": 1, "heads": 2}, inputs=["input"], **both)
    graph.vnode("tail", "transformer_block", {"heads": 2}, inputs=["head"], **both)
    one = _with_states(graph, root)
    _learn(one, TEXT)
    return one


def plain_text(one: Served, prompt: bytes) -> bytes:
    """What follows the prompt, in this process: the pipeline asked for each token."""
    computes = [one.compute(vnode) for vnode in one.states]
    generation, text = Generation(Wanted(prompt, NUM_TOKENS, draft=0), CONTEXT), b""
    while not generation.finish_reason:
        output = np.frombuffer(generation.ask().window, np.uint8)[None]
        for compute in computes:
            output = compute.forward(0, [output], Mode.INFER).output
        text += generation.take(b"", computes[-1].readout(output).numpy()[0, -1:])
    return text


def _learn(one: Served, text: bytes) -> None:
    """Both learn a little of the text, so that their exits often agree."""
    rng = np.random.Generator(np.random.Philox(key=5))
    computes = [_compute(one.graph, vnode, NUM_LEARNED) for vnode in one.states]
    infos = [compute.restore(state) for compute, state in zip(computes, one.states.values(), strict=True)]
    for batch in range(NUM_LEARNED):
        starts = rng.integers(0, len(text) - CONTEXT - 1, BATCH)
        rows = np.stack([np.frombuffer(text[start : start + CONTEXT + 1], np.uint8) for start in starts])
        output = rows[:, :-1].copy()
        for compute in computes:
            output = compute.learn(batch, [output], rows[:, 1:].copy(), batch).output
    for compute, info, state in zip(computes, infos, one.states.values(), strict=True):
        state.write_bytes(compute.snapshot(info))


def _with_states(graph: Graph, root: Path) -> Served:
    built = graph.build()
    states = {}
    for stage in stages_of_graph(built, default_registry()):
        data = initial_state(stage, default_registry(), seed=7, model=MODEL, graph=graph_digest(built), num_batches=NUM_LEARNED)
        states[stage.id] = root / f"{stage.id}.served"
        states[stage.id].write_bytes(data)
    return Served(built, states)


def samples(count: int = BATCH, seed: int = 1) -> Any:
    rng = np.random.Generator(np.random.Philox(key=seed))
    return rng.standard_normal((count, WIDTH)).astype(np.float32)


def expected(one: Served, asked: Any) -> Any:
    """The readout of c, in this process."""
    a, b, c = (one.compute(vnode) for vnode in "abc")
    from_a = a.forward(0, [asked], Mode.INFER).output
    from_b = b.forward(0, [from_a], Mode.INFER).output
    return c.readout(c.forward(0, [from_a, from_b], Mode.INFER).output).numpy()


@dataclass
class Heard:
    """What came back for one question."""

    answers: dict[str, vnode_pb2.InferAnswer] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    failures: list[vnode_pb2.InferFailure] = field(default_factory=list)
    assemblers: dict[str, TensorAssembler] = field(default_factory=dict)


class Line:
    """One Infer stream of the asking orchestrator."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self.heard: dict[bytes, Heard] = {}
        self.news = asyncio.Event()

    async def say(self, message: vnode_pb2.InferMessage, tensors: Sequence[EncodedTensor] = ()) -> None:
        await self._call.write(message)
        question = getattr(message, message.WhichOneof("kind") or "").id
        for tensor in tensors:
            for chunk in chunks(tensor):
                part = vnode_pb2.InferChunk(id=question, chunk=bytes(chunk))
                await self._call.write(vnode_pb2.InferMessage(chunk=part))

    async def status(self) -> Any:
        """With which the stream ended."""
        return await self._call.code()

    async def ask(self, caller: str, hops: Sequence[vnode_pb2.InferHop], inputs: dict[str, Any], /, **changes: Any) -> bytes:
        """Sends a question; returns its id."""
        encoded = {name: encode(array, "raw") for name, array in inputs.items()}
        return await self._begin(caller, hops, encoded, list(encoded.values()), changes)

    async def begin(self, caller: str, hops: Sequence[vnode_pb2.InferHop], asked: Any, /, **changes: Any) -> bytes:
        """Sends the beginning of a question whose tensor never comes."""
        return await self._begin(caller, hops, {hops[0].vnode: encode(asked, "raw")}, [], changes)

    async def _begin(
        self, caller: str, hops: Sequence[vnode_pb2.InferHop], encoded: dict[str, EncodedTensor], sent: list[EncodedTensor], changes: Any
    ) -> bytes:  # fmt: skip
        request = vnode_pb2.InferRequest(
            id=secrets.token_bytes(16), network_id=NETWORK_ID, model=MODEL, caller=caller, hops=hops, deadline_s=WITHIN_S,
            tensors=[tensor_message(name, tensor.header) for name, tensor in encoded.items()],
        )  # fmt: skip
        for name, value in changes.items():
            setattr(request, name, value)
        self.heard[request.id] = Heard()
        await self.say(vnode_pb2.InferMessage(request=request), sent)
        return request.id

    def expect(self, question: bytes) -> bytes:
        """Also of a question that went over another line."""
        self.heard.setdefault(question, Heard())
        return question

    async def listen(self) -> None:
        while True:
            message = await self._call.read()
            if not isinstance(message, vnode_pb2.InferMessage):
                return
            kind = message.WhichOneof("kind")
            if kind is None:
                continue  # a sign of life
            heard = self.heard.setdefault(getattr(message, kind).id, Heard())
            if kind == "answer":
                answer = message.answer
                heard.answers[answer.vnode] = answer
                one = answer.tensors[0]
                header = TensorHeader(one.dtype, tuple(one.shape), one.codec, one.encoded_bytes, one.digest.hex())
                heard.assemblers[answer.vnode] = TensorAssembler(header)
            elif kind == "chunk":
                vnode, assembler = next(item for item in heard.assemblers.items() if item[1].missing_bytes)
                assembler.add(message.chunk.chunk)
                if not assembler.missing_bytes:
                    heard.values[vnode] = assembler.finite_array()
            else:
                heard.failures.append(message.failure)
            self.news.set()

    async def answer(self, question: bytes, vnode: str, within_s: float = WITHIN_S) -> Any:
        """The readout of that exit."""
        heard = self.heard[question]
        async with asyncio.timeout(within_s):
            while vnode not in heard.values:
                assert not heard.failures, heard.failures
                self.news.clear()
                await self.news.wait()
        return heard.values[vnode]

    async def outcome(self, question: bytes) -> Heard:
        """Once it was answered, or has failed."""
        heard = self.heard[question]
        async with asyncio.timeout(WITHIN_S):
            while not heard.failures and not heard.values:
                self.news.clear()
                await self.news.wait()
        return heard

    async def failure(self, question: bytes, within_s: float = WITHIN_S) -> vnode_pb2.InferFailure:
        """How it failed."""
        heard = self.heard[question]
        async with asyncio.timeout(within_s):
            while not heard.failures:
                self.news.clear()
                await self.news.wait()
        return heard.failures[0]


@asynccontextmanager
async def line(key: NodeKey, end: DaemonEnd, dialer: RelayDialer | None = None) -> AsyncIterator[Line]:
    """A stream to that worker, at its own address or, with a dialer for it, through a relay."""
    direct = Dialer(key, NETWORK_ID, clock=CLOCK, rng=secrets.token_bytes, own_connections=True)
    worker_id = node_id_of(end.hello.public_key)
    connection = await (
        dialer.connect(worker_id, []) if dialer else direct.connect(worker_id, [f"127.0.0.1:{end.hello.data_port}"])
    )
    call: Any = connection.channel.stream_stream(
        "/dcnr.v1.VNodeService/Infer",
        request_serializer=vnode_pb2.InferMessage.SerializeToString,
        response_deserializer=vnode_pb2.InferMessage.FromString,
    )(metadata=connection.metadata)
    made = Line(call)
    listening = asyncio.ensure_future(made.listen())
    try:
        yield made
    finally:
        listening.cancel()
        call.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await connection.close()


async def allow(key: NodeKey, *ends: DaemonEnd) -> None:
    """That orchestrator may ask these workers."""
    for end in ends:
        await end.pipe.send(local_pb2.ToWorker(callers=local_pb2.WorkerCallers(orchestrators=[key.node_id])))


async def lend(end: DaemonEnd, max_bytes: int) -> None:
    """So much may be kept of texts there."""
    await end.pipe.send(local_pb2.ToWorker(caches=local_pb2.WorkerCaches(max_bytes=max_bytes)))


async def seat(end: DaemonEnd, one: Served, *vnodes: str) -> None:
    """These VNodes are served there, and loaded; they may keep something of texts."""
    await lend(end, CACHE_BYTES)
    for vnode in vnodes:
        await end.pipe.send(local_pb2.ToWorker(seat=one.seat(vnode)))
    await end.until(lambda: {vnode for vnode, report in end.seats.items() if report.ready} >= set(vnodes))
