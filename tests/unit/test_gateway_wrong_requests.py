"""Goal: a request that is wrong is told where and why, in names that its sender knows, before anybody of the network is asked."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from gateway.app import create_routes, nobody


def asked(method: str, path: str, body: str | bytes = b"") -> httpx.Response:
    """What a gateway without a network answers."""

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(create_routes(nobody()))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.request(method, path, content=body, headers={"Content-Type": "application/json"})

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("path", "body", "where", "cause"),
    [
        ("/v1/forward", "[" * 100_000, "body", "nested too deep"),
        ("/v1/forward", '{"inputs": [], "inputs": []}', "body", "twice"),
        ("/v1/forward", '{"inputs": [{"values": [NaN]}]}', "body", "NaN"),
        ("/v1/forward", '{"inputs": ', "body", "character 11"),
        ("/v1/forward", b'{"\xff": 1}', "body", "UTF-8"),
        ("/v1/forward", "1" * 10_000, "body", "digits"),
        ("/v1/forward", '{"input": []}', "body.inputs", "required"),
        ("/v1/forward", '{"inputs": [{"values": [1], "shap": 1}]}', "body.inputs.0.shap", "not permitted"),
        ("/v1/completions", '{"prompt": 1}', "body.prompt", "valid string; or: "),
        ("/v1/completions", '{"prompt": [1]}', "body.prompt", "valid string"),
        ("/v1/jobs", '{"envelope": 1}', "body.envelope", "valid string; or: "),
    ],
    ids=lambda value: repr(value)[:40],
)  # fmt: skip
def test_a_wrong_body_is_told_where_and_why_in_names_that_its_sender_knows(
    path: str, body: str | bytes, where: str, cause: str
) -> None:
    answer = asked("POST", path, body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "INVALID_PAYLOAD")
    assert error["details"] == {"where": where, "reason": "invalid_request"}
    assert error["message"].startswith(f"{where}: ")
    assert cause in error["message"]
    assert "constrained" not in error["message"]


@pytest.mark.parametrize(
    ("path", "where", "known"),
    [
        ("/v1/nodes?limits=2", "query.limits", "limit"),
        ("/v1/model/metrics?job=x", "query.job", "model"),
        ("/v1/models?limit=2", "query.limit", "none"),
        ("/v1/events?last_event_id=1", "query.last_event_id", "none"),
    ],
)
def test_a_name_that_the_query_does_not_take_is_refused(path: str, where: str, known: str) -> None:
    answer = asked("GET", path)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "INVALID_PAYLOAD")
    assert error["details"] == {"where": where, "reason": "invalid_request"}
    assert known in error["message"]
    assert asked("GET", "/openapi.json").status_code == 200
