"""The gateway alone in its process before a real orchestrator: many clients reading, many watching, submissions, and twins of one submission."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.jobs import Chain
from benchmarks.network import BenchNetwork, running
from benchmarks.result import Options, Result, Row, Target, largest, median_of, rounded
from dcnr.ids import job_id_of
from dcnr.sdk.submission import JobOptions
from dcnr.testing import clean_environment
from dcnr.v1 import identity_pb2, model_pb2
from gateway.keys import FILE, KeyFile
from gateway.stats import quantile
from trust.envelope import seal, text_of_envelope

READERS: Final = 200
WATCHERS: Final = 1000
TWINS: Final = 1000
JOBS: Final = 100
READ_S: Final = 10.0
START_S: Final = 60.0
_AS_OF: Final = re.compile(rb'data: {"as_of_unix_ms":(\d+)')
PATHS: Final = ("/v1/stats", "/v1/jobs?limit=10", "/v1/nodes?limit=10", "/version")
CHAIN: Final = Chain("rest", num_stages=2, width=16, batch_size=16, samples=64, passes=1)
UNBOUND: Final = {
    "DCNR_GATEWAY_REQUESTS_PER_S": "1000000",
    "DCNR_GATEWAY_PUBLIC_REQUESTS_PER_S": "1000000",
    "DCNR_GATEWAY_MAX_WATCHERS": "5000",
}
"""The rates would be what is measured."""


def run(options: Options) -> Result:
    """A fresh network and gateway per round."""
    sizes = (20, 50, 50, 5, 1.0) if options.quick else (READERS, WATCHERS, TWINS, JOBS, READ_S)
    settings = {
        "readers": sizes[0],
        "watchers": sizes[1],
        "twins": sizes[2],
        "jobs": sizes[3],
        "read_s": sizes[4],
        "paths": list(PATHS),
    }
    result = Result("gateway", "REST under load", {**settings, "rounds": options.rounds})
    for number in range(options.rounds):
        result.rounds.append({"round": number, **asyncio.run(measure(*sizes))})
    conclude(result)
    return result


async def measure(readers: int, watchers: int, twins: int, jobs: int, read_s: float) -> Row:
    """One round's figures."""
    async with running((), num_orchestrators=1) as ours, served(ours) as (host, port, key):
        envelopes = await prepared(ours, jobs + 1)
        row = await read_by(host, port, readers, read_s)
        row |= await submitted(host, port, key, envelopes[1:])
        row |= await twinned(host, port, key, envelopes[0], twins, readers)
        row |= await watched(host, port, watchers, read_s)
    return row


def conclude(result: Result) -> None:
    """Medians and targets from the rounds alone."""
    rows = result.rounds
    for key in (
        "reads_per_s",
        "read_p50_ms",
        "read_p99_ms",
        "submit_p50_ms",
        "submit_p99_ms",
        "twins_s",
        "watch_open_s",
        "watch_spread_ms",
    ):
        result.medians[key] = rounded(median_of(rows, key), 2)
    result.medians["errors"] = largest(row["errors"] for row in rows)
    result.targets = [
        Target("reads of small answers", median_of(rows, "reads_per_s"), 500.0, "requests/s", at_least=True),
        Target("wrong answers to readers", largest(row["errors"] for row in rows), 0.0, "answers", at_least=False),
        Target("submission, p99", median_of(rows, "submit_p99_ms"), 250.0, "ms", at_least=False),
        Target("jobs of all twins", largest(row["twin_jobs"] for row in rows), 1.0, "jobs", at_least=False),
        Target("watchers without news", largest(row["watchers_without"] for row in rows), 0.0, "watchers", at_least=False),
    ]  # fmt: skip


@asynccontextmanager
async def served(ours: BenchNetwork) -> AsyncIterator[tuple[str, int, str]]:
    """Host, port and a key of a gateway before that network."""
    home = ours.network.directory / "gateway"
    _, key = KeyFile(home / FILE).add("bench", "client", expires=0.0, signed=False, now_wall=time.time(), rng=secrets.token_bytes)
    log = home / "log"
    command = [sys.executable, "-m", "dcnr.cli.dcnr", "gateway", "start", "--home", str(home), "--listen", "127.0.0.1:0"]
    command += ["--bootstrap", ours.network.bootstrap[0], "--until-stdin-closes"]
    with log.open("wb") as file:
        environment = {**clean_environment(os.environ), **UNBOUND}
        process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=file, stderr=file, env=environment)
    try:
        yield *await _address(log), key
    finally:
        process.kill()
        await process.wait()


async def prepared(ours: BenchNetwork, count: int) -> list[dict[str, str]]:
    """Bodies of signed requests of different jobs; graph and first states are in the store."""
    await ours.stage(CHAIN)
    draft = await ours.client.prepare(CHAIN.graph(), JobOptions(idempotency_key="first", unit_batches=4))
    draft = draft.sign(ours.client.policy, ours.key)
    await ours.client.submit_draft(draft)
    assert draft.signed_request is not None
    bodies: list[dict[str, str]] = []
    for number in range(count):
        request = model_pb2.JobRequest.FromString(draft.signed_request.payload)
        request.job_id = job_id_of(CHAIN.name, f"job {number}")
        envelope = seal(identity_pb2.DOMAIN_JOB_REQUEST, request, ours.key)
        bodies.append({"envelope": text_of_envelope(envelope)})
    return bodies


async def read_by(host: str, port: int, readers: int, read_s: float) -> Row:
    """So many clients, each with a connection, asking one after the other."""
    times: list[float] = []
    answers: Counter[int] = Counter()
    until = time.monotonic() + read_s

    async def read(number: int) -> None:
        async with _Line(host, port) as line:
            turn = number
            while time.monotonic() < until:
                began = time.monotonic()
                status, _ = await line.ask("GET", PATHS[turn % len(PATHS)])
                times.append(time.monotonic() - began)
                answers[status] += 1
                turn += 1

    await asyncio.gather(*(read(number) for number in range(readers)))
    return {
        "reads_per_s": len(times) / read_s, "read_p50_ms": 1000 * quantile(times, 0.5), "read_p99_ms": 1000 * quantile(times, 0.99),
        "errors": len(times) - answers[200],
    }  # fmt: skip


async def submitted(host: str, port: int, key: str, bodies: Sequence[dict[str, str]]) -> Row:
    """Different jobs, one after the other."""
    times: list[float] = []
    async with _Line(host, port) as line:
        for body in bodies:
            began = time.monotonic()
            status, _ = await line.ask("POST", "/v1/jobs", key, body)
            times.append(time.monotonic() - began)
            if status != 201:
                raise RuntimeError(f"a submission was answered with {status}")
    return {"submit_p50_ms": 1000 * quantile(times, 0.5), "submit_p99_ms": 1000 * quantile(times, 0.99)}


async def twinned(host: str, port: int, key: str, body: dict[str, str], twins: int, lines: int) -> Row:
    """One submission by many at once; how many jobs come of it."""
    found: set[str] = set()
    waiting = list(range(twins))

    async def submit() -> None:
        async with _Line(host, port) as line:
            while waiting:
                waiting.pop()
                status, answer = await line.ask("POST", "/v1/jobs", key, body)
                found.add(json.loads(answer)["job_id"] if status in (200, 201) else f"answer {status}")

    began = time.monotonic()
    await asyncio.gather(*(submit() for _ in range(lines)))
    return {"twins_s": time.monotonic() - began, "twin_jobs": len(found)}


async def watched(host: str, port: int, watchers: int, watch_s: float) -> Row:
    """So many streams. ``watch_open_s``: until each has had figures; ``watch_spread_ms``: between the first and the last watcher that has the same figures."""
    heard: dict[bytes, list[float]] = defaultdict(list)
    first: list[float] = []
    everybody = asyncio.Event()

    async def watch() -> None:
        async with _Line(host, port) as line:
            await line.send("GET", "/v1/events")
            had = False
            while True:
                told = _AS_OF.match(await line.reader.readuntil(b"\n"))
                if told is not None:
                    heard[told[1]].append(time.monotonic())
                    first.extend([] if had else [time.monotonic()])
                    had = True
                    if len(first) == watchers:
                        everybody.set()

    began = time.monotonic()
    tasks = [asyncio.create_task(watch()) for _ in range(watchers)]
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(everybody.wait(), START_S)
    await asyncio.sleep(watch_s)
    broken = sum(task.done() for task in tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    spreads = [max(times) - min(times) for times in heard.values() if len(times) == watchers]
    return {
        "watchers_without": watchers - len(first) + broken, "watch_open_s": max(first, default=began) - began,
        "watch_spread_ms": 1000 * max(spreads) if spreads else None,
    }  # fmt: skip


class _Line:
    """A connection that asks one thing after the other; as little of a client as possible, so that the gateway is what is measured."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port

    async def __aenter__(self) -> _Line:
        self.reader, self._writer = await asyncio.open_connection(self._host, self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def send(self, method: str, path: str, key: str = "", body: Any = None) -> None:
        """A request."""
        data = json.dumps(body).encode() if body is not None else b""
        lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(data)}"]
        lines += ["Content-Type: application/json"] if data else []
        lines += [f"Authorization: Bearer {key}"] if key else []
        self._writer.write("\r\n".join([*lines, "", ""]).encode() + data)
        await self._writer.drain()

    async def ask(self, method: str, path: str, key: str = "", body: Any = None) -> tuple[int, bytes]:
        """Status and body."""
        await self.send(method, path, key, body)
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        length = re.search(rb"content-length: (\d+)", head)
        return int(head.split()[1]), await self.reader.readexactly(int(length[1])) if length else b""


async def _address(log: Path) -> tuple[str, int]:
    until = time.monotonic() + START_S
    while not (found := re.search(r"gateway http://([\d.]+):(\d+)", log.read_text())):
        if time.monotonic() > until:
            raise RuntimeError(f"the gateway does not start: {log.read_text()[-400:]}")
        await asyncio.sleep(0.05)
    return found[1], int(found[2])
