"""Goal: what others hear of an error names no directory of the machine where it happened, and so not its owner; the log there keeps the whole."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import structlog

from dcnr.errors import Refused, Unavailable, for_others
from dcnr.ports import Clock
from dcnr.rpc.errors import detail_of
from dcnr.system import SystemClock
from dcnr.v1 import local_pb2
from gateway.errors import from_typed
from pnode.pace import Pace
from pnode.reasons import WorkerFacts, why
from pnode.seats import Seat
from pnode.supervisor import Supervisor, WorkerOptions, executed
from pnode.text_sessions import TextSessions

HOME = "/home/anna/.local/share/dcnr"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (FileNotFoundError(2, "No such file or directory", f"{HOME}/work/a.safetensors"), "FileNotFoundError: No such file or directory"),
        (OSError(f"{HOME}/parts became shorter"), "OSError"),
        (ValueError(f"cannot read {HOME}/x"), "ValueError"),
        (Refused(f"{HOME}/network.json cannot be written: full", code="disk_trouble"), "disk_trouble: network.json cannot be written: full"),
        (Refused("/media/Anna B. Doe's disk/my files/key.pem cannot be written", code="e"), "e: key.pem cannot be written"),
        (Refused("/home/Anna Doe/a of /media/her disk/b, /c d/e", code="e"), "e: a of b, e"),
        (Refused("moved (/home/Anna Doe/a) to http://127.0.0.1:77/a b/c", code="e"), "e: moved (a) to http://127.0.0.1:77/a b/c"),
        (Refused("/home/anna: 3 of 4 batches/s", code="e"), "e: s"),
        (Refused("3 / 4 batches/s, either/or", code="e"), "e: 3 / 4 batches/s, either/or"),
        (Refused("/home/Anna Doe/a\nfor 1/2", code="e"), "e: a\nfor 1/2"),
        (Unavailable("node at http://127.0.0.1:77/a/b is away", code="away"), "away: node at http://127.0.0.1:77/a/b is away"),
    ],
)  # fmt: skip
def test_others_hear_what_happened_and_no_directory(error: Exception, told: str) -> None:
    assert for_others(error) == told


def test_answers_of_a_server_and_of_a_gateway_name_no_directory() -> None:
    error = Unavailable(
        f"{HOME}/gateway.db cannot be used: full", code="no_key_file", remedy=f"chmod 600 {HOME}/key", path=f"{HOME}/key"
    )
    assert "anna" not in str(detail_of(error))
    assert "anna" not in str(from_typed(error).body())
    assert "gateway.db cannot be used" in detail_of(error).message


def test_a_seat_that_cannot_be_loaded_tells_no_directory(tmp_path: Path) -> None:
    clock: Clock = SystemClock()
    order = local_pb2.HostSeat(model="m", vnode="wide", state_digest="0" * 64, state_path=str(tmp_path / "gone.safetensors"))
    with ThreadPoolExecutor(max_workers=1) as thread, structlog.testing.capture_logs() as logged:
        seat = Seat(order, thread, Pace(clock, lambda: 0.0), clock, TextSessions[Any]())
        asyncio.run(seat.load(lambda given: Path(given.state_path).read_bytes()))  # type: ignore[arg-type,return-value]
    assert seat.report().reason == "FileNotFoundError: No such file or directory"
    assert [(line["event"], str(tmp_path) in str(line["exc_info"])) for line in logged] == [("seat_failed", True)]


def test_the_last_words_of_a_worker_are_for_its_owner_alone(tmp_path: Path) -> None:
    ends: list[str] = []
    environment: Mapping[str, str] = os.environ
    failing = executed("-c", f"import sys; sys.exit('worker: nothing at {HOME}')")
    options = WorkerOptions("127.0.0.1", 0, 1, "cpu", tmp_path / "worker.log", environment, start=failing)

    async def scenario() -> str:
        down = asyncio.Event()

        async def told(reason: str) -> None:
            ends.append(reason)
            down.set()

        async def never(*_: object) -> None:
            raise AssertionError("it never says hello")

        subject = Supervisor(options, next_incarnation=lambda: 1, on_up=never, on_message=never, on_down=told)
        running = asyncio.create_task(subject.run())
        async with asyncio.timeout(60):
            await down.wait()
            words = subject.last_words
            await subject.stop(within_s=0.2)
            await running
        return words

    words = asyncio.run(scenario())
    assert ends[0] == "the worker ended with exit code 1"
    assert words == f"worker: nothing at {HOME}"
    facts: dict[str, Any] = {
        "draining": False,
        "paused": "",
        "attached": 1,
        "known_orchestrators": 1,
        "membership_trouble": "",
        "hosted": [],
    }
    lines = why(
        **facts,
        worker=WorkerFacts(reason=ends[0], last_words=words),
        upload_trouble="",
        capability=local_pb2.StatusResponse().capability,
    )
    assert words in lines[0].reason
