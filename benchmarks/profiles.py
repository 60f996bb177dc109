"""Where the time of a running process goes: CPU seconds by thread from the kernel, and Python functions by py-spy's samples."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

import psutil

RATE_HZ: Final = 200
TOP: Final = 20
_WAITING: Final = ("_worker (concurrent/futures/thread.py)", "EpollSelector.select (selectors.py)", "Thread.run (threading.py)")
"""Where threads wait; py-spy takes some of these for busy on a loaded machine."""
_LINE: Final = re.compile(r":\d+\)$")
_PLUMBING: Final = (
    "_bootstrap",
    "_run_code",
    "_run_module",
    "_worker (concurrent",
    "Runner.run",
    "run (asyncio",
    "main (",
    "<module>",
    "Thread.run",
)

Stacks = Counter[tuple[str, ...]]


def find_sampler() -> str | None:
    """py-spy beside this interpreter or on the path."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def sample(pid: int, seconds: float) -> Stacks:
    """Stacks of busy Python threads, outermost first, by how often they were seen. Raises RuntimeError without py-spy or the right to use it."""
    sampler = find_sampler()
    if sampler is None:
        raise RuntimeError("py-spy is not installed: pip install py-spy")
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "raw"
        command = [
            sampler, "record", "--pid", str(pid), "--duration", str(int(seconds)), "--rate", str(RATE_HZ), "--format", "raw", "--output", str(out)
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=False)
        if not out.exists():
            raise RuntimeError(f"py-spy failed: {done.stderr.strip()[-300:]}")
        return parse(out.read_text())


def parse(text: str) -> Stacks:
    """py-spy's raw format: ``frame;frame;frame count`` per line."""
    stacks: Stacks = Counter()
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        if stack and count.isdigit():
            stacks[tuple(_LINE.sub(")", frame.strip()) for frame in stack.split(";"))] += int(count)
    return stacks


def thread_cpu_s(pid: int) -> dict[str, float]:
    """CPU seconds by name of thread (threads of one name together)."""
    found: dict[str, float] = {}
    for thread in psutil.Process(pid).threads():
        try:
            name = Path(f"/proc/{pid}/task/{thread.id}/comm").read_text().strip()
        except OSError:
            name = "threads"
        name = re.sub(r"[-_ ]?\d+$", "", name)
        found[name] = found.get(name, 0.0) + thread.user_time + thread.system_time
    return found


def thread_table(before: dict[str, float], after: dict[str, float], amount: float, unit: str) -> str:
    """Milliseconds of CPU per ``unit`` by thread, the busiest first."""
    spent = {name: after[name] - before.get(name, 0.0) for name in after}
    rows = sorted(spent.items(), key=lambda item: -item[1])
    lines = [f"  CPU by thread, ms per {unit} (all: {1e3 * sum(spent.values()) / amount:.2f})"]
    return "\n".join(
        lines + [f"  {1e3 * seconds / amount:7.3f}  {name}" for name, seconds in rows if seconds > 0.005 * sum(spent.values())]
    )


def summary(stacks: Stacks) -> str:
    """The functions with most samples: themselves, and with all that they call."""
    stacks = Counter({stack: count for stack, count in stacks.items() if stack[-1] not in _WAITING})
    total = sum(stacks.values()) or 1
    own: Counter[str] = Counter()
    within: Counter[str] = Counter()
    for stack, count in stacks.items():
        own[stack[-1]] += count
        for frame in set(stack):
            if not any(word in frame for word in _PLUMBING):
                within[frame] += count
    lines = [f"  Python functions themselves, with the C code that they call ({total} samples of busy threads)"]
    lines += [f"  {100 * count / total:5.1f} %  {frame}" for frame, count in own.most_common(TOP)]
    lines += ["  with callees"]
    lines += [f"  {100 * count / total:5.1f} %  {frame}" for frame, count in within.most_common(TOP)]
    return "\n".join(lines)
