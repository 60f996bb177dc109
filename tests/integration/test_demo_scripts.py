"""Goal: what the demo has others compute beside it is what it says: the comparison on all cores, the machine in words; and what goes wrong there is known."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from trouble_rig import graph_text, write_data

from dcnr.demo import gathering
from dcnr.demo.examples import Example
from dcnr.demo.facts import Compared


def compared(directory: Path, npz: Path) -> Compared:
    (directory / "model.toml").write_text(graph_text())
    chosen = Example("tiny", "tiny", directory, "CC0", "a teacher", 60.0, as_bytes=True)
    return asyncio.run(gathering.reference_of(chosen, npz, lambda text: None))


def test_the_comparison_uses_every_core_and_tells_every_exit(tmp_path: Path) -> None:
    write_data(tmp_path / "tiny.npz")
    told = compared(tmp_path, tmp_path / "tiny.npz")
    assert (told.trouble, told.threads) == ("", os.cpu_count())
    assert [vnode for vnode, _, _ in told.exits] == ["a", "b"]
    assert all(0 < accuracy <= 1 and loss > 0 for _, accuracy, loss in told.exits)


def test_a_comparison_that_fails_says_why_and_is_not_taken_for_a_late_one(tmp_path: Path) -> None:
    told = compared(tmp_path, tmp_path / "nothing.npz")
    assert "dcnr.demo.reference failed:" in told.trouble
    assert "nothing.npz" in told.trouble
    assert not told.is_late


def test_a_comparison_that_takes_too_long_is_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "WHOLE_LIMIT_S", 0.05)
    told = compared(tmp_path, tmp_path / "tiny.npz")
    assert told.is_late
    assert told.trouble == "dcnr.demo.reference took longer than 0 s"


def test_the_machine_is_described_as_by_benchmarks() -> None:
    told = asyncio.run(gathering.machine())
    assert told["cores"] == os.cpu_count()
    assert {"cpu", "memory_gib", "kernel", "python", "packages", "commit", "load_before"} <= told.keys()
