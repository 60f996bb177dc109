"""The three commands, run within a test's process, with homes of their own."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path

import pytest
from schemas_rig import check_output

from dcnr.cli import dcnr, errors, orchestrator, pnode

APPS = {"pnode": pnode.app, "orchestrator": orchestrator.app, "dcnr": dcnr.app}


def homes_below(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every command's home is below it from now on."""
    for prefix in ("PNODE", "ORCHESTRATOR", "DCNR"):
        monkeypatch.setenv(f"{prefix}_HOME", str(directory / prefix.lower()))
    return directory


def run(line: str, *more: str) -> int:
    """Its exit code. What it prints is printed, and where that is JSON it fits its schema."""
    name, *arguments = line.split()
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = errors.exit_code(APPS[name], name, [*arguments, *more])
    sys.stdout.write(out.getvalue())
    if code == 0:
        check_output(" ".join([line, *more]), out.getvalue())
    return code
