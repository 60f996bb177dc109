"""Whether every refusal of `trust` and of the checks is held by a test: each is left out in turn, and each part of one, and a test of its module has to
turn red.

Nothing is drawn, other than for `benchmarks.mutants`, so one round says all. A refusal is an ``if`` that ends in ``raise``, ``return`` or ``continue``; a
condition that is returned; a call that only checks; and an error put into the terms of the caller. Its parts are the sides of a refusing ``or``, those of an
``and`` that has to hold, and the halves of ``low < value <= high``.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from benchmarks.mutants import Mutant, Trials, folder_of, tests_of
from benchmarks.result import Options, Result, Target

PACKAGES: Final = ("trust", "vnode.checks")
QUICK_MODULES: Final = {"trust": "findings", "vnode.checks": "tolerances"}
CHECKS: Final = ("check_", "_check", "_require", "_limit")
"""How functions are called that refuse."""
UNNOTICED: Final = {
    ("decay", "0.0 <= value"): "the sum that it is added to refuses it in the same words",
    ("folding", "self.decided_s <= now_s and self.committed_s <= now_s"): "a short cut: what is made without it is equal",
    ("folding", "places.keys().isdisjoint(doomed)"): "a short cut: nothing leaves a line without it either",
    ("layers", "not news"): "a short cut: what is made without it has the same entries",
}
"""What no test can notice, and why."""
Removal = tuple[int, str, Callable[[], object]]
"""Line, what is left out, and how."""


def run(options: Options) -> Result:
    """Every refusal of the modules that have tests of their own; rounds change nothing."""
    result = Result(
        "refusals",
        "Refusals of `trust` and `vnode.checks` that no test notices when they are left out",
        {"packages": list(PACKAGES)},
    )
    for package in PACKAGES:
        modules = [path for path in sorted(folder_of(package).glob("*.py")) if tests_of(package, path.stem)]
        everything = [
            one
            for path in modules
            if not options.quick or path.stem == QUICK_MODULES[package]
            for one in refusals_of(path.stem, path.read_text())
        ]
        with Trials(options, result.benchmark, package) as trials:
            for number, one in enumerate(everything, start=1):
                row = {"package": package, **trials.row(one)}
                result.rounds.append(row)
                told = f"{package}.{one.module}:{one.line}: {row['by'] or row['code']}"
                print(f"  {number}/{len(everything)} {told}", file=sys.stderr, flush=True)
    conclude(result)
    return result


def conclude(result: Result) -> None:
    """By module, and all whose absence no test noticed."""
    for package in PACKAGES:
        of_package = [row for row in result.rounds if row.get("package", PACKAGES[0]) == package]
        for module in dict.fromkeys(row["module"] for row in of_package):
            rows = [row for row in of_package if row["module"] == module]
            noticed = sum(row["killed"] for row in rows)
            result.medians[f"{package}.{module}"] = {"refusals": len(rows), "noticed": noticed, "unnoticed": len(rows) - noticed}
        unnoticed = [row for row in of_package if not row["killed"] and (row["module"], row["what"]) not in UNNOTICED]
        name = f"refusals of `{package}` that are left out and no test notices"
        result.targets.append(Target(name, len(unnoticed) if of_package else None, 0, "", at_least=False))
    result.ratios["refusals"] = len(result.rounds)
    missed = {(row["module"], row["what"]) for row in result.rounds if not row["killed"]}
    result.notes += [f"{module}: {what}: {why}" for (module, what), why in UNNOTICED.items() if (module, what) in missed]


def refusals_of(module: str, source: str) -> Iterator[Mutant]:
    """The module without one refusal or a part of one, for each."""
    for index in range(sum(1 for _ in _removals(ast.parse(source)))):
        tree = ast.parse(source)
        line, what, remove = next(one for at, one in enumerate(_removals(tree)) if at == index)
        remove()
        yield Mutant(module, line, what, ast.unparse(ast.fix_missing_locations(tree)))


def _removals(tree: ast.Module) -> Iterator[Removal]:
    for node in ast.walk(tree):
        match node:
            case ast.If(test=test, body=[*_, ast.Raise() | ast.Return() | ast.Continue()]):
                yield from _parts(partial(setattr, node, "test"), test, refuses=True)
            case ast.Return(value=ast.BoolOp() | ast.Compare() as value):
                yield from _parts(partial(setattr, node, "value"), value, refuses=False)
            case ast.ExceptHandler(body=[*_, ast.Raise(exc=ast.Call()) as last]):
                yield last.lineno, ast.unparse(last), partial(node.body.__setitem__, -1, ast.Raise())
            case ast.Expr(value=ast.Call() as call) if _is_check(call):
                yield call.lineno, ast.unparse(call), partial(setattr, node, "value", ast.Constant(value=None))
            case ast.Call(args=args):
                for index, one in enumerate(args):
                    if isinstance(one, ast.Call) and _is_check(one):
                        yield one.lineno, ast.unparse(one), partial(args.__setitem__, index, one.args[0])
            case ast.keyword(value=ast.Call() as one) | ast.Assign(value=ast.Call() as one) if _is_check(one):
                yield one.lineno, ast.unparse(one), partial(setattr, node, "value", one.args[0])


def _parts(put: Callable[[ast.expr], object], node: ast.expr, *, refuses: bool) -> Iterator[Removal]:
    """Ways in which a condition no longer refuses. ``refuses``: it does so where it is true, else where it is not."""
    yield node.lineno, ast.unparse(node), partial(put, ast.Constant(value=not refuses))
    match node:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _parts(partial(setattr, node, "operand"), operand, refuses=not refuses)
            next(inner)
            yield from inner
        case ast.BoolOp(op=op, values=values) if isinstance(op, ast.Or) is refuses:
            for index, value in enumerate(values):
                yield from _parts(partial(values.__setitem__, index), value, refuses=refuses)
        case ast.Compare(left=low, ops=[first, second], comparators=[value, high]) if not refuses:
            yield node.lineno, ast.unparse(ast.Compare(low, [first], [value])), partial(put, ast.Compare(value, [second], [high]))
            yield node.lineno, ast.unparse(ast.Compare(value, [second], [high])), partial(put, ast.Compare(low, [first], [value]))


def _is_check(call: ast.Call) -> bool:
    return bool(call.args) and ast.unparse(call.func).rpartition(".")[2].startswith(CHECKS)
