"""Goal: what a log line tells of an exception is where it happened, never the values there; and a daemon outlives the reader of its log."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from dcnr.cli.foreground import Outliving

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


def test_no_local_value_of_a_frame_is_logged() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    line = json.loads(done.stderr)
    assert line["exception"][0]["exc_value"] == "told"
    assert "very-secret" not in done.stderr


def test_a_reader_that_goes_ends_nobody() -> None:
    reader, writer = os.pipe()
    with open(writer, "w", buffering=1, encoding="utf-8") as plain:
        stream = Outliving(plain)
        stream.write("seen\n")
        assert os.read(reader, 64) == b"seen\n"
        os.close(reader)
        for _ in range(3):
            print("unseen", file=stream, flush=True)
