"""How much of `trust` its tests hold: small changes to its code, one at a time, each of which should turn a test red (mutation testing, DeMillo, Lipton and
Sayward 1978). Drawn anew by seed, one of each module in turn and then from all together; run on a copy of the package, so nothing in the tree is touched.

A change counts as noticed if a test fails, if nothing can be imported any more, or if the tests take more processor time than any honest run: a loop without
an end. What a busy machine may be to blame for, such as too long a time by the clock, counts as not noticed.
"""

from __future__ import annotations

import ast
import random
import re
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from benchmarks.forked_tests import ForkedTests
from benchmarks.kept import Kept, key_of
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


def run(options: Options) -> Result:
    """``rounds`` times 40 mutants drawn from all modules that have tests of their own."""
    modules = {path.stem: path for path in sorted(folder_of(PACKAGE).glob("*.py")) if tests_of(PACKAGE, path.stem)}
    if options.quick:
        modules = {name: modules[name] for name in QUICK_MODULES}
    by_module = {name: list(mutants_of(name, path.read_text())) for name, path in modules.items()}
    by_module = {name: found for name, found in by_module.items() if found}
    settings: Row = {"package": PACKAGE, "mutants_per_round": 2 if options.quick else PER_ROUND, "modules": list(by_module)}
    result = Result("mutants", "Changes to the policy that its tests notice", settings)
    with Trials(options, result.benchmark, PACKAGE) as trials:
        for one in drawn(by_module, options.rounds, settings["mutants_per_round"]):
            result.rounds.append(trials.row(one))
    conclude(result)
    return result


def drawn(by_module: Mapping[str, Sequence[Mutant]], rounds: int, per_round: int) -> Iterator[Mutant]:
    """In each round one of every module first, as far as a round reaches, then from all that are left; the next round begins with the modules that had none."""
    turn = 0
    left = {name: random.Random(name).sample(found, len(found)) for name, found in by_module.items()}
    for number in range(rounds):
        names = list(left)
        for name in [names[(turn + at) % len(names)] for at in range(min(per_round, len(names)))]:
            if left[name]:
                yield left[name].pop()
        turn += min(per_round, len(names))
        others = [(name, one) for name, found in left.items() for one in found]
        for name, one in random.Random(number).sample(others, min(max(0, per_round - len(names)), len(others))):
            left[name].remove(one)
            yield one


class Trials:
    """Runs the tests of one change after the other, on a copy of the package, and keeps what they made of it. Ends with the block. ``package``: dotted; all of
    what it lies in is copied.
    """

    def __init__(self, options: Options, benchmark: str, package: str) -> None:
        self._package_name = package
        self._place, self._scratch = options.scratch / "mutant", options.scratch
        self._kept = Kept(options.kept and options.kept / f"{benchmark}.jsonl")
        self._package = key_of(path.read_bytes() for path in sorted(folder_of(package).glob("*.py")))
        self._sound: set[str] = set()
        self._runner: ForkedTests | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._runner is not None:
            self._runner.__exit__(kind, error, trace)

    def row(self, mutant: Mutant) -> Row:
        """What its tests made of a change; as they did before, where neither they nor the package are others. Raises InvariantBroken."""
        tests = tests_of(self._package_name, mutant.module)
        parts = (self._package, mutant.source, *(path.name for path in tests), *(path.read_text() for path in tests))
        return self._kept.row(key_of(part.encode() for part in parts), lambda: self._tried(mutant, tests))

    def _tried(self, mutant: Mutant, tests: list[Path]) -> Row:
        """A test notices a change only if it passes without."""
        ending, failed = self._run(tests[:FIRST_TESTS], mutant)
        if ending == 0 and tests[FIRST_TESTS:]:
            ending, failed = self._run(tests[FIRST_TESTS:], mutant)
        if failed and failed not in self._sound:
            without, _ = self._run([ROOT / failed])
            if without != 0:
                raise InvariantBroken(f"{failed} fails without any change: {without}", code="bad_tests")
            self._sound.add(failed)
        told = {"killed": ending in NOTICED, "by": failed, "code": ending}
        return {"module": mutant.module, "line": mutant.line, "what": mutant.what, **told}

    def _run(self, tests: list[Path], mutant: Mutant | None = None) -> tuple[int | None, str]:
        """How the tests end on a copy of the package with that change, and the first that fails."""
        shutil.rmtree(self._place, ignore_errors=True)
        outermost = self._package_name.partition(".")[0]
        shutil.copytree(
            ROOT / outermost, self._place / outermost
        )  # and what was compiled: it goes by the time and size of each file
        if mutant is not None:
            (self._place / Path(*self._package_name.split(".")) / f"{mutant.module}.py").write_text(mutant.source)
        if self._runner is None:
            self._runner = ForkedTests(outermost, self._scratch, cpu_s=TEST_CPU_S, wall_s=TEST_WALL_S)
        ending = self._runner.run(tests, self._place)
        failed = re.search(r"^(?:FAILED|ERROR) \S*?(tests/[^\s\[]+)", ending.output, re.MULTILINE)
        return ending.code, failed[1] if failed else ""


def conclude(result: Result) -> None:
    """By module and over all."""
    for module in dict.fromkeys(row["module"] for row in result.rounds):
        rows = [row for row in result.rounds if row["module"] == module]
        result.medians[module] = {"mutants": len(rows), "killed": sum(row["killed"] for row in rows)}
    killed, total = sum(row["killed"] for row in result.rounds), len(result.rounds)
    result.ratios["mutants"] = total
    result.targets.append(Target("mutants killed", killed / total, WANTED, "", at_least=True))
    modules = result.settings.get("modules")
    untried = None if modules is None else len(set(modules) - set(result.medians))
    result.targets.append(Target("modules of which none was drawn", untried, 0, "", at_least=False))


def folder_of(package: str) -> Path:
    """Where its modules lie."""
    return ROOT.joinpath(*package.split("."))


def tests_of(package: str, module: str) -> list[Path]:
    """Unit and property tests that import the module: its own first, then those that import least of the package, since they see most of it soonest. Where
    none does, those of the modules of its package that import it.
    """
    if found := _importing_tests(package, module):
        return found
    users = [path for path in sorted(folder_of(package).glob("*.py")) if imports(path.read_text(), package, module)]
    return list(dict.fromkeys(test for path in users for test in _importing_tests(package, path.stem)))


def _importing_tests(package: str, module: str) -> list[Path]:
    found = []
    for folder in ("unit", "property"):
        for path in (ROOT / "tests" / folder).glob("test_*.py"):
            text = path.read_text()
            if imports(text, package, module):
                found.append((path.stem != f"test_{module}", text.count(f"from {package}."), path))
    return [path for *_, path in sorted(found)]


def imports(text: str, package: str, module: str) -> bool:
    """Whether a module with that text imports it, in either of the two ways."""
    name = re.escape(package)
    return re.search(rf"^from {name}(\.{module} import | import [^\n]*\b{module}\b)", text, re.MULTILINE) is not None


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
