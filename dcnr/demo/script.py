"""`run_script` runs one child process to its end, and leaves none behind when its caller is cancelled or time runs out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dcnr.errors import TimedOut


@dataclass(frozen=True, slots=True)
class Ended:
    """How a script ended and what it printed."""

    code: int
    out: str
    err: str


async def run_script(command: Sequence[str], *, within_s: float) -> Ended:
    """Runs ``command`` without standard input, in a session of its own: Ctrl-C reaches only us. Raises TimedOut."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, start_new_session=True
    )  # fmt: skip
    async with _killed_at_the_end(process):
        try:
            async with asyncio.timeout(within_s):
                out, err = await process.communicate()
        except TimeoutError:
            raise TimedOut(f"{script_of(command)} took longer than {within_s:.0f} s", code="script_timeout") from None
    return Ended(process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace"))


def script_of(command: Sequence[str]) -> str:
    """The name of what Python is told to run: the first word after it that is no flag."""
    return next((Path(word).name for word in command[1:] if not word.startswith("-")), command[0])


@contextlib.asynccontextmanager
async def _killed_at_the_end(process: asyncio.subprocess.Process) -> AsyncIterator[None]:
    """With everything that it started."""
    try:
        yield
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
