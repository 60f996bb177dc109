"""Goal: no task group hands an ExceptionGroup to who waits for a typed error: `except DcnrError` does not see what is inside one, and a short trouble of the
store would end what only had to try again.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("dcnr", "trust", "membership", "dataservice", "vnode", "pnode", "orchestrator", "gateway", "simulation", "chaos")
Function = ast.FunctionDef | ast.AsyncFunctionDef

COMMAND: Final = "lives as long as its command, and `dcnr.cli.errors` looks into groups"
PROCESS: Final = (
    "lives as long as its process or what owns it; its tasks meet typed errors themselves, and anything else is a bug that ends it"
)
LISTED: Final = {
    "chaos/run.py::_Measured._disturb": "inside `run`, into whose group its caller looks",
    "chaos/run.py::_Measured.run": "its caller looks into the group with `first_cause`",
    "dcnr/cli/gateway_serving.py::beside": COMMAND,
    "dcnr/question_strands.py::Strands.run": PROCESS,
    "gateway/server.py::serve_gateway": COMMAND,
    "membership/dht_directory.py::DirectoryNode._join": "what does not answer is None",
    "membership/dht_walk.py::Walker._walk": "what does not answer is part of the reply",
    "membership/exchanges.py::Exchanges.last": PROCESS,
    "membership/node.py::Membership._run": PROCESS,
    "orchestrator/auditing.py::Auditing.run": PROCESS,
    "orchestrator/infer_streams.py::InferStreams.run": PROCESS,
    "orchestrator/runtime.py::ModelRuntime.run": "`ModelTable._keep` looks into the group, and makes another one",
    "orchestrator/service.py::_serve": COMMAND,
    "pnode/crew.py::Crew.drain": "its tasks end replicas, and meet their troubles themselves",
    "pnode/daemon.py::Daemon._watch": "inside `run`, into whose group its caller looks",
    "pnode/daemon.py::Daemon.run": COMMAND,
    "pnode/hub.py::LinkHub.run": PROCESS,
    "pnode/infer_desk.py::InferDesk.run": PROCESS,
    "pnode/infer_ways.py::Ways.run": PROCESS,
    "pnode/links.py::PeerLinks.run": PROCESS,
    "pnode/listening.py::Listening.run": PROCESS,
    "simulation/control_pnode.py::PNodeShell._run": "`simulation.control_world` looks into the group with `first_cause`",
}


def opens_group(node: ast.AST) -> bool:
    return isinstance(node, ast.AsyncWith) and any(
        isinstance(item.context_expr, ast.Call) and ast.unparse(item.context_expr.func) == "asyncio.TaskGroup"
        for item in node.items
    )


def looks_inside(node: ast.Try | ast.TryStar) -> bool:
    """Whether whatever it catches is taken out of its group."""
    if isinstance(node, ast.TryStar):
        return True
    return any("ExceptionGroup" in ast.unparse(handler.type) for handler in node.handlers if handler.type is not None)


def groups(
    node: ast.AST, name: str = "", tries: tuple[ast.Try | ast.TryStar, ...] = ()
) -> Iterator[tuple[str, ast.AsyncWith, bool]]:
    """Every task group with the function it stands in, and whether a `try` around it in that function looks inside."""
    if isinstance(node, Function | ast.ClassDef):
        name, tries = f"{name}.{node.name}".lstrip("."), ()
    if opens_group(node):
        assert isinstance(node, ast.AsyncWith)
        yield name, node, any(map(looks_inside, tries))
    if isinstance(node, ast.Try | ast.TryStar):
        for child in node.body:
            yield from groups(child, name, (*tries, node))
        rest: list[ast.AST] = [*node.handlers, *node.orelse, *node.finalbody]
    else:
        rest = list(ast.iter_child_nodes(node))
    for child in rest:
        yield from groups(child, name, tries)


def run_apart(tree: ast.Module) -> set[str]:
    """Functions that are called within `apart`, where what they raise is looked into."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.TryStar):
            for call in (one for child in node.body for one in ast.walk(child)):
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "apart" and isinstance(call.args[0], ast.Call):
                    found.add(ast.unparse(call.args[0].func).rpartition(".")[2])
    return found


def catching(tree: ast.Module) -> set[str]:
    """Functions that meet typed errors themselves."""
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, Function)
        for handler in ast.walk(node)
        if isinstance(handler, ast.ExceptHandler)
        and handler.type is not None
        and {"DcnrError", "Exception", "Unavailable"} & set(ast.unparse(handler.type).strip("()").split(", "))
    }


def leaking(text: str) -> list[str]:
    """Functions of a module whose task groups hand on what their tasks raise, as a group."""
    tree = ast.parse(text)
    behind, quiet, wrong = run_apart(tree), catching(tree), list[str]()
    for name, group, is_behind in groups(tree):
        called = [
            ast.unparse(call.args[0].func).rpartition(".")[2] if isinstance(call.args[0], ast.Call) else ""
            for call in ast.walk(group)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "create_task"
        ]
        all_quiet = bool(called) and all(one in quiet for one in called)
        if not (is_behind or all_quiet or name.rpartition(".")[2] in behind):
            wrong.append(name)
    return wrong


def test_every_task_group_is_looked_into_or_is_listed_with_the_reason() -> None:
    found = {
        f"{path.relative_to(ROOT)}::{name}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if "TaskGroup()" in (text := path.read_text())
        for name in leaking(text)
    }
    assert sorted(found - LISTED.keys()) == [], "put `except*`, or `first_cause` and `apart` of dcnr.groups, around it"
    assert sorted(LISTED.keys() - found) == [], "listed, and not there any more"


def test_a_group_whose_tasks_raise_is_noticed() -> None:
    plain = """
async def sweep(store, doomed):
    async with asyncio.TaskGroup() as group:
        for key in doomed:
            group.create_task(delete(key))

async def delete(key):
    {body}
"""
    loud = plain.format(body="await store.delete(key)")
    assert leaking(loud) == ["sweep"]
    assert leaking(plain.format(body="try:\n        await store.delete(key)\n    except DcnrError:\n        pass")) == []
    assert (
        leaking(loud + "\nasync def whole():\n    try:\n        await apart(sweep(1, 2))\n    except* DcnrError:\n        pass\n")
        == []
    )
    within = loud.replace("    async with", "    try:\n     async with").replace(
        "delete(key))\n", "delete(key))\n    except {0}:\n        raise\n", 1
    )
    assert leaking(within.format("BaseExceptionGroup as errors")) == []
    assert leaking(within.format("DcnrError")) == ["sweep"]
