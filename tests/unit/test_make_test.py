"""Goal: `make test` runs all that it can without root and without a browser, and says what is missing and what to do."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.browser import chromium

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0
MAKE = shutil.which("make") or "make"
PYTHON = f"""#!/bin/sh
case "$*" in
  "-m benchmarks.browser"*) exec {sys.executable} "$@" ;;
  "-m pytest"*) echo "PYTEST $*" ;;
esac
"""


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def made(target: str, directory: Path, *, user: int, with_browser: bool) -> subprocess.CompletedProcess[str]:
    """The real Makefile, over an environment in which tests are only named: they cannot be run within themselves."""
    programs, venv = directory / "programs", directory / "venv"
    for name in ("python", "mypy", "ruff", "lint-imports"):
        script(venv / "bin" / name, PYTHON if name == "python" else "#!/bin/sh\n")
    for name in ("sh", "nice", "touch"):
        found = shutil.which(name)
        assert found
        programs.mkdir(exist_ok=True)
        (programs / name).symlink_to(found)
    script(programs / "id", f"#!/bin/sh\necho {user}\n")
    if with_browser:
        script(programs / "chromium", "#!/bin/sh\n")
    installed = f"{venv}/.installed"
    Path(installed).touch()
    environment = {"PATH": str(programs), "HOME": str(directory), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [MAKE, "--no-print-directory", target, f"VENV={venv}", "-o", installed],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


def test_without_a_browser_everything_else_runs(tmp_path: Path) -> None:
    done = made("test", tmp_path, user=1000, with_browser=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "PYTEST -m pytest tests --ignore tests/browser --numprocesses 4" in said
    assert "playwright install chromium" in said
    assert done.stdout.rstrip().endswith("NOT RUN, for want of a browser: tests/browser"), said
    assert done.stderr.count("apt-get install chromium") == 2, "first, and again where it is seen after ten minutes"


def test_root_that_cannot_install_one_goes_on_too(tmp_path: Path) -> None:
    """Goal: the same on a machine without apt-get."""
    done = made("test", tmp_path, user=0, with_browser=False)
    assert done.returncode == 0, done.stderr
    assert "--ignore tests/browser" in done.stdout


def test_with_a_browser_all_of_it_runs(tmp_path: Path) -> None:
    done = made("test", tmp_path, user=1000, with_browser=True)
    assert done.returncode == 0, done.stderr
    assert "PYTEST -m pytest tests --numprocesses 4" in done.stdout
    assert "NOT RUN" not in done.stdout + done.stderr


def test_who_asks_for_the_browser_alone_is_told(tmp_path: Path) -> None:
    without = made("browser", tmp_path / "without", user=1000, with_browser=False)
    assert "apt-get install chromium" in without.stderr
    assert "everything but tests/browser runs" in without.stdout
    found = made("browser", tmp_path / "with", user=1000, with_browser=True)
    assert (found.stdout, found.stderr) == ("", "")


def test_a_browser_is_found_where_playwright_puts_its_own(tmp_path: Path) -> None:
    own = script(tmp_path / "chromium-1200" / "chrome-linux" / "chrome", "#!/bin/sh\n")
    assert chromium({"PATH": "", "PLAYWRIGHT_BROWSERS_PATH": str(tmp_path)}) == str(own)
    on_path = script(tmp_path / "bin" / "chromium", "#!/bin/sh\n")
    assert chromium({"PATH": str(tmp_path / "bin"), "PLAYWRIGHT_BROWSERS_PATH": str(tmp_path)}) == str(on_path)
    with pytest.raises(RuntimeError, match="apt-get install chromium"):
        chromium({"PATH": "", "PLAYWRIGHT_BROWSERS_PATH": str(tmp_path / "empty")})
