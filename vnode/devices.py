"""Where VNodes of this machine compute: what is found, what it can do, and that it computes as exactly as everybody else.

Whoever checks a step repeats it in float32 somewhere else, most often on a processor (ALGORITHMS.md), so an accelerator must not round products to fewer
bits: the shortcut that torch takes for convolutions on CUDA by default (TF32, ten bits of mantissa) is over tolerances that processors keep to a hundredth.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import psutil
import torch

from dcnr.errors import Unavailable

CPU: Final = "cpu"
BATCH: Final = 64
WIDTH: Final = 512
_STEPS: Final = 8
_ROUNDS: Final = 5


@dataclass(frozen=True, slots=True)
class Device:
    """One that works here. Of a processor nothing is measured: the daemon does that without torch."""

    name: str
    """As torch calls it: cpu, cuda or mps."""
    title: str = ""
    """What its maker calls an accelerator; empty for anything else."""
    gflops: float = 0.0
    """Of an accelerator, by `measured_gflops`."""
    memory_bytes: int = 0
    """Of its own that nobody uses; 0: it has none, it shares the machine's."""
    runtime_bytes: int = 0
    """Of the machine's memory that this process took to use it."""


def opened(wanted: str) -> Device:
    """``wanted`` as torch names it, ready and tried; ``auto`` is the first of cuda and mps that works here, else cpu.

    Raises Unavailable where that device is wanted by name and does not work.
    """
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    if wanted == CPU:
        return Device(CPU)
    for name, is_there in (("cuda", torch.cuda.is_available), ("mps", torch.backends.mps.is_available)):
        if wanted not in (name, "auto"):
            continue
        if not is_there():
            if wanted == name:
                raise _unavailable(name, "torch finds none")
            continue
        try:
            return _tried(name)
        except RuntimeError as error:  # a driver or a card that this build of torch has no code for
            if wanted == name:
                raise _unavailable(name, str(error).partition("\n")[0]) from error
    return Device(CPU)


def _unavailable(name: str, why: str) -> Unavailable:
    return Unavailable(
        f"limits.device is {name}, but it does not work here: {why}", code="no_device",
        remedy='set limits.device to "cpu", or to "auto" for what is found',
    )  # fmt: skip


def _tried(name: str) -> Device:
    before = _own_bytes()
    gflops = measured_gflops(name)
    grown = max(0, _own_bytes() - before)
    if name != "cuda":
        return Device(name, gflops=gflops, runtime_bytes=grown)
    torch.cuda.empty_cache()
    free_bytes, _ = torch.cuda.mem_get_info()
    return Device(name, torch.cuda.get_device_name(name), gflops, free_bytes, grown)


def _own_bytes() -> int:
    """Memory of this process, without files that it has mapped where the system tells them apart: others map the same libraries."""
    used = psutil.Process().memory_info()
    return int(used.rss) - int(getattr(used, "shared", 0))


def measured_gflops(device: str, now_s: Callable[[], float] = time.perf_counter) -> float:
    """What it computes in a learning step of usual size, the best of a few runs: forward and backward of a dense layer, `BATCH` by `WIDTH`.

    What it costs to begin a computation counts, as it does for VNodes; a larger one is done sooner than this says, which is seen when it runs.
    """
    x, weight = torch.ones((BATCH, WIDTH), device=device), torch.ones((WIDTH, WIDTH), device=device)

    def step() -> float:
        """Ends once the device has computed it all."""
        outward = x @ weight
        return float((outward @ weight.T).sum() + (x.T @ outward).sum())

    step()
    best_s = min(_timed(step, now_s) for _ in range(_ROUNDS))
    return 6e-9 * BATCH * WIDTH * WIDTH * _STEPS / best_s


def _timed(step: Callable[[], float], now_s: Callable[[], float]) -> float:
    began_s = now_s()
    for _ in range(_STEPS):
        step()
    return max(now_s() - began_s, 1e-9)
