"""What a measurement ran on, in words that name no host and no user; as a script it prints one JSON object."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent


def describe() -> dict[str, Any]:
    """Cores, memory, processor, kernel, versions, the commit, and the load before the run."""
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "cpu": cpu_model(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in ("torch", "grpcio", "numpy", "cryptography")},
        "commit": commit(),
        "load_before": [round(value, 2) for value in os.getloadavg()],
    }


def cpu_model() -> str:
    """The processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def commit() -> str:
    """The commit that is checked out; a ``+`` where the code below it differs."""
    try:
        head = _git("rev-parse", "--short", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", "*.py")
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return head + ("+" if changed else "")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(describe()) + "\n")
