"""Goal: a shell completes the three programs: commands, options and the words that an option takes; checked with a real bash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MODULES = {"pnode": "dcnr.cli.pnode", "orchestrator": "dcnr.cli.orchestrator", "dcnr": "dcnr.cli.dcnr"}
WORDS = {
    ("pnode", "st"): {"start", "status", "stop"},
    ("pnode", "start", "--device", "c"): {"cpu", "cuda"},
    ("orchestrator", "start", "--control"): {"--control-port"},
    ("dcnr", "model", "e"): {"export", "evaluate"},
}


def environment(programs: Path) -> dict[str, str]:
    """One in which the programs of this interpreter are found by their names."""
    for name, module in MODULES.items():
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
        program.chmod(0o700)
    return {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "HOME": str(programs)}


def test_bash_completes_what_was_begun(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    assert bash is not None, "the tests need bash"
    lines = [f'eval "$(_{name.upper()}_COMPLETE=source_bash {name})"' for name in MODULES]
    for words in WORDS:
        lines += [
            f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}",
            f"$(complete -p {words[0]} | sed 's/.*-F \\([^ ]*\\).*/\\1/') {words[0]} {words[-1]} {words[-2]}; echo \"${{COMPREPLY[@]}}\"",
        ]
    done = subprocess.run(
        [bash, "--norc", "--noprofile", "-c", "\n".join(lines)],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr == ""
    assert [set(line.split()) for line in done.stdout.splitlines()] == list(WORDS.values())


@pytest.mark.parametrize(("shell", "begins"), [("zsh", "#compdef pnode"), ("fish", "complete --command pnode")])
def test_other_shells_get_their_scripts(tmp_path: Path, shell: str, begins: str) -> None:
    wanted = {**environment(tmp_path), "_PNODE_COMPLETE": f"source_{shell}"}
    done = subprocess.run([tmp_path / "pnode"], env=wanted, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.lstrip().startswith(begins)
    assert done.stderr == ""
