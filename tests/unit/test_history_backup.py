"""Goal: the runbook's own commands copy a history that is being written, at one moment and whole, and bring it back."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

from dcnr.system import SystemClock
from dcnr.v1 import ledger_pb2
from orchestrator.history import History
from orchestrator.results import Kind, Result

RUNBOOK = Path(__file__).parents[2] / "docs" / "runbooks" / "history.md"
CLOCK = SystemClock()
LIMIT_S = 60.0


def commands() -> list[str]:
    """The shell blocks of the runbook: back up, look at it, restore."""
    found = re.findall(r"^```sh\n(.*?)^```$", RUNBOOK.read_text(), re.MULTILINE | re.DOTALL)
    assert len(found) == 3
    return found


def shell(command: str, home: Path) -> str:
    """With this interpreter as ``python3``."""
    tools = home.parent / "bin"
    tools.mkdir(exist_ok=True)
    python = tools / "python3"
    if not python.exists():
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
    environment = {
        "PATH": f"{tools}{os.pathsep}/usr/bin{os.pathsep}/bin", "ORCHESTRATOR_HOME": str(home), "BACKUP": str(home.parent / "copy.db"),
    }  # fmt: skip
    done = subprocess.run(
        ["/bin/sh", "-ec", command], env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def result(number: int) -> Result:
    return Result(
        number, 1e9, f"{number:040x}", "m", "j", "v0", "v0.1", "Linear", "cpu/x", Kind.STEPS, on_time=True, seconds=0.5, gflop=1.0
    )


def test_a_history_in_use_is_copied_whole_and_restored(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    back_up, look, restore = commands()

    async def story() -> None:
        history = History(home / "history.db", "me", CLOCK)
        await history.open()
        for number in range(1, 101):
            history.result(result(number))
            history.say("before", "me", "x" * 30, number=number)
        history.used("m", ledger_pb2.UsageKind.Name(ledger_pb2.USAGE_KIND_JOB), "j", b"signed")
        await history.flush()
        copying = asyncio.create_task(asyncio.to_thread(shell, back_up, home))
        number = 100
        while not copying.done():
            number += 1
            history.result(result(number))
            await history.flush()
        await copying
        assert shell(look, home) == "ok"
        history.say("after", "me", "not in the copy")
        await history.flush()
        log = (home / "history.db-wal").read_bytes()
        await history.close()

        (home / "history.db").write_bytes(b"broken")
        (home / "history.db-wal").write_bytes(log)
        shell(restore, home)
        again = History(home / "history.db", "me", CLOCK)
        await again.open()
        assert again.sequence == 100
        kept = await again.results()
        assert [one.number for one in kept] == list(range(1, len(kept) + 1))
        assert len(kept) >= 100
        assert await again.usage("m", 0, 10) == [(1, b"signed")]
        await again.close()
        assert not (home / "history.damaged").exists()

    asyncio.run(story())


def test_the_runbook_says_that_the_file_of_a_running_orchestrator_is_not_copied_with_cp() -> None:
    """A bare copy while it is in use lacks what lies in the log."""
    back_up = commands()[0]
    assert ".backup(" in back_up
    assert not re.search(r"^cp ", back_up, re.MULTILINE)
