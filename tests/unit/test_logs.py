"""Goal: a log line says who, what of and in which trace, and of an exception where it happened, never the values there; a daemon outlives its log's reader."""

from __future__ import annotations

import errno
import io
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable

import pytest

from dcnr.logs import Outliving

PROGRAM = """
import structlog
from dcnr.logs import configure
configure(level="info", as_json=True)
def fail():
    token = "very-" + "secret"
    raise ValueError("told")
try:
    fail()
except ValueError as error:
    structlog.get_logger().error("failed", exc_info=error)
"""


PLACES = """
import asyncio, logging, structlog
from dcnr.logs import configure, name_node, vnode_in
from dcnr.tracing import UNTRACED
configure(level="info", as_json=True)
log = structlog.get_logger("pnode")
async def inner():
    log.info("replica_hosted", **vnode_in("replica_hosted", "conv1.7"), job="j")
async def main():
    name_node("n" * 40)
    with UNTRACED.span("x", f"00-{'ab' * 16}-{'cd' * 8}-01"):
        await asyncio.create_task(inner())
    log.info("attached", **vnode_in("attached", "f" * 40))
    log.info("seat_ready", **vnode_in("seat_ready", "deep"))
    logging.getLogger("some.library").warning("look: %s", 3)
asyncio.run(main())
"""


def test_lines_say_who_what_of_and_in_which_trace() -> None:
    done = subprocess.run([sys.executable, "-c", PLACES], capture_output=True, text=True, timeout=60, check=True)
    hosted, attached, seat, library = map(json.loads, done.stderr.splitlines())
    assert {one["node"] for one in (hosted, attached, seat, library)} == {"n" * 40}
    assert (hosted["vnode"], hosted["replica"], hosted["job"]) == ("conv1", "conv1.7", "j")
    assert (hosted["trace_id"], hosted["span_id"]) == ("ab" * 16, "cd" * 8)
    assert not {"trace_id", "vnode"} & attached.keys()
    assert seat["vnode"] == "deep"
    assert (library["event"], library["logger"], library["level"]) == ("look: 3", "some.library", "warning")


def test_no_local_value_of_a_frame_is_logged() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    line = json.loads(done.stderr)
    assert line["exception"][0]["exc_value"] == "told"
    assert "very-secret" not in done.stderr


FULL = """
import errno
from dcnr.logs import configure, told
configure(level="info", as_json=False)
print(told("replica_failed", OSError(errno.ENOSPC, "No space left on device"), replica="v.0"))
"""


def test_a_fault_is_told_where_the_disk_has_no_room_for_the_log() -> None:
    """Goal: a full disk ends what could not be written, not the whole worker whose log lies there too."""
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([sys.executable, "-c", FULL], stdout=subprocess.PIPE, stderr=full, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "OSError: No space left on device")


def test_what_is_said_when_the_disk_has_room_again_is_shown() -> None:
    class Filling(io.StringIO):
        is_full = True

        def flush(self) -> None:
            if self.is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    filling = Filling()
    stream = Outliving(filling)
    print("said", file=stream, flush=True)
    filling.is_full = False
    print("shown", file=stream, flush=True)
    assert filling.getvalue().splitlines()[-1] == "shown"


def test_a_reader_that_goes_ends_nobody() -> None:
    reader, writer = os.pipe()
    with open(writer, "w", buffering=1, encoding="utf-8") as plain:
        stream = Outliving(plain)
        stream.write("seen\n")
        assert os.read(reader, 64) == b"seen\n"
        os.close(reader)
        for _ in range(3):
            print("unseen", file=stream, flush=True)


UNREAD = """
import sys, structlog
from dcnr.logs import configure
configure(level="info", as_json=False)
for number in range(3000):
    structlog.get_logger().info("said", number=number, text="x" * 1000)
print("goes on", flush=True)
sys.stdin.read()
structlog.get_logger().info("heard again")
"""
"""Says three times what may wait."""


def read_until(reader: int, word: bytes) -> bytes:
    heard = b""
    while word not in heard[-400:]:
        assert select.select([reader], (), (), 60)[0], f"nothing comes after {heard[-400:]!r}"
        heard += os.read(reader, 1 << 12)
    return heard


@pytest.mark.parametrize("ends", [os.pipe, os.openpty])
def test_a_reader_that_reads_nothing_keeps_nobody_waiting(ends: Callable[[], tuple[int, int]]) -> None:
    """Goal: a daemon goes on whose terminal was halted with Ctrl-S, or whose log goes to a pager; who reads on later is told that something is missing."""
    reader, writer = ends()
    with subprocess.Popen([sys.executable, "-c", UNREAD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=writer) as process:
        os.close(writer)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            ready, _, _ = select.select([process.stdout], (), (), 60)
            assert ready, "it waits"
            assert process.stdout.readline() == b"goes on\n"
            heard = read_until(reader, b"nobody read")
            process.stdin.close()
            read_until(reader, b"heard again")
            assert process.wait(60) == 0
        finally:
            process.kill()
            os.close(reader)
    assert b"number=0" in heard


def test_an_end_does_not_wait_for_a_reader() -> None:
    reader, writer = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", UNREAD], stdin=subprocess.DEVNULL, stderr=writer, stdout=subprocess.DEVNULL
    ) as process:
        os.close(writer)
        try:
            assert process.wait(60) == 0
        finally:
            process.kill()
            os.close(reader)
