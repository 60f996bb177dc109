"""Goal: clients that ask for much, read slowly or go away cost the gateway a bounded time and room, and nobody else anything."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import resource
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gateway_rig import Town, code_of, rest_of, town

from dcnr.open_files import WANTED, let_open
from dcnr.settings import GatewaySettings
from dcnr.v1 import orchestrator_pb2
from gateway.server import MAX_CONNECTIONS, room
from gateway.views import Views

FREE = GatewaySettings(public_requests_per_s=1e5, requests_per_s=1e5)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    directory: Path = tmp_path_factory.mktemp("town")
    with town(directory, FREE) as made:
        yield made


def large(num_bytes: int) -> orchestrator_pb2.ForwardResponse:
    answered = orchestrator_pb2.ForwardResponse(model="toy", exit="top")
    answered.output.dtype, answered.output.data = "uint8", bytes(num_bytes)
    answered.output.shape.append(num_bytes)
    return answered


def test_large_answers_are_fetched_by_who_asked_and_nobody_waits_for_who_does_not_read(
    here: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forward(views: Views, request: orchestrator_pb2.ForwardRequest) -> orchestrator_pb2.ForwardResponse:
        return large(7 << 20 if request.exit else 1 << 20)

    monkeypatch.setattr(Views, "forward", forward)
    question = {"inputs": [{"values": [1]}]}
    with here.client(here.town_key) as client:
        told = client.post("/v1/forward", json=question).json()
        assert ("output_ref" in told, len(told["output"]["values"])) == (False, 1 << 20)
        told = client.post("/v1/forward", json={**question, "exit": "top"}).json()
        assert (told["output"]["data"], told["output"]["shape"], "values" in told["output"]) == ("", [7 << 20], False)
        reference = told["output_ref"]
        answer = client.get(reference["href"])
        assert (answer.headers["content-type"], answer.content) == ("application/octet-stream", bytes(7 << 20))
        assert hashlib.sha256(answer.content).hexdigest() == reference["sha256"]
        assert code_of(client.get("/v1/results/" + "0" * 32)) == (404, "NOT_FOUND")
        assert code_of(client.get("/v1/results/x")) == (400, "INVALID_PAYLOAD")
    with here.client(here.key()) as client:
        assert code_of(client.get(reference["href"])) == (404, "NOT_FOUND"), "made for another key"
    with here.client() as client:
        assert code_of(client.get(reference["href"])) == (401, "UNAUTHORIZED_KEY")
    monkeypatch.setattr("gateway.gate.STALLED_S", 0.3)
    head = f"GET {reference['href']} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {here.town_key}\r\n\r\n"
    with slow_reader(here) as connection:
        connection.sendall(head.encode())
        here.until(lambda: in_flight(here) == 1, "it is cut off")
        with contextlib.suppress(ConnectionResetError):
            assert len(rest_of(connection)) < 7 << 20


@contextlib.contextmanager
def slow_reader(here: Town) -> Iterator[socket.socket]:
    """A connection that takes a few kilobytes by itself, and no more until it is read."""
    host, _, port = here.url.removeprefix("http://").rpartition(":")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(30)
        connection.connect((host, int(port)))
        yield connection


def in_flight(here: Town) -> float:
    """Requests that are open, with the one that asks."""
    with here.client() as client:
        [line] = [line for line in client.get("/metrics").text.splitlines() if line.startswith("dcnr_gateway_in_flight ")]
    return float(line.split()[1])


@pytest.mark.parametrize("path", ["/v1/forward", "/v1/completions"])
def test_work_for_a_client_that_goes_away_ends(here: Town, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def endless() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def forward(views: Views, request: Any) -> None:
        await endless()

    async def generate(views: Views, request: Any) -> Any:
        await endless()
        yield

    monkeypatch.setattr(Views, "forward", forward)
    monkeypatch.setattr(Views, "generate", generate)
    body = json.dumps({"inputs": [{"values": [1]}]} if path == "/v1/forward" else {"prompt": "a"})
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {here.town_key}\r\nContent-Type: application/json\r\n"
    with slow_reader(here) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        assert begun.wait(30)
        assert not ended.is_set()
    assert ended.wait(30)
    here.until(lambda: in_flight(here) == 1, "nothing is open any more")


async def flooded(here: Town, num: int, room: int) -> Counter[tuple[int, str]]:
    """What so many connections that are open side by side are answered with: those for which the server has ``room`` wish for a text, the others hear why they
    are turned away before they have said anything.
    """
    host, _, port = here.url.removeprefix("http://").rpartition(":")
    body = '{"prompt": "a"}'
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {here.town_key}\r\nContent-Type: application/json\r\n"
    answers: Counter[tuple[int, str]] = Counter()
    heard = asyncio.Event()

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        told = await reader.read()
        writer.close()
        answers[int(told.split()[1]), json.loads(told.partition(b"\r\n\r\n")[2])["error"]["code"]] += 1
        heard.set()

    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        opened = await asyncio.gather(*(asyncio.open_connection(host, int(port)) for _ in range(num)))
        asking = [(group.create_task(ask(reader, writer)), writer) for reader, writer in opened]
        while answers.total() < num - room:
            heard.clear()
            await heard.wait()
        for _, writer in ((task, writer) for task, writer in asking if not task.done()):
            writer.write(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    return answers


def test_a_flood_of_wishes_is_answered_and_leaves_nothing_behind(here: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.server.MAX_CONNECTIONS", 100)
    _ = here.town_key
    here.until(lambda: in_flight(here) == 1, "nothing else is open")
    answers = asyncio.run(flooded(here, 400, 100))
    assert answers == {(404, "MODEL_NOT_FOUND"): 100, (503, "TOO_MANY_CONNECTIONS"): 300}
    here.until(lambda: in_flight(here) == 1, "nothing is open any more")


def test_room_is_left_for_what_else_the_process_does(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1024, 1 << 20]
    monkeypatch.setattr("resource.getrlimit", lambda kind: tuple(now))
    monkeypatch.setattr("resource.setrlimit", lambda kind, limits: now.__setitem__(slice(0, 2), limits))
    assert room() == 512
    let_open()
    assert (now, room()) == ([WANTED, 1 << 20], MAX_CONNECTIONS)
    now[:] = [256, resource.RLIM_INFINITY]
    let_open()
    let_open()
    assert now == [WANTED, resource.RLIM_INFINITY]
    now[:] = [256, 256]
    let_open()
    assert (now, room()) == ([256, 256], 128)
    now[:] = [2 * WANTED, 1 << 20]
    let_open()
    assert now == [2 * WANTED, 1 << 20], "what is above it stays"
