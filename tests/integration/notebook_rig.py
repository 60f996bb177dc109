"""Runs a notebook's code cells in one namespace, as a kernel would, over a network that runs already."""

from __future__ import annotations

import inspect
import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dcnr.testing
from dcnr.testing import LocalNetwork

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "notebook" / "spiral.ipynb"


def code_cells(path: Path) -> list[str]:
    """The sources of its code cells, none of which carries an output."""
    cells = json.loads(path.read_text())["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells), (
        "outputs would name the machine they came from"
    )
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run_notebook(path: Path, network: LocalNetwork, monkeypatch: pytest.MonkeyPatch, scratch: Path) -> dict[str, Any]:
    """Every cell in its order, with temporary files below ``scratch``; what they left behind, and under ``calls`` what became of the network that they
    believe to be theirs.
    """
    calls: list[str] = []

    def borrowed(*arguments: Any, **named: Any) -> Any:
        inspect.signature(LocalNetwork).bind(*arguments, **named)
        return SimpleNamespace(
            start=lambda: calls.append("start"), stop=lambda: calls.append("stop"), bootstrap=network.bootstrap,
            network_file=network.network_file, maintainer_key=network.maintainer_key,
        )  # fmt: skip

    monkeypatch.setattr(dcnr.testing, "LocalNetwork", borrowed)
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    found: dict[str, Any] = {"__name__": "__main__", "calls": calls}
    for number, cell in enumerate(code_cells(path), 1):
        exec(compile(cell, f"{path.name}, cell {number}", "exec"), found)
    return found
