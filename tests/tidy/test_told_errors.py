"""Goal: the text of an error that nobody thought of never leaves a machine: it holds paths, and they hold the name of whoever owns it.

Such errors are worded in one place, `dcnr.errors.for_others`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from test_style import MODULES, ROOT, name_of, tree_of

FOR_THE_OWNER_ALONE = {
    "dcnr/cli/": "commands speak to whoever gave them",
    "dcnr/demo/": "as commands do",
    "install.py": "on the machine of whoever installs",
    "dcnr/settings.py": "read at a start, for whoever starts it",
    "dataservice/staging.py": "on the machine of whoever stages",
    "vnode/outside.py": "read at a start, for whoever named the component",
    "vnode/importing/": "on the maintainer's own machine",
    "pnode/worker.py": "the last words in the log of a worker",
    "dataservice/embedded.py": "read at a start, for whoever starts the store",
    "chaos/": "no part of the network",
    "simulation/": "no part of the network",
}
TEXT_IS_SAFE = {"DcnrError", "TimeoutError", "sqlite3.Error", "sqlite3.DatabaseError", "sqlite3.OperationalError", "RestError"}
"""Errors of this project have texts of their own; SQLite's are its own words. Below: classes that never come of a file."""
TEXT_IS_SAFE |= {
    "Corrupt", "Refused", "InvalidInput", "NotFound", "Unavailable", "Stale", "RemoteFault", "ValueError", "RecursionError",
    "json.JSONDecodeError", "tomllib.TOMLDecodeError", "UnicodeDecodeError", "SafetensorError", "Overtaken", "DecodeError", "RuntimeError",
    "TypeError", "KeyError", "AttributeError", "OverflowError", "UnicodeError", "grpc.aio.AioRpcError", "ImportError",
    "grpc.RpcError", "grpc.aio.BaseError", "asyncio.InvalidStateError",
}  # fmt: skip


def spoken() -> Iterator[tuple[Path, ast.Module]]:
    """The modules whose words others may hear."""
    for path in MODULES:
        if not str(path.relative_to(ROOT)).startswith(tuple(FOR_THE_OWNER_ALONE)) and path != ROOT / "dcnr" / "errors.py":
            yield path, tree_of(path)


def test_no_text_puts_an_errors_class_before_its_own_words() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, tree in spoken()
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr) and _classes(node) & _values(node)
    ]
    assert wrong == [], "word it with dcnr.errors.for_others, and log the whole with dcnr.logs.told"


def test_an_error_of_any_class_is_not_made_a_text_where_it_is_caught() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} makes a text of {handler.name}"
        for path, tree in spoken()
        for handler in ast.walk(tree)
        if isinstance(handler, ast.ExceptHandler) and handler.name and not _caught(handler) <= TEXT_IS_SAFE
        for node in ast.walk(handler)
        if _makes_a_text_of(handler.name, node)
    ]
    assert wrong == [], "word it with dcnr.errors.for_others, and log the whole with dcnr.logs.told"


def _caught(handler: ast.ExceptHandler) -> set[str]:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type] if handler.type else []
    return {name_of(kind) for kind in kinds}


def _values(text: ast.JoinedStr) -> set[str]:
    """Names that are written out in it."""
    return {part.value.id for part in text.values if isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Name)}


def _classes(text: ast.JoinedStr) -> set[str]:
    """Names whose class is."""
    return {
        call.args[0].id
        for part in text.values
        if isinstance(part, ast.FormattedValue)
        for call in ast.walk(part.value)
        if isinstance(call, ast.Call)
        and name_of(call.func) == "type"
        and len(call.args) == 1
        and isinstance(call.args[0], ast.Name)
    }


def _makes_a_text_of(name: str, node: ast.AST) -> bool:
    if isinstance(node, ast.JoinedStr):
        return name in _values(node)
    is_text = isinstance(node, ast.Call) and name_of(node.func) in {"str", "repr"} and len(node.args) == 1
    return is_text and isinstance(node.args[0], ast.Name) and node.args[0].id == name  # type: ignore[attr-defined]
