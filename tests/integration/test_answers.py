"""Goal: a whole network answers questions while it learns and after, as the reference does, from either orchestrator, and through a PNode's SIGKILL;
two of its three PNodes accept no connection, of which one was not told so.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
import signal
import sqlite3
import threading
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from network_rig import MODEL, Rig, dots, running_network

import dcnr.sdk
from dataservice.released import released
from dcnr.errors import DcnrError
from dcnr.graph import stages_of_graph
from dcnr.ids import NodeId
from dcnr.sdk.asking import Answer, Ask, answer_of, request_of
from dcnr.sdk.client import connect_async
from dcnr.settings import GatewaySettings
from dcnr.system import SystemClock
from dcnr.testing import LocalPNode
from dcnr.v1 import identity_pb2, local_pb2, membership_pb2
from dcnr.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from gateway.keys import FILE, KeyFile
from gateway.server import address_of, bound, serve_gateway
from trust.usage import open_usage
from vnode.registry import default_registry
from vnode.torch_compute import TorchCompute
from vnode.vocabulary import Mode

HIDDEN = ("p2", "p3")
"""Nobody can dial these, not even each other. The one says so; the other listens elsewhere than where others see it, as behind a router, and finds out."""
PNODES = (
    LocalPNode("p1", 1.0, 1536, ("--relay-mbit", "50")),
    LocalPNode("p2", 1.0, 1536, ("--outbound-only",)),
    LocalPNode("p3", 1.0, 1024, ("--advertise-host", "127.0.0.1"), host="127.0.0.2"),
)
WIDTH, BATCH = 32, 8
WITHIN_S = 120.0
RESTED_S = 300.0
"""A worker leaves a PNode that relays alone for a minute, then for two, where that one does not know it yet or is slow."""


def test_a_network_answers_while_it_learns_after_it_and_through_a_kill(tmp_path: Path) -> None:
    asked = dots(WIDTH, 64)["test_x"][:BATCH]
    spread = identity_pb2.LOCALITY_SPREAD
    with (
        running_network(PNODES, num_orchestrators=2, width=WIDTH, batch_size=BATCH, locality=spread) as rig,
        rig.client() as client,
    ):
        job = rig.submit("ask", passes=3, checkpoint_s=5.0, batches_per_s=4.0)
        early = until_answered(rig, client, asked, lambda answer: not answer.degraded)
        assert early.exit == rig.vnodes[-1]
        assert early.manifest
        # not that of the head: an orchestrator that reads it now and then may name an older one
        last = rig.ended(job, 240.0).outcome.manifest_digest
        for process in rig.network.pnodes:
            if process.name in HIDDEN:
                helper = rig.network.pnodes[0].node_id
                rig.until(lambda: is_relayed(rig.status(process), helper), "its owner sees how it is reached", RESTED_S)  # noqa: B023  called at once
            else:
                rig.until(lambda: is_tested(rig.status(process)), "an orchestrator dialled it and reached it", WITHIN_S)  # noqa: B023  called at once
        late = until_answered(rig, client, asked, lambda answer: answer.manifest == last and not answer.degraded)
        np.testing.assert_allclose(late.output, reference(rig, asked, last), rtol=1e-5, atol=1e-5)
        for process in rig.network.orchestrators:
            answers = functools.partial(answer_from, rig, process.node_id, asked)  # another's reports may be a few seconds older
            rig.until(lambda: np.allclose(answers(), late.output, rtol=1e-5, atol=1e-5), "it answers with the last state", WITHIN_S)  # noqa: B023  called at once
        np.testing.assert_allclose(answer_over_rest(rig, asked), late.output, rtol=1e-5, atol=1e-5)
        through_a_kill(rig, client, asked, late)
        check_accounts(rig)


def is_relayed(status: local_pb2.StatusResponse | None, helper: str) -> bool:
    """Through both orchestrators, and through the PNode that offers it."""
    return status is not None and status.reachable == "relayed" and len(status.relays) == 3 and helper in status.relays


def is_tested(status: local_pb2.StatusResponse | None) -> bool:
    reached = membership_pb2.REACH_RESULT_REACHED
    return status is not None and status.reachable == "direct" and any(one.data == reached for one in status.tested)


def check_accounts(rig: Rig) -> None:
    """An orchestrator that is told to end writes down whom it answered since the last minute."""
    last = rig.network.orchestrators[-1]
    last.send(signal.SIGTERM)
    rig.until(lambda: not last.alive, "the orchestrator has ended", WITHIN_S)
    with contextlib.closing(sqlite3.connect(last.home / "history.db")) as database:
        rows = database.execute("SELECT statement FROM usage WHERE kind = 'USAGE_KIND_QUESTIONS'").fetchall()
    policy = rig.network.policy
    assert policy is not None
    said = [open_usage(identity_pb2.Envelope.FromString(data), policy.network_id) for (data,) in rows]
    own = [one for one in said if list(one.users) == [rig.key.node_id]]
    assert sum(one.num_answers for one in own) >= 1, "the maintainer's own question"
    assert all(one.num_samples == BATCH * one.num_answers <= one.vnode_samples <= one.num_samples * len(rig.vnodes) for one in own)
    assert all(one.orchestrator == last.node_id for one in said)


def until_answered(rig: Rig, client: dcnr.sdk.Client, asked: Any, good: Any) -> Answer:
    found: list[Answer] = []
    errors: list[str] = []

    def answered() -> bool:
        try:
            found.append(client.forward(asked, Ask(MODEL)))
        except DcnrError as error:
            errors.append(f"{error.code}: {error.message}")
            return False
        return bool(good(found[-1]))

    try:
        rig.until(answered, "the network answers as wanted", WITHIN_S, pause_s=0.3)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{errors[-1:]}\n{found[-1:]}") from None
    return found[-1]


def answer_from(rig: Rig, orchestrator: str, asked: Any) -> Any:
    """That orchestrator's answer."""

    async def answer() -> Any:
        async with await connect_async(rig.network.bootstrap, network=rig.network.network_file, key=rig.key) as client:
            found = dict(client.orchestrators.known())
            connection = await client.orchestrators.connection(NodeId(orchestrator), found[NodeId(orchestrator)])
            stub = OrchestratorServiceStub(connection.channel)
            return answer_of(await connection.call(stub.Forward, request_of(asked, Ask(MODEL)), 40.0)).output

    return asyncio.run(answer())


def answer_over_rest(rig: Rig, asked: Any) -> Any:
    """The answer that a gateway gives to nested lists."""
    home, listening = rig.network.directory / "gateway", bound("127.0.0.1:0")
    clock = SystemClock()
    _, key = KeyFile(home / FILE).add("test", "client", expires=0.0, signed=False, now_wall=clock.wall(), rng=secrets.token_bytes)

    async def answer() -> Any:
        async with (
            await connect_async(rig.network.bootstrap, network=rig.network.network_file) as client,
            httpx.AsyncClient(base_url=f"http://{address_of(listening)}", timeout=60.0) as http,
        ):
            gateway = asyncio.create_task(
                serve_gateway(
                    GatewaySettings(), listening, client.orchestrators, policy=lambda: client.policy, clock=clock, home=home
                )
            )
            body = {"model": MODEL, "inputs": [{"values": asked.tolist()}]}
            found = await http.post("/v1/forward", json=body, headers={"Authorization": f"Bearer {key}"})
            gateway.cancel()
            await asyncio.gather(gateway, return_exceptions=True)
        return found.json()["output"]["values"]

    try:
        return asyncio.run(answer())
    finally:
        listening.close()


def reference(rig: Rig, asked: Any, digest: str) -> Any:
    """The released states of that manifest, in this process."""

    async def states() -> tuple[Any, dict[str, bytes]]:
        async with await connect_async(rig.network.bootstrap, network=rig.network.network_file, key=rig.key) as client:
            _, manifest = await client.manifest(MODEL, digest)
            graph = await client.graph(manifest.graph_digest)
            return graph, {vnode: await client.state(MODEL, item) for vnode, item in released(manifest).items()}

    graph, found = asyncio.run(states())
    output = asked
    for stage in stages_of_graph(graph, default_registry()):
        compute = TorchCompute(stage, default_registry(), num_batches=1, seed=1, threads=1)
        path = rig.network.directory / f"{stage.id}.reference"
        path.write_bytes(found[stage.id])
        compute.serve(path)
        output = compute.forward(0, [output], Mode.INFER).output
    return compute.readout(output).numpy()


def through_a_kill(rig: Rig, client: dcnr.sdk.Client, asked: Any, wanted: Answer) -> None:
    """Questions without a pause while one PNode that serves is killed: each of them is answered, and rightly."""
    victim = next(process for process in rig.network.pnodes if process.node_id == wanted.stages[0].pnode_id)
    answers: list[Answer] = []
    over = threading.Event()
    errors: list[DcnrError] = []

    def ask() -> None:
        while not over.is_set():
            try:
                answers.append(client.forward(asked, Ask(MODEL, full_depth=True)))
            except DcnrError as error:
                errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        rig.until(lambda: len(answers) >= 20, "questions are answered", WITHIN_S)
        rig.network.kill(victim)
        after = len(answers)
        rig.until(lambda: len(answers) >= after + 20, "questions are answered after the kill", WITHIN_S)
    finally:
        over.set()
        for thread in threads:
            thread.join(WITHIN_S)
    assert errors == []
    hidden = {process.node_id for process in rig.network.pnodes if process.name in HIDDEN}
    assert any(stage.pnode_id in hidden for answer in (wanted, *answers) for stage in answer.stages), (
        "machines that nobody can dial have a part in it"
    )
    for answer in answers:
        np.testing.assert_allclose(answer.output, wanted.output, rtol=1e-5, atol=1e-5)
