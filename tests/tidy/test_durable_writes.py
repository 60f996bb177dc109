"""Goal: nothing that outlives a process is written without a crash point: a function that names or replaces a file, or puts or deletes an object of the
store, passes one, or is listed here with the reason why it need not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("dcnr", "trust", "membership", "dataservice", "vnode", "pnode", "orchestrator", "gateway")
CALLERS: Final = "whoever calls it passes a point of its own"
WITHOUT: Final = {
    "dataservice/borrowed.py::_emptied": "empties a bucket of its own, whose name was told; whoever dies there leaves it behind",
    "dataservice/objects.py::_Draft.lay": "`_lay` gives it its name",
    "dataservice/objects.py::_write": "a draft; `_lay` gives it its name",
    "dataservice/objects.py::_Draft._writing": "a draft; `lay` gives it its name",
    "dataservice/probe.py::_probe_uploads": "an object of the probe, which nobody reads later",
    "dataservice/probe.py::_stale": "an object of the probe, which nobody reads later",
    "dataservice/probe.py::check_preconditions": "an object of the probe, which nobody reads later",
    "dcnr/protoc.py::main": "made again from `proto/` by the next run",
    "dcnr/testing.py::Process.start": "a log",
    "gateway/gate.py::Gate.__call__": "a span of a trace gets its name, no file",
    "gateway/keys.py::KeyFile._open": "opens the file; changes are made in `_change`",
    "orchestrator/job_words.py::JobWords.repeat": "the same bytes under the name that they had; whoever looks next writes what is lacking",
    "orchestrator/admission.py::_put_over": CALLERS,
    "orchestrator/documents.py::put_all.put": CALLERS,
    "orchestrator/documents.py::put_once": CALLERS,
    "orchestrator/history.py::History._begin_anew": "sets aside what nobody can read; a start that dies there finds no file, and begins anew",
    "orchestrator/history.py::History._connect": "opens the file; rows are written in `_write_rows`",
    "orchestrator/naming.py::Naming.next": CALLERS,
    "pnode/courtesy.py::give_way": "a setting of the kernel, which goes with the process",
    "pnode/evidence.py::EvidenceFolder.open": "an empty file; the order that follows passes a point",
    "pnode/supervisor.py::shorten": "a log; who dies there leaves less of it",
    "vnode/bundle.py::BundleWriter.__init__": "a draft; `close` gives it its name",
}


def written(call: ast.Call) -> bool:
    """Whether a call makes, names or removes something that outlives the process."""
    function = call.func
    if isinstance(function, ast.Name):
        return function.id in ("put_once", "put_all")
    if not isinstance(function, ast.Attribute):
        return False
    owner = ast.unparse(function.value)
    match function.attr:
        case "replace" | "rename" | "write_text" | "write_bytes":  # of a text it has two arguments
            return len(call.args) == 1
        case "link" | "fsync":
            return owner == "os"
        case "connect":
            return owner == "sqlite3"
        case "put" | "delete":
            return owner.rpartition(".")[2].lstrip("_") == "store"
        case "open":
            mode = call.args[0] if call.args else None
            return isinstance(mode, ast.Constant) and isinstance(mode.value, str) and bool(set(mode.value) & set("wax"))
        case _:
            return False


def functions(node: ast.AST, name: str = "") -> Iterator[tuple[str, list[ast.Call]]]:
    """Every function by its name with the calls of its own body; what stands in a function within it is that one's."""
    calls: list[ast.Call] = []
    inner = list(ast.iter_child_nodes(node))
    while inner:
        child = inner.pop()
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from functions(child, f"{name}.{child.name}".lstrip("."))
            continue
        if isinstance(child, ast.Call):
            calls.append(child)
        inner.extend(ast.iter_child_nodes(child))
    yield name, calls


def unmarked(text: str) -> list[str]:
    """The functions of a module that write and pass no point."""
    found = functions(ast.parse(text))
    return [
        name for name, calls in found if any(map(written, calls)) and not any(ast.unparse(call.func) == "reached" for call in calls)
    ]


def test_every_durable_write_has_a_crash_point() -> None:
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "v1" not in path.parts:
                found += [f"{path.relative_to(ROOT).as_posix()}::{name}" for name in unmarked(path.read_text())]
    assert sorted(found) == sorted(WITHOUT), "give it a point (CONTRIBUTING.md, a new durable write), or say here why it needs none"


def test_a_write_without_a_point_is_seen() -> None:
    """Goal: the rule can turn red, for each kind of write."""
    for write in (
        "draft.replace(path)", "path.write_text(text)", 'path.open("wb")', "os.link(draft, path)", "await self._store.put(key, data)",
        "await put_once(store, key, data)", "store.delete(key)", "sqlite3.connect(path)",
    ):  # fmt: skip
        assert unmarked(f"class A:\n    async def b(self):\n        {write}\n") == ["A.b"], write
        assert unmarked(f"async def b(self):\n    {write}\n    reached('a.b')\n") == []
    for other in ('text.replace("a", "b")', "queue.put(one)", 'path.open("rb")', "replace(one, two=3)"):
        assert unmarked(f"def b():\n    {other}\n") == [], other
