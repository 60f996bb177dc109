"""Goal: what the gateway shows is what the orchestrator says, in the described form, to whoever may read it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from gateway_rig import MODEL, Town, town
from orchestrator_parts import VNODES
from service_rig import CLOCK

from dcnr.client import Orchestrators
from dcnr.ledger_check import Account
from dcnr.rpc.dialer import Dialer
from dcnr.settings import GatewaySettings
from dcnr.v1 import orchestrator_pb2
from dcnr.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from gateway.reading import account_row
from gateway.witnesses import ask_one

JOB = "job-1"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """A network with a job at work."""
    directory: Path = tmp_path_factory.mktemp("town")
    with town(directory, GatewaySettings(public_requests_per_s=1e5)) as made:
        envelope = made.staged(JOB)
        made.run(submitted(made, envelope.SerializeToString()))
        with made.client() as client:
            made.until(
                lambda: len(client.get(f"/v1/jobs/{JOB}").json().get("vnodes", ())) == 2 and at_work(client), "the job is at work"
            )
        yield made


async def submitted(here: Town, envelope: bytes) -> None:
    from service_rig import dial

    key, address = here.orchestrator
    link = await dial(here.maintainer, here.policy, key, address)
    try:
        request = orchestrator_pb2.SubmitJobRequest()
        request.request.ParseFromString(envelope)
        await link.call(OrchestratorServiceStub(link.channel).SubmitJob, request, timeout_s=30)
    finally:
        await link.close()


def at_work(client: httpx.Client) -> bool:
    job = client.get(f"/v1/jobs/{JOB}").json()
    return all("report" in vnode for vnode in job["vnodes"])


def test_every_orchestrator_is_asked_and_silence_is_told(here: Town) -> None:
    with here.client() as client:
        (row,) = client.get("/v1/orchestrators").json()["orchestrators"]
        assert row["answers"]
        assert row["node_id"] == row["holder"] == here.orchestrator[0].node_id
        assert row["epoch"] >= 1
    gone = orchestrator_pb2.NodeView(node_id="ab" * 20, address="127.0.0.1:1", software="0.1.0")
    row = here.run(asked_alone(here, gone))
    assert not row["answers"]
    assert row["reason"]


async def asked_alone(here: Town, node: orchestrator_pb2.NodeView) -> dict[str, object]:
    orchestrators = Orchestrators(Dialer(here.maintainer, here.policy.network_id, clock=CLOCK, rng=secrets.token_bytes), lambda: [])
    try:
        return await ask_one(orchestrators, node)
    finally:
        await orchestrators.close()


def test_the_dashboard_comes_through_the_gate(here: Town) -> None:
    with here.client() as client:
        page, module = client.get("/"), client.get("/dashboard/main.js")
        assert page.headers["content-type"].startswith("text/html")
        assert "script-src 'self'" in page.headers["content-security-policy"]
        assert module.headers["content-type"].startswith("text/javascript")
        assert module.headers["x-content-type-options"] == "nosniff"
        assert client.get("/dashboard/nothing.js").json()["error"]["code"] == "NOT_FOUND"


def test_nodes_jobs_and_model_are_shown(here: Town) -> None:
    with here.client() as client:
        nodes = client.get("/v1/nodes").json()
        pnodes = {node["node_id"]: node for node in nodes["nodes"] if node["kind"] == "NODE_KIND_PNODE"}
        assert set(pnodes) == {worker.node_id for worker in here.workers}
        assert all(node["attached"] and isinstance(node["free_memory_bytes"], int) for node in pnodes.values())
        one = client.get(f"/v1/nodes/{here.workers[0].node_id}").json()
        assert one["node"]["node_id"] == here.workers[0].node_id
        assert one["explanations"]
        jobs = client.get("/v1/jobs").json()
        assert [(job["job_id"], job["model"], job["vnodes"]) for job in jobs["jobs"]] == [(JOB, MODEL, [])]
        job = client.get(f"/v1/jobs/{JOB}").json()
        assert [vnode["vnode"] for vnode in job["vnodes"]] == list(VNODES)
        model = client.get("/v1/model").json()
        assert (model["head"]["model"], model["graph"]["name"]) == (MODEL, MODEL)
        placement = client.get("/v1/model/placement").json()
        assert {item["vnode"] for item in placement["plan"]["assignments"]} == set(VNODES)
        assert placement["plan_digest"] == job["plan_digest"]
        manifest = client.get("/v1/model/checkpoints").json()
        assert [entry["vnode"] for entry in manifest["manifest"]["entries"]] == list(VNODES)
        curves = client.get("/v1/model/metrics").json()
        assert [row["vnode"] for row in curves["vnodes"]] == list(VNODES)
        lines = client.get("/v1/explain", params={"vnode": "first"}).json()["explanations"]
        assert any(line["verdict"] == "placed" for line in lines)


def test_the_ledger_is_read_from_the_chain(here: Town) -> None:
    """This network audits nothing, so nobody is credited; an account has the form that the command gives."""
    with here.client() as client:
        ledger = client.get("/v1/ledger").json()
        digest = client.get("/v1/model/checkpoints").json()["manifest_digest"]
        refused = client.get(f"/v1/ledger/receipts/{'ab' * 20}")
        assert (refused.status_code, refused.json()["error"]["details"]["reason"]) == (404, "no_ledger")
        assert client.get("/v1/ledger/receipts/somebody").status_code == 400
    assert ledger == {"manifest_digest": digest, "audited": False, "problem": "", "accounts": []}
    row = account_row(Account("p", cleared=3, num_passed=2, passes=1.5, credibility=0.5))
    assert row == {
        "pnode": "p", "cleared": 3, "waiting": 0, "taken_back": 0, "passed": 2, "failed": 0, "passes": 1.5, "credibility": 0.5,
    }  # fmt: skip


def test_a_question_goes_through_to_the_orchestrator(here: Town) -> None:
    """Nobody serves here, so what comes back is what the real orchestrator says of the question."""
    with here.client(here.town_key) as client:

        def ask(values: list[object], **more: object) -> tuple[int, str, str]:
            body = client.post("/v1/forward", json={"inputs": [{"values": values}], "model": MODEL, **more})
            error = body.json()["error"]
            return body.status_code, error["code"], error["details"]["reason"]

        assert ask([[0.5] * 8]) == (404, "MODEL_NOT_FOUND", "not_trained")
        assert ask([[0.5] * 8], model="none") == (404, "MODEL_NOT_FOUND", "no_such_model")
    with here.client() as stranger:
        assert stranger.post("/v1/forward", json={"inputs": [{"values": [[1.0]]}]}).status_code == 401


def test_figures(here: Town) -> None:
    with here.client() as client:
        stats = client.get("/v1/stats").json()
        assert sum(stats["nodes_by_state"].values()) == len(here.workers)
        assert (stats["num_attached"], stats["num_orchestrators"], stats["holder"]) == (2, 1, here.orchestrator[0].node_id)
        assert stats["network_id"] == here.policy.network_id
        assert stats["store_ok"]
        [training] = stats["training"]
        assert (training["job_id"], training["state"]) == (JOB, "JOB_STATE_RUNNING")
        assert stats["request_seconds"]["count"] > 0
        events = client.get("/v1/log").json()
        assert "job_accepted" in {event["kind"] for event in events["events"]}
        metrics = client.get("/metrics").text
        assert f'dcnr_job_batches{{job="{JOB}",model="{MODEL}"}} 12.0' in metrics
        assert 'dcnr_gateway_requests_total{method="GET",route="/v1/stats",status="200"}' in metrics
        assert client.get("/readyz").json() == {"status": "ready", "orchestrator": here.orchestrator[0].node_id}
        assert client.get("/healthz").json() == {"status": "ok"}
        assert client.get("/version").json()["network_id"] == here.policy.network_id
