"""Goal: the wheel holds every package with its generated code and type marker, nothing else, and works where there is no checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dcnr import __version__

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("dcnr", "trust", "membership", "dataservice", "vnode", "pnode", "orchestrator")
NOT_SHIPPED = ("simulation", "tests", "benchmarks", "examples", "docs", "proto")
LIMIT_S = 120.0
IMPORT_ALL = """
import importlib, pathlib, sys
root = pathlib.Path(sys.argv[1])
for path in sorted(root.rglob("*.py")):
    name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    assert importlib.import_module(name).__file__ == str(path), name
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing of it stays in the checkout; without the network."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source / name)
    for name in (*PACKAGES, "simulation", "tests", "benchmarks", "examples", "gateway"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.json"))
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    (found,) = out.glob("dcnr-*.whl")
    return found


def test_it_holds_every_module_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "__pycache__" not in path.parts
    }
    assert sorted(wanted - names) == []
    assert {"dcnr/py.typed", "dcnr/__init__.pyi"} <= set(names)
    assert any(name.startswith("dcnr/v1/") and name.endswith("_pb2.py") for name in names)
    top = {name.split("/")[0] for name in names}
    assert sorted(top & set(NOT_SHIPPED)) == []
    information = [name for name in names if ".dist-info/" in name]
    assert any(name.endswith("licenses/LICENSE") for name in information)
    entries = zipfile.ZipFile(wheel).read(next(n for n in information if n.endswith("entry_points.txt"))).decode()
    assert all(f"{command} = " in entries for command in ("pnode", "orchestrator", "dcnr"))


def test_it_works_without_a_checkout(wheel: Path, tmp_path: Path) -> None:
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    zipfile.ZipFile(wheel).extractall(site)
    elsewhere.mkdir()
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1", "HOME": str(elsewhere)}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=elsewhere,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    every = run("-c", IMPORT_ALL, str(site))
    assert every.returncode == 0, every.stderr
    version = run("-m", "dcnr.cli.dcnr", "--version")
    assert (version.returncode, version.stdout) == (0, f"{__version__}\n"), version.stderr
    demo = run("-m", "dcnr.cli.dcnr", "demo")
    assert demo.returncode == 2, demo.stdout + demo.stderr
    assert "no_examples" in demo.stderr
    assert "checkout" in demo.stderr
