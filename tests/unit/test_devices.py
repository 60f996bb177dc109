"""Goal: an accelerator computes as exactly as the processors that check it, is measured, and one that does not work here costs nobody the start."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
import torch

from dcnr.errors import Unavailable
from vnode import devices
from vnode.devices import BATCH, WIDTH, Device, measured_gflops, opened

EXACTLY = """
import torch
from vnode.devices import opened
kinds = (torch.backends.cudnn, torch.backends.cuda.matmul)
print([kind.allow_tf32 for kind in kinds])
opened("cpu")
print([kind.allow_tf32 for kind in kinds])
"""


def test_no_product_is_shortened_once_a_device_is_open() -> None:
    """In a process of its own: torch's own choice is what it is only until somebody opens a device."""
    done = subprocess.run([sys.executable, "-c", EXACTLY], capture_output=True, text=True, check=True, timeout=120)
    before, after = done.stdout.splitlines()
    assert before == "[True, False]", "torch shortens those of convolutions by itself"
    assert after == "[False, False]"


def works_like(monkeypatch: pytest.MonkeyPatch, gflops: float) -> None:
    """As if this machine had an accelerator that computes so fast; not at all with 0."""

    def measure(device: str) -> float:
        if not gflops:
            raise RuntimeError("no kernel image is available for execution on the device\nmore words")
        return gflops

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (5 << 30, 8 << 30))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A card")
    monkeypatch.setattr(devices, "measured_gflops", measure)


def test_what_is_found_is_tried_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    works_like(monkeypatch, 1000.0)
    found = opened("auto")
    assert found == Device("cuda", "A card", 1000.0, 5 << 30, found.runtime_bytes)
    assert opened("cpu") == Device("cpu")


def test_one_that_does_not_work_is_left_alone_unless_it_is_wanted_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    works_like(monkeypatch, 0.0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert opened("auto") == Device("cpu")
    with pytest.raises(
        Unavailable, match="does not work here: no kernel image is available for execution on the device"
    ) as refused:
        opened("cuda")
    assert refused.value.code == "no_device"
    assert 'set limits.device to "cpu"' in refused.value.remedy
    with pytest.raises(Unavailable, match="torch finds none"):
        opened("mps")


def test_what_it_computes_counts_the_whole_step() -> None:
    """Forward and backward of a dense layer are three products; a clock that goes one second per round says what eight of them come to."""
    seconds = itertools.count()
    assert measured_gflops("cpu", lambda: float(next(seconds))) == pytest.approx(6e-9 * BATCH * WIDTH * WIDTH * 8)
