"""Goal: no input, however wrong, gets more than one of the listed errors: sizes, encodings, methods, paths, half requests, and what a fuzzer finds."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest
import schemathesis
from gateway_rig import Town, code_of, rest_of, town
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance

from dcnr.settings import GatewaySettings
from gateway.errors import CODES
from gateway.gate import MAX_BODY_BYTES, MAX_HEADERS, MAX_URL_BYTES

FREE = GatewaySettings(public_requests_per_s=1e5, requests_per_s=1e5)
EXAMPLES = 6
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    directory: Path = tmp_path_factory.mktemp("town")
    with town(directory, FREE) as made:
        yield made


def raw(here: Town, data: bytes) -> tuple[int, dict[str, Any]]:
    """Status and body of what is answered to these bytes."""
    host, _, port = here.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(data)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        return answer.status, json.loads(answer.read())


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "NOT_FOUND"),
        ("GET", "/v1/nodes/x", 400, "INVALID_PAYLOAD"),
        ("GET", "/v1/nodes/" + "0" * 40, 404, "NODE_NOT_FOUND"),
        ("GET", "/v1/jobs/none", 404, "JOB_NOT_FOUND"),
        ("GET", "/v1/jobs/NONE", 400, "INVALID_PAYLOAD"),
        ("GET", "/v1/jobs/none/result", 404, "JOB_NOT_FOUND"),
        ("GET", "/v1/jobs/none/events", 404, "JOB_NOT_FOUND"),
        ("GET", "/v1/model?model=none", 404, "MODEL_NOT_FOUND"),
        ("GET", "/v1/model?model=../x", 400, "INVALID_PAYLOAD"),
        ("GET", "/v1/nodes?limit=0", 400, "INVALID_PAYLOAD"),
        ("GET", "/v1/nodes?limit=x", 400, "INVALID_PAYLOAD"),
        ("GET", "/v1/nodes?cursor=x", 400, "INVALID_PAYLOAD"),
        ("GET", "/v1/nodes?cursor=%F0%9F%98%80", 400, "INVALID_PAYLOAD"),
        ("GET", "/v1/nodes?state=HAPPY", 400, "INVALID_PAYLOAD"),
        ("GET", "/v1/nodes?limits=2", 400, "INVALID_PAYLOAD"),
        ("GET", "/v1/model/metrics?job=x", 400, "INVALID_PAYLOAD"),
        ("GET", "/v1/events?since=1", 400, "INVALID_PAYLOAD"),
        ("GET", "/v1/models?limit=2", 400, "INVALID_PAYLOAD"),
        ("GET", "/v1/models/none", 404, "MODEL_NOT_FOUND"),
        ("GET", "/v1/models/NONE", 400, "INVALID_PAYLOAD"),
        ("GET", "/v1/explain?batch=-1", 400, "INVALID_PAYLOAD"),
        ("GET", "/v1/explain?batch=99999999999999999999", 400, "INVALID_PAYLOAD"),
        ("GET", "/v1/explain?vnode=A", 400, "INVALID_PAYLOAD"),
        ("GET", "/v1/jobs/%00", 400, "INVALID_PAYLOAD"),
        ("GET", "/v1/jobs/..%2F..%2Fetc", 404, "NOT_FOUND"),
        ("GET", "/v1/" + "a" * MAX_URL_BYTES, 414, "URL_TOO_LONG"),
        ("GET", "/v1/stats?" + "&".join("a" * 33), 400, "INVALID_PAYLOAD"),
        ("PUT", "/v1/jobs", 405, "METHOD_NOT_ALLOWED"),
        ("DELETE", "/v1/jobs/none", 405, "METHOD_NOT_ALLOWED"),
        ("POST", "/v1/stats", 405, "METHOD_NOT_ALLOWED"),
        ("BREW", "/v1/stats", 405, "METHOD_NOT_ALLOWED"),
        ("OPTIONS", "/v1/stats", 405, "METHOD_NOT_ALLOWED"),
        ("HEAD", "/v1/stats", 405, "METHOD_NOT_ALLOWED"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_wrong_paths_queries_and_methods(here: Town, method: str, path: str, status: int, code: str) -> None:
    with here.client(here.town_key) as client:
        answer = client.request(method, path)
    assert answer.status_code == status
    if method != "HEAD":
        assert code_of(answer) == (status, code)
    if status == 405:
        assert answer.headers["Allow"]


def test_bodies_are_bounded_and_json(here: Town) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 65536 + 2):
            yield bytes(65536)

    kind = {"Content-Type": "application/json"}
    with here.client(here.town_key) as client:
        assert code_of(client.post("/v1/jobs", content=b"x" * (MAX_BODY_BYTES + 1), headers=kind)) == (413, "BODY_TOO_LARGE")
    with (
        here.client(here.town_key) as client,
        contextlib.suppress(httpx.WriteError),
    ):  # where the connection is closed before the body is out
        assert code_of(client.post("/v1/jobs", content=endless(), headers=kind)) == (413, "BODY_TOO_LARGE")
    with here.client(here.town_key) as client:
        for wrong in ("text/plain", "application/json; charset=latin-1", "multipart/form-data", "", "application/jsonx"):
            assert code_of(client.post("/v1/jobs", content=b"{}", headers={"Content-Type": wrong})) == (
                415,
                "UNSUPPORTED_MEDIA_TYPE",
            )
        for right in ("application/json", 'Application/JSON; charset="UTF-8"'):
            assert code_of(client.post("/v1/jobs", content=b"{}", headers={"Content-Type": right})) == (400, "INVALID_PAYLOAD")
        answer = client.post("/v1/jobs", content=b"{}", headers={**kind, "Content-Encoding": "gzip"})
        assert code_of(answer) == (415, "UNSUPPORTED_MEDIA_TYPE")
        many = [("X-H", "1")] * (MAX_HEADERS + 1)
        assert code_of(client.get("/v1/stats", headers=many)) == (431, "HEADERS_TOO_LARGE")


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET /\x01 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * 40_000 + b"\r\n\r\n", b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: x\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", b"GET / HTTP/1.1\r\nHost : 127.0.0.1\r\n\r\n",
    ],
    ids=lambda data: repr(data[:40]),
)  # fmt: skip
def test_what_is_no_http_is_told_so(here: Town, data: bytes) -> None:
    status, body = raw(here, data)
    assert 400 <= status < 500
    assert body["error"]["code"] in CODES


def test_slow_and_silent_clients_are_not_waited_for(here: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that does not come is answered; a connection on which no request comes is closed, also after one that was answered."""
    monkeypatch.setattr("gateway.gate.BODY_TIMEOUT_S", 0.2)
    status, body = raw(
        here,
        f"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {here.town_key}\r\nContent-Length: 9\r\n\r\n{{".encode(),
    )
    assert (status, body["error"]["code"]) == (504, "TIMED_OUT")
    monkeypatch.setattr("gateway.server.SILENT_S", 0.3)
    host, _, port = here.url.removeprefix("http://").rpartition(":")
    for sent in (b"", b"GET /heal", b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /he"):
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(sent)
            rest_of(connection)


def test_every_answer_has_the_headers_that_keep_browsers_careful(here: Town) -> None:
    with here.client() as client:
        for answer in (client.get("/v1/stats"), client.get("/nothing"), client.post("/v1/jobs"), client.get("/metrics")):
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            assert answer.headers["Cache-Control"] == "no-store"
            assert len(answer.headers["X-Request-Id"]) == 16
            assert "server" not in answer.headers


SURROGATE = chr(92) + "ud800"


@pytest.mark.parametrize(
    "body",
    ["[" * 200_000, '{"a":' * 100_000, "NaN", '{"inputs": [{"values": [NaN]}]}', '{"inputs": [{"values": [Infinity]}]}', "1" * 10_000,
     '{"inputs": [{"values": [1]}], "inputs": [{"values": [1]}]}', f'{{"{SURROGATE}": 1}}', f'{{"inputs": [{{"values": [1], "vnode": "{SURROGATE}"}}]}}',
     f'{{"inputs": [{{"values": [1]}}], "exit": "{SURROGATE}"}}', f'{{"inputs": [{{"values": ["{SURROGATE}"]}}]}}', '{"inputs": [{"values": [1e999]}]}',
     '{"inputs": [{"values": [1]}], "deadline_s": 1e999}', '{"inputs": [{"values": [1]}], "deadline_s": -0.0}', '{"inputs": [{"data": "", "shape": [-1]}]}',
     '{"inputs": [{"values": [' + "9" * 400 + "]}]}", '{"inputs": [{"values": [1]}], "redundancy": 1e300}',
     '{"inputs": {"0": 1}}', '"', "\x00", "\ufeff{}", "null"],
    ids=lambda body: repr(body[-40:]),
)  # fmt: skip
def test_no_text_in_a_body_is_a_fault_of_ours(here: Town, body: str) -> None:
    with here.client(here.town_key, headers={"Content-Type": "application/json"}) as client:
        for path in ("/v1/forward", "/v1/jobs", "/v1/completions", "/v1/chat/completions"):
            assert code_of(client.post(path, content=body.encode())) == (400, "INVALID_PAYLOAD"), path
        assert client.get("/healthz").status_code == 200


def test_numbers_of_any_size_in_a_wish_for_a_text(here: Town) -> None:
    with here.client(here.town_key) as client:
        for name, value in (
            ("max_tokens", 10**30), ("max_tokens", -1), ("max_tokens", 1.5), ("seed", 2**64), ("seed", -1), ("temperature", 1e308),
            ("top_p", -1e-300), ("n", 10_000),
            ("prompt", ["a"] * 10_000), ("prompt", "x" * (1 << 17)), ("prompt", ""), ("stop", ["a"] * 99),
            ("stop", ""), ("deadline_s", 1e9), ("stream", "maybe"),
        ):  # fmt: skip
            answer = client.post("/v1/completions", json={"prompt": "a", name: value})
            assert code_of(answer) == (400, "INVALID_PAYLOAD"), (name, answer.text)
        body = f'{{"prompt": "{SURROGATE}", "stream": true}}'
        assert code_of(client.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})) == (
            400,
            "INVALID_PAYLOAD",
        )
        assert client.post("/v1/completions", json={"prompt": "\x00", "stream": True}).status_code == 404, "nothing is trained yet"


@pytest.mark.parametrize(
    "path", ["/dashboard/../keys.py", "/dashboard/%2e%2e/keys.py", "/dashboard/..%2fkeys.py", "/dashboard//etc/passwd", "/dashboard/%00",
             "/dashboard/main.js%00.css",
             "/dashboard/panels/../../keys.py", "/dashboard/..%5ckeys.py", "//etc/passwd", "/dashboard/vendor/", "/../../etc/passwd", "/%2e%2e/etc/passwd"]
)  # fmt: skip
def test_no_path_leads_out_of_the_dashboard(here: Town, path: str) -> None:
    status, body = raw(here, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    assert (status, body["error"]["code"]) in ((404, "NOT_FOUND"), (400, "INVALID_PAYLOAD"))


class Log:
    """Keeps what is logged as an error."""

    def __init__(self, lines: list[tuple[str, str]]) -> None:
        self._lines = lines

    def error(self, event: str, *, request: str, exc_info: Exception) -> None:
        assert isinstance(exc_info, RuntimeError)
        self._lines.append((event, request))


def test_a_fault_of_ours_tells_nothing_of_our_insides(here: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any) -> None:
        raise RuntimeError("a secret of our insides")

    monkeypatch.setattr("gateway.views.Views.nodes", broken)
    monkeypatch.setattr("gateway.gate._log", Log(logged := []))
    with here.client() as client:
        answer = client.get("/v1/nodes")
        here.until(lambda: bool(logged), "it is logged")
    assert logged == [("request_failed", answer.headers["X-Request-Id"])]
    assert code_of(answer) == (500, "INTERNAL")
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text


def test_a_connection_that_breaks_under_a_question_is_told(here: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """As gRPC says it of a call whose channel somebody else has closed."""

    async def broken(*_: Any) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr("gateway.views.Views.forward", broken)
    monkeypatch.setattr("gateway.views.Views.nodes", broken)
    with here.client(here.town_key) as client:
        for answer in (client.post("/v1/forward", json={"inputs": [{"values": [1]}]}), client.get("/v1/nodes")):
            assert code_of(answer) == (503, "UNAVAILABLE")
            assert answer.headers["Retry-After"]


def test_without_an_orchestrator_the_gateway_says_so(here: Town, tmp_path: Path) -> None:
    key, address = here.orchestrator
    here.orchestrator = (key, "127.0.0.1:1")
    try:
        with here.another(FREE, tmp_path) as url, httpx.Client(base_url=url, timeout=30.0) as client:
            assert code_of(client.get("/v1/stats")) == (503, "UNAVAILABLE")
            assert code_of(client.get("/readyz")) == (503, "UNAVAILABLE")
            assert client.get("/readyz").headers["Retry-After"]
            assert client.get("/healthz").status_code == 200
            assert "dcnr_gateway_network_up 0.0" in client.get("/metrics").text
    finally:
        here.orchestrator = (key, address)


def test_what_a_fuzzer_finds(here: Town) -> None:
    """Every route with made-up requests of the described form and of others: what comes back is described, and never a fault of ours."""
    admin = here.key("admin")
    schema = schemathesis.openapi.from_url(f"{here.url}/openapi.json")
    tried = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path.endswith("/events"):
            continue
        tried += 1

        @hypothesis.settings(
            max_examples=EXAMPLES,
            derandomize=True,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=operation.as_strategy())
        def attack(case: Any) -> None:
            answer = case.call(headers={"Authorization": f"Bearer {admin}"})
            case.validate_response(answer, checks=CHECKS)

        attack()
    assert tried > 10
