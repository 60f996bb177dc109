"""How much of `trust` its tests hold: small changes to its code, one at a time, each of which should turn a test red (mutation testing, DeMillo, Lipton and
Sayward 1978). Drawn anew by seed; run on a copy of the package, so nothing in the tree is touched.

A change counts as noticed if a test fails, if nothing can be imported any more, or if the tests take more processor time than any honest run: a loop without
an end. What a busy machine may be to blame for, such as too long a time by the clock, counts as not noticed.
"""

from __future__ import annotations

import ast
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.machine import ROOT
from benchmarks.result import Options, Result, Row, Target
from dcnr.errors import InvariantBroken

PACKAGE: Final = "trust"
PER_ROUND: Final = 40
FIRST_TESTS: Final = 3
"""Files that are run before all others of a module: most changes are noticed there, and collecting the others takes longer."""
TEST_CPU_S: Final = 240
TEST_WALL_S: Final = 1800.0
NOTICED: Final = (1, 2, -signal.SIGXCPU)
"""How pytest ends where a test fails, where a module cannot be imported, and at the bound on processor time."""
WANTED: Final = 0.90
QUICK_MODULES: Final = ("findings",)
COMPARED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn,
    ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
COMPUTED: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change."""

    module: str
    line: int
    what: str
    source: str


@dataclass(frozen=True, slots=True)
class Ending:
    """Of the tests of one mutant: how pytest ended (None: stopped by the clock), and the test that failed, if one did."""

    code: int | None
    test: str = ""

    @property
    def is_kill(self) -> bool:
        """Whether the change was noticed."""
        return self.code in NOTICED


def run(options: Options) -> Result:
    """``rounds`` times 40 mutants drawn from all modules that have tests of their own."""
    settings: Row = {"package": PACKAGE, "mutants_per_round": 2 if options.quick else PER_ROUND}
    result = Result("mutants", "Changes to the policy that its tests notice", settings)
    modules = {path.stem: path for path in sorted((ROOT / PACKAGE).glob("*.py")) if tests_of(path.stem)}
    if options.quick:
        modules = {name: modules[name] for name in QUICK_MODULES}
    sound: set[str] = set()
    everything = [mutant for name, path in modules.items() for mutant in mutants_of(name, path.read_text())]
    for number in range(options.rounds):
        for one in random.Random(number).sample(everything, min(settings["mutants_per_round"], len(everything))):
            result.rounds.append(tried(one, options.scratch, sound))
    conclude(result)
    return result


def tried(mutant: Mutant, scratch: Path, sound: set[str]) -> Row:
    """What its tests made of a change. A test notices one only if it passes without: that is seen once and kept in ``sound``. Raises InvariantBroken."""
    tests = tests_of(mutant.module)
    ending = run_tests(tests[:FIRST_TESTS], scratch, mutant)
    if ending.code == 0 and tests[FIRST_TESTS:]:
        ending = run_tests(tests[FIRST_TESTS:], scratch, mutant)
    if ending.test and ending.test not in sound:
        without = run_tests([ROOT / ending.test], scratch)
        if without.code != 0:
            raise InvariantBroken(f"{ending.test} fails without any change: {without}", code="bad_tests")
        sound.add(ending.test)
    told = {"killed": ending.is_kill, "by": ending.test, "code": ending.code}
    return {"module": mutant.module, "line": mutant.line, "what": mutant.what, **told}


def conclude(result: Result) -> None:
    """By module and over all."""
    for module in dict.fromkeys(row["module"] for row in result.rounds):
        rows = [row for row in result.rounds if row["module"] == module]
        result.medians[module] = {"mutants": len(rows), "killed": sum(row["killed"] for row in rows)}
    killed, total = sum(row["killed"] for row in result.rounds), len(result.rounds)
    result.ratios["mutants"] = total
    result.targets.append(Target("mutants killed", killed / total, WANTED, "", at_least=True))


def tests_of(module: str) -> list[Path]:
    """Unit and property tests that import the module: its own first, then those that import least of the package, since they see most of it soonest."""
    found = []
    for folder in ("unit", "property"):
        for path in (ROOT / "tests" / folder).glob("test_*.py"):
            text = path.read_text()
            if f"from {PACKAGE}.{module} import" in text:
                found.append((path.stem != f"test_{module}", text.count(f"from {PACKAGE}."), path))
    return [path for *_, path in sorted(found)]


def mutants_of(module: str, source: str) -> Iterator[Mutant]:
    """Every change that is tried, one mutant each: comparisons, sums and products, and/or, not, numbers, and statements left out."""
    count = sum(1 for _ in _changes(ast.parse(source)))
    for index in range(count):
        tree = ast.parse(source)
        for at, (node, what, apply) in enumerate(_changes(tree)):
            if at == index:
                apply()
                yield Mutant(module, node.lineno, what, ast.unparse(ast.fix_missing_locations(tree)))
                break


def _changes(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, str, _Apply]]:
    forms = {id(node) for part in _forms(tree) for node in ast.walk(part)}
    for node in (one for one in ast.walk(tree) if id(one) not in forms):
        match node:
            case ast.Compare(ops=[op, *_]) if type(op) in COMPARED:
                new = COMPARED[type(op)]()
                yield node, f"{type(op).__name__} to {type(new).__name__}", _Apply(node, "ops", [new, *node.ops[1:]])
            case ast.BinOp(op=op) if type(op) in COMPUTED:
                made = COMPUTED[type(op)]()
                yield node, f"{type(op).__name__} to {type(made).__name__}", _Apply(node, "op", made)
            case ast.BoolOp(op=op):
                other = ast.Or() if isinstance(op, ast.And) else ast.And()
                yield node, f"{type(op).__name__} to {type(other).__name__}", _Apply(node, "op", other)
            case ast.UnaryOp(op=ast.Not()):
                yield node, "not left out", _Apply(node, "op", ast.UAdd())
            case ast.Constant(value=bool() as value):
                yield node, f"{value} to {not value}", _Apply(node, "value", not value)
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                yield node, f"{value} to {value + 1}", _Apply(node, "value", value + 1)
            case ast.If(body=[ast.Raise(), *_]):
                yield node, "refusal left out", _Apply(node, "test", ast.Constant(value=False))


def _forms(tree: ast.Module) -> Iterator[ast.expr]:
    """What says how a class is made or what types things have: the first is not the policy, and nobody evaluates the second."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(decorator_list=decorators):
                yield from decorators
            case ast.AnnAssign(annotation=ast.expr() as kind) | ast.arg(annotation=ast.expr() as kind):
                yield kind
            case ast.FunctionDef(returns=ast.expr() as kind):
                yield kind


@dataclass(frozen=True, slots=True)
class _Apply:
    """Sets one field of a node."""

    node: ast.AST
    name: str
    value: object

    def __call__(self) -> None:
        setattr(self.node, self.name, self.value)


def run_tests(tests: list[Path], scratch: Path, mutant: Mutant | None = None) -> Ending:
    """Runs these tests on a copy of the package with that change, up to the first that fails."""
    place = scratch / "mutant"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(ROOT / PACKAGE, place / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    if mutant is not None:
        (place / PACKAGE / f"{mutant.module}.py").write_text(mutant.source)
    command = [
        sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:xdist", "--hypothesis-seed=0", *map(str, tests),
    ]  # fmt: skip
    paths = [str(place), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, timeout=TEST_WALL_S, check=False,
            preexec_fn=_bound_processor_time,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Ending(None)
    failed = re.search(r"^(?:FAILED|ERROR) \S*?(tests/[^\s\[]+)", done.stdout, re.MULTILINE)
    return Ending(done.returncode, failed[1] if failed else "")


def _bound_processor_time() -> None:
    """In the child alone; what it would have to catch ends it."""
    resource.setrlimit(resource.RLIMIT_CPU, (TEST_CPU_S, TEST_CPU_S + 5))
