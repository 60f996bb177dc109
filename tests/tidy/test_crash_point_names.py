"""Goal: every crash point of the list is in the code, in one place, and the code has no other; entry points set them, nothing else does."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

from dcnr.crashpoints import POINTS

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("dcnr", "trust", "membership", "dataservice", "vnode", "pnode", "orchestrator", "gateway")
NAMED = re.compile(r"\b(?:reached|arm)\b")
ENTRY_POINTS = {"dcnr/cli/errors.py", "pnode/worker.py"}


def calls(name: str) -> list[tuple[str, ast.Call]]:
    """Every call of what has that name, outside the module that defines it, with its file."""
    return [(path, call) for path, call in calls_by_last_name().get(name.rpartition(".")[2], ()) if ast.unparse(call.func) == name]


@cache
def calls_by_last_name() -> dict[str, list[tuple[str, ast.Call]]]:
    """Every call of what passes or sets a point, by its name without what stands before the last dot."""
    found = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "v1" in path.parts or path == ROOT / "dcnr" / "crashpoints.py":
                continue
            text = path.read_text()
            if not NAMED.search(text):
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                    last = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
                    found[last].append((path.relative_to(ROOT).as_posix(), node))
    return found


def test_each_point_is_passed_in_exactly_one_place() -> None:
    passed: Counter[str] = Counter()
    for path, call in calls("reached"):
        (name,) = call.args
        assert isinstance(name, ast.Constant), f"{path}:{call.lineno} names its crash point by an expression"
        assert isinstance(name.value, str)
        passed[name.value] += 1
    assert passed == Counter(POINTS.keys())
    assert len(POINTS) >= 25


def test_only_entry_points_set_a_point() -> None:
    assert {path for path, _ in calls("crashpoints.arm")} == ENTRY_POINTS
    assert calls("arm") == []


def test_the_page_lists_every_point() -> None:
    page = (ROOT / "docs" / "chaos.md").read_text()
    assert [name for name in POINTS if f"`{name}`" not in page] == []
