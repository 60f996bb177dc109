"""The serving benchmark's peer: the same stages in one process; prints one JSON line.

``python -m benchmarks.serving_reference THREADS`` reads JSON from standard input: the chain, and either for how many seconds so many samples are computed
together, by nobody else's question, or ``serve``: then it answers the questions of who knows the key that it prints, computed together as they wait, until
standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np

from benchmarks.jobs import SEED, Chain
from dcnr.cli.foreground import run
from dcnr.graph import graph_digest, stages_of_graph
from dcnr.rpc.server import RpcServer
from dcnr.system import SystemClock
from dcnr.v1 import orchestrator_pb2
from trust.identity import NodeKey
from vnode.registry import default_registry
from vnode.torch_compute import TorchCompute
from vnode.torch_stage import initial_state
from vnode.vocabulary import Mode

Answer = Callable[[Any], Any]


def main() -> None:
    """See the module."""
    threads, asked = int(sys.argv[1]), json.loads(sys.stdin.readline())
    chain = Chain(**asked["chain"])
    answer = answerer(chain, threads)
    if "serve" in asked:
        run(serve(answer, chain, asked["serve"]))
    else:
        print(json.dumps({"samples_s": measured(answer, chain, float(asked["seconds"]), int(asked["samples"]))}))


def answerer(chain: Chain, threads: int) -> Answer:
    """Computes the readout of the last stage."""
    registry, graph = default_registry(), chain.graph()
    computes = []
    for stage in stages_of_graph(graph, registry):
        state = initial_state(
            stage, registry, seed=SEED, model=chain.name, graph=graph_digest(graph), num_batches=chain.num_batches
        )
        computes.append(TorchCompute(stage, registry, num_batches=chain.num_batches, seed=SEED, threads=threads))
        computes[-1].serve(state)

    def answer(question: Any) -> Any:
        output = question
        for compute in computes:
            output = compute.forward(0, [output], Mode.INFER).output
        return computes[-1].readout(output).numpy()

    return answer


def measured(answer: Answer, chain: Chain, seconds: float, size: int) -> float:
    """Samples a second, after a tenth of the time as warm-up."""
    question, count = np.random.default_rng(SEED).standard_normal((size, chain.width), dtype=np.float32), 0
    warm_until = time.perf_counter() + seconds / 10
    while time.perf_counter() < warm_until:
        answer(question)
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds or not count:
        answer(question)
        count += 1
    return count * size / (time.perf_counter() - begun)


class Server:
    """Answers `Forward` as an orchestrator does: over the same transport and with the same messages."""

    def __init__(self, answer: Answer, chain: Chain) -> None:
        self._answer, self._most, self._last = answer, chain.batch_size, f"s{chain.num_stages}"
        self._waiting: list[tuple[Any, asyncio.Future[Any]]] = []
        self._news = asyncio.Event()

    async def forward(self, request: orchestrator_pb2.ForwardRequest, _context: Any) -> orchestrator_pb2.ForwardResponse:
        """One question."""
        asked = request.inputs[0]
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((np.frombuffer(asked.data, np.float32).reshape(tuple(asked.shape)), answered))
        self._news.set()
        output = await answered
        tensor = orchestrator_pb2.NamedTensor(vnode=self._last, dtype="float32", shape=output.shape, data=output.tobytes())
        return orchestrator_pb2.ForwardResponse(output=tensor, model=request.model, exit=self._last, deepest=self._last)

    async def work(self) -> None:
        """Computes who waits, as many together as a batch has samples, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting:
                group = [self._waiting.pop(0)]
                room = self._most - len(group[0][0])
                while self._waiting and len(self._waiting[0][0]) <= room:
                    group.append(self._waiting.pop(0))
                    room -= len(group[-1][0])
                output = await asyncio.to_thread(self._answer, np.concatenate([asked for asked, _ in group]))
                ends = np.cumsum([len(asked) for asked, _ in group])
                for (_, answered), part in zip(group, np.split(output, ends[:-1]), strict=True):
                    if not answered.done():
                        answered.set_result(part)


async def serve(answer: Answer, chain: Chain, network_id: str) -> None:
    """Until standard input ends."""
    server, ours = RpcServer(NodeKey.generate(), network_id, clock=SystemClock(), rng=secrets.token_bytes), Server(answer, chain)
    forward = grpc.unary_unary_rpc_method_handler(
        ours.forward,
        request_deserializer=orchestrator_pb2.ForwardRequest.FromString,
        response_serializer=orchestrator_pb2.ForwardResponse.SerializeToString,
    )
    handlers = grpc.method_handlers_generic_handler("dcnr.v1.OrchestratorService", {"Forward": forward})
    server.add(lambda to: to.add_generic_rpc_handlers((handlers,)))
    port = await server.start("127.0.0.1", 0)
    working = asyncio.create_task(ours.work())
    print(json.dumps({"node_id": server.node_id, "address": f"127.0.0.1:{port}"}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    working.cancel()
    await server.stop(0)


if __name__ == "__main__":
    main()
