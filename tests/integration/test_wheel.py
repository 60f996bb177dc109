"""Goal: the wheel holds every package with its generated code, its data and its types, nothing else, and once installed works where there is no checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from dcnr import __version__

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("dcnr", "trust", "membership", "dataservice", "vnode", "pnode", "orchestrator", "gateway")
NOT_SHIPPED = ("simulation", "tests", "benchmarks", "examples", "docs", "proto", "chaos")
DOCUMENTS = {"gateway/openapi.json"}
"""Files of packages that no program reads."""
COMMANDS = ("pnode", "orchestrator", "dcnr")
LIMIT_S = 120.0
POLL_S = 0.05
IMPORT_ALL = """
import importlib, pathlib, sys
root = pathlib.Path(sys.argv[1])
for path in sorted(root.rglob("*.py")):
    name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    assert importlib.import_module(name).__file__ == str(path), name
"""
TOLERANCES = "from vnode.checks.tolerances import table; print(len(table()['rows']))"


def files_of(package: str) -> set[str]:
    """What a package holds, without what Python makes of it."""
    return {
        str(path.relative_to(ROOT)) for path in (ROOT / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing of it stays in the checkout; without the network."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source / name)
    for name in (*PACKAGES, "simulation", "tests", "examples"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    (found,) = out.glob("dcnr-*.whl")
    return found


@dataclass(frozen=True, slots=True)
class Clean:
    """An environment of its own with the wheel, and a directory to work in; what the wheel depends on is found where these tests find it."""

    root: Path
    site: Path
    here: Path

    @property
    def environment(self) -> dict[str, str]:
        """No PYTHONPATH, no setting of whoever runs the tests; the store's program is beside their Python."""
        path = os.pathsep.join((str(self.root / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]))
        return {"PATH": path, "OMP_NUM_THREADS": "1", "HOME": str(self.here), "NO_COLOR": "1"}

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """One of its programs, to the end."""
        return subprocess.run(
            [str(self.root / "bin" / program), *arguments], cwd=self.here, env=self.environment, capture_output=True, text=True, timeout=LIMIT_S,
            check=False,
        )  # fmt: skip

    def said(self, program: str, *arguments: str) -> str:
        """What it prints, which must end well."""
        done = self.run(program, *arguments)
        assert done.returncode == 0, f"{program} {arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Clean:
    """``python -m venv`` and ``pip install``, without the network. Links to checkouts that lie beside the dependencies are not followed there."""
    root, here = tmp_path_factory.mktemp("clean") / "venv", tmp_path_factory.mktemp("here")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(root)], check=True, timeout=LIMIT_S)
    (site,) = root.glob("lib/python3*/site-packages")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(root / "bin" / "python"),
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    environment = {"PATH": os.environ["PATH"], "HOME": str(here)}
    done = subprocess.run(
        [*pip, "--no-index", "--no-deps", str(wheel)],
        env=environment,
        cwd=here,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    dependencies = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (site / "dependencies.pth").write_text("\n".join(dependencies) + "\n")
    return Clean(root, site, here)


def test_it_holds_every_module_and_data_file_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {name for package in PACKAGES for name in files_of(package)} - DOCUMENTS
    assert {"vnode/checks/tolerances.json", "gateway/dashboard/index.html", "dcnr/py.typed", "dcnr/__init__.pyi"} <= wanted
    assert any(name.startswith("dcnr/v1/") and name.endswith("_pb2.py") for name in wanted)
    assert sorted(wanted - names) == []
    top = {name.split("/")[0] for name in names}
    assert sorted(top & set(NOT_SHIPPED)) == []
    information = [name for name in names if ".dist-info/" in name]
    assert any(name.endswith("licenses/LICENSE") for name in information)
    assert sorted(names - wanted - set(information)) == []


def test_its_commands_answer_in_a_clean_environment(clean: Clean) -> None:
    """Goal: pip makes the three commands, and they run from the installed files alone."""
    assert clean.said("python", "-c", "import dcnr; print(dcnr.__file__)").strip() == str(clean.site / "dcnr" / "__init__.py")
    for command in COMMANDS:
        assert f"Usage: {command}" in clean.said(command, "--help")
        assert clean.said(command, "--version") == f"{__version__}\n"
    demo = clean.run("dcnr", "demo")
    assert demo.returncode == 2, demo.stdout + demo.stderr
    assert "no_examples" in demo.stderr
    assert "checkout" in demo.stderr


def test_every_module_is_imported_from_what_was_installed(clean: Clean) -> None:
    """Goal: no module needs a file that is only in the checkout."""
    clean.said("python", "-c", IMPORT_ALL, str(clean.site))
    assert int(clean.said("python", "-c", TOLERANCES)) > 0


def test_an_installed_orchestrator_serves_with_its_store_and_dashboard(clean: Clean) -> None:
    """Goal: what is read only while something runs is there too: the store's supervisor, the pages of the gateway."""
    node_id = clean.said("orchestrator", "key", "--home", "o1").strip()
    clean.said("dcnr", "network", "create", "--name", "wheel", "--locality", "single-host", "--orchestrator", node_id, "--out", "m")
    command = [
        str(clean.root / "bin" / "orchestrator"), "start", "--home", "o1", "--network", "m/network.json", "--listen-host", "127.0.0.1",
        "--control-port", "0", "--dht-port", "0", "--store-port", "0", "--gateway", "127.0.0.1:0", "--until-stdin-closes",
    ]  # fmt: skip
    log = clean.here / "o1.log"
    with log.open("wb") as out:
        running = subprocess.Popen(command, cwd=clean.here, env=clean.environment, stdin=subprocess.PIPE, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + LIMIT_S
        while not (found := re.search(r"gateway (http://\S+)", log.read_text())):
            assert running.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(POLL_S)
        for path in ("/", "/dashboard/main.js"):
            with urllib.request.urlopen(found[1] + path, timeout=LIMIT_S) as answer:
                assert answer.status == 200
                assert answer.read()
    finally:
        assert running.stdin is not None
        running.stdin.close()
        running.wait(LIMIT_S)
