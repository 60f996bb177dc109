"""What this machine has: cores, memory, disk, architecture, and a short FLOP/s measurement. No torch, no host or user name.

An accelerator is only known to the worker, where torch is; it says so in its first message.
"""

from __future__ import annotations

import platform
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from pnode.home import Home

_SIDE = 64
"""Of the matrices: no library shares so small a product out among threads. Threads that wait for each other spin, which on a busy machine takes a
multiple of the processor time of the product itself."""
_PRODUCTS = 50
_ROUNDS = 20
MAX_NAME = 64


@dataclass(frozen=True, slots=True)
class Machine:
    """The whole machine, before the volunteer's limits."""

    cores: int
    memory_bytes: int
    free_memory_bytes: int
    free_disk_bytes: int
    """On the disk of the home directory; what that takes itself counts as free."""
    gflops_per_core: float
    architecture: str
    system: str
    processor: str = ""
    """The processor's name as its maker says it; empty where the system does not tell."""


def probe_machine(home: Path) -> Machine:
    """Measures for about 10 ms. Cores are those this process may use, memory is also bounded by a control group."""
    memory = psutil.virtual_memory()
    limit = _cgroup_memory_bytes()
    total = min(memory.total, limit) if limit else memory.total
    return Machine(
        cores=_usable_cores(),
        memory_bytes=total,
        free_memory_bytes=min(memory.available, total),
        free_disk_bytes=shutil.disk_usage(home).free + Home(home).disk_bytes(),
        gflops_per_core=measure_gflops(),
        architecture={"amd64": "x86_64", "aarch64": "arm64"}.get(platform.machine().lower(), platform.machine().lower()[:16]),
        system={"darwin": "macos"}.get(platform.system().lower(), platform.system().lower()[:16]),
        processor=_processor_name(),
    )


def named_in(cpuinfo: str) -> str:
    """The processor's name in Linux's description of it; at most `MAX_NAME` printable characters."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip().lower() in ("model name", "cpu model", "hardware"):
            return printable(value)
    return ""


def printable(name: str) -> str:
    """A device's name as an advert may say it."""
    return " ".join("".join(one if one.isprintable() else " " for one in name).split())[:MAX_NAME]


def _processor_name() -> str:
    try:
        found = named_in(Path("/proc/cpuinfo").read_text(errors="replace"))
    except OSError:
        found = ""
    return found or printable(platform.processor())


def _usable_cores() -> int:
    try:
        affinity = psutil.Process().cpu_affinity()
    except (AttributeError, psutil.Error):
        affinity = None
    return max(1, len(affinity) if affinity else (psutil.cpu_count() or 1))


def _cgroup_memory_bytes() -> int | None:
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def measure_gflops() -> float:
    """Of one core: the best of a few runs of float32 products, by this thread's processor time, so that what else runs on this machine does not count."""
    a = np.ones((_SIDE, _SIDE), dtype=np.float32)
    product = a @ a
    best_s = min(_timed(a, product) for _ in range(_ROUNDS))
    return 2 * _SIDE**3 * _PRODUCTS / best_s / 1e9


def _timed(a: np.ndarray, product: np.ndarray) -> float:
    started_s = time.thread_time()
    for _ in range(_PRODUCTS):
        np.matmul(a, a, out=product)
    return max(time.thread_time() - started_s, 1e-9)
