"""Goal: documents cannot drift: tables equal what the code gives, every link, name, file, test and command in them exists, every figure is in a result."""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dcnr

ROOT = Path(__file__).resolve().parents[2]


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_tables", ROOT / "docs" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["docs_tables"] = module
    spec.loader.exec_module(module)
    return module


tables = _generator()
DOCUMENTS: list[Path] = tables.documents()
OURS = [path for path in DOCUMENTS if path.parent != ROOT / "benchmarks"]
PACKAGES = (*tables.PACKAGES, "simulation", "benchmarks", "tests")
TOP_LEVEL = {path.name for path in ROOT.iterdir()}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RESULT = re.compile(r"<!-- result: (\S+) (\S[^>]*?) -->(.*?)<!-- end of result -->", re.DOTALL)
FIGURE = re.compile(r"\d[\d.,]*\s?(?:samples/s|batches/s|[MG]B/s|bits per byte|GFLOP/s)")
LONG_SENTENCE = 60
"""Characters; shorter ones may be said again."""
SHARE = re.compile(r"\d[\d.,]*\s?%")
by_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
by_own_document = pytest.mark.parametrize("path", OURS, ids=lambda path: str(path.relative_to(ROOT)))


def prose(text: str) -> str:
    """The document without code blocks and generated tables."""
    return FENCE.sub("", tables.BLOCK.sub("", text))


@by_own_document
def test_no_sentence_is_there_twice(path: Path) -> None:
    """What is changed in two places at once stays in both when they meet: an older wording beside the newer one."""
    text = re.sub(r"<!-- results: begin.*?<!-- results: end -->", "", prose(path.read_text()), flags=re.DOTALL)
    words = " ".join(line for line in text.splitlines() if not line.startswith("|"))
    sentences = [re.sub(r"\s+", " ", one) for one in re.split(r"(?<=[.:;])\s+", words)]
    counts = Counter(one for one in sentences if len(one) >= LONG_SENTENCE)
    assert [one for one, count in counts.items() if count > 1] == []


@by_document
def test_tables_are_those_of_the_code(path: Path) -> None:
    text = path.read_text()
    assert text == tables.rewritten(text), "run: python docs/tables.py"


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("MAX_STOP_BYTES", 64, "64 B"), ("WARM_BYTES", 14 * 1024, "14 KiB"), ("SPOOL_BYTES", 1 << 30, "1 GiB"), ("MAX_CHUNK_BYTES", 1 << 20, "1 MiB"),
        ("RECORD_BYTES_H", 1 << 26, "64 MiB per hour"), ("SLOWEST_BYTES_S", 1 << 18, "256 KiB per second"), ("WRITTEN_STATES_H", 240, "240 per hour"),
        ("MIN_BATCHES_PER_S", 0.0001, "0.0001 per second"), ("HEAD_TTL_S", 8.0, "8 s"), ("HEAD_STOP_FRACTION", 0.8, "0.8"), ("MAX_STOPS", 4, "4"),
    ],
)  # fmt: skip
def test_a_limit_is_shown_in_the_unit_that_its_name_says(name: str, value: float, shown: str) -> None:
    assert tables._plain(name, value) == shown


@by_document
def test_links_lead_somewhere(path: Path) -> None:
    wrong: list[str] = []
    for target in re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"", FENCE.sub("", path.read_text())):
        link = target[0] or target[1]
        if "://" in link or link.startswith("mailto:"):
            continue
        name, _, anchor = link.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists() or not file.is_relative_to(ROOT):
            wrong.append(link)
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
            wrong.append(f"{link}: no such heading")
    assert wrong == []


def anchors(text: str) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_document_is_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        path = todo.pop()
        if path in seen or not path.exists():
            continue
        seen.add(path)
        todo += [
            (path.parent / link.partition("#")[0]).resolve()
            for link in re.findall(r"\]\(([^)\s#]+\.md)[^)]*\)", path.read_text())
            if "://" not in link
        ]
    assert [str(path.relative_to(ROOT)) for path in OURS if path not in seen] == []


# ---- names -----------------------------------------------------------------------------------------------------------------------


@by_document
def test_names_exist(path: Path) -> None:
    text = tables.BLOCK.sub("", path.read_text())
    said = re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    assert [problem for token in said if (problem := wrong_with(token, path))] == []


@by_document
def test_commands_in_code_blocks_exist(path: Path) -> None:
    blocks = [body for kind, body in FENCE.findall(path.read_text()) if kind in ("sh", "console")]
    said = [command for body in blocks for line in body.replace("\\\n", " ").splitlines() for command in commands_in(line)]
    assert [problem for command in said if (problem := wrong_with(command, path))] == []


def commands_in(line: str) -> list[str]:
    """The commands of our programs in one line of a shell, those inside $(...) first."""
    inner = re.findall(r"\$\(([^)]*)\)", line)
    parts = [*inner, *re.split(r"&&|\||;", re.sub(r"\$\([^)]*\)", "x", line).partition(" #")[0])]
    return [part.strip() for part in parts if re.match(r"\s*(?:pnode|orchestrator|dcnr|make) ", part)]


def wrong_with(token: str, document: Path) -> str:
    """What is wrong with a name in backticks; empty if nothing is, or if it claims nothing."""
    first = token.split(" ")[0]
    if first in tables.APPS and " " in token:
        return wrong_command(token)
    if first == "make" and " " in token:
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return "" if token.split()[1] in targets else f"{token}: no such target"
    if re.fullmatch(r"(?:PNODE|ORCHESTRATOR|DCNR)_[A-Z_]+", token):
        return "" if token in environment_names() else f"{token}: no such setting"
    if re.fullmatch(r"[A-Z]\w+Service\.\w+", token):
        service, _, call = token.partition(".")
        return "" if f"| `{service}` | `{call}` |" in tables.services("") else f"{token}: no such call"
    is_file = any((folder / token).exists() for folder in (ROOT, ROOT / "benchmarks" / "results"))
    if re.fullmatch(r"\w+(?:\.\w+)+", token) and first.partition(".")[0] in PACKAGES and not is_file:
        return "" if resolves(token) else f"{token}: no such symbol"
    name = token.removeprefix("python -m ").removeprefix("python ").split(" ")[0]
    if re.fullmatch(r"[\w./-]+(?:::\w+)?", name) and ("/" in name or name.endswith((".md", ".py", ".toml"))):
        return wrong_path(name, document)
    return ""


def wrong_path(name: str, document: Path) -> str:
    """Files are named from the root or from the document's own folder; names outside the tree's folders claim nothing."""
    file, _, test = name.partition("::")
    if file.split("/")[0] not in TOP_LEVEL and not (document.parent / file).exists():
        return ""
    found = next((path for path in (ROOT / file, document.parent / file) if path.exists()), None)
    if found is None:
        return f"{name}: no such file"
    if test and f"def {test}(" not in found.read_text():
        return f"{name}: no such test"
    return ""


def wrong_command(text: str) -> str:
    """Program, words and flags are those of the command line; placeholders and values are not judged."""
    try:
        words = shlex.split(re.sub(r"\$\([^)]*\)|<[^>]*>|…|\[[^\]]*\]", "x", text))
    except ValueError as error:
        return f"{text}: {error}"
    found = commands()
    for length in range(min(4, len(words)), 1, -1):
        if command := found.get(" ".join(words[:length])):
            known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
            unknown = [word for word in words[length:] if word.startswith("--") and word.partition("=")[0] not in known]
            return f"{text}: no option {unknown[0]}" if unknown else ""
    group = " ".join(words[:2]) + " "
    if words[1].startswith("-") or (len(words) == 2 and any(name.startswith(group) for name in found)):
        return ""
    return f"{text}: no such command"


@functools.cache
def commands() -> dict[str, Any]:
    return {name: command for app in tables.APPS for name, command in tables.commands(app).items()}


@functools.cache
def environment_names() -> set[str]:
    names = {f"{prefix}_HOME" for prefix, _ in tables.PREFIXES.values()}
    for cls in tables.PREFIXES:
        names |= set(re.findall(r"`([A-Z_]+)`", tables.settings_table(cls.__name__)))
    return names


def resolves(dotted: str) -> bool:
    """Whether a module, or a name inside one (class attributes included), exists; nothing is imported."""
    parts = dotted.split(".")
    if parts[0] == "dcnr" and parts[1] in dcnr.__all__ and len(parts) == 2:
        return True
    if parts[:2] == ["dcnr", "v1"] and len(parts) > 2:
        return any(re.search(rf"^(message|enum|service) {parts[2]} ", text, re.MULTILINE) for text in tables.proto_texts().values())
    for length in range(len(parts), 0, -1):
        base = ROOT.joinpath(*parts[:length])
        file = base.with_suffix(".py") if base.with_suffix(".py").is_file() else base / "__init__.py"
        if file.is_file() or (base.is_dir() and length == len(parts)):
            return length == len(parts) or defined(ast.parse(file.read_text()).body, parts[length:])
    return False


def defined(body: list[ast.stmt], names: list[str]) -> bool:
    """Whether the first name is defined in ``body``, and the others inside it."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == names[0]:
            return len(names) == 1 or (isinstance(node, ast.ClassDef) and defined(node.body, names[1:]))
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        if len(names) == 1 and any(isinstance(target, ast.Name) and target.id == names[0] for target in targets):
            return True
    return False


@pytest.mark.parametrize(
    "token",
    ["dcnr.errors.NoSuchError", "vnode.nothing", "dcnr.v1.Nothing", "OrchestratorService.Nothing", "tests/unit/test_nothing.py",
     "tests/unit/test_head.py::test_nothing", "pnode dance", "pnode start --colour red", "dcnr model fly", "make coffee", "PNODE_NOTHING",
     "docs/nothing.md"],
)  # fmt: skip
def test_the_check_sees_what_does_not_exist(token: str) -> None:
    assert wrong_with(token, ROOT / "README.md")


def test_code_names_only_documents_that_exist() -> None:
    wrong: list[str] = []
    for path in [*tables.modules(), *(ROOT / "simulation").glob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        for name in re.findall(r"(?<![\w*./{])([\w./-]*\w\.md)\b", path.read_text()):
            if not (ROOT / name).exists() and name not in {document.name for document in DOCUMENTS} | {"docs/nothing.md"}:
                wrong.append(f"{path.relative_to(ROOT)}: {name}")
    assert wrong == []


# ---- errors, decisions, invariants ------------------------------------------------------------------------------------------------


def test_troubleshooting_knows_the_codes_that_people_meet() -> None:
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    explained = {code for heading in re.findall(r"^### (.*)$", text, re.MULTILINE) for code in re.findall(r"`(\w+)`", heading)}
    raised = tables.raised_codes()
    assert sorted(explained - set(raised) - set(tables.why_codes())) == [], "codes that nothing raises"
    met = (
        "dcnr.cli.",
        "pnode.entry",
        "pnode.home",
        "pnode.budget",
        "dataservice.embedded",
        "dataservice.probe",
        "trust.identity",
        "dcnr.client",
    )
    needed = {code for code, by in raised.items() for names in by.values() for name in names if name.startswith(met)}
    assert sorted(needed - explained) == [], "codes without an explanation in docs/troubleshooting.md"


def test_the_shown_graph_is_valid() -> None:
    from dcnr.graph import graph_from_toml, stages_of_graph
    from vnode.registry import default_registry

    shown = [body for kind, body in FENCE.findall((ROOT / "docs" / "reference" / "graph.md").read_text()) if kind == "toml"]
    assert [stage.id for body in shown for stage in stages_of_graph(graph_from_toml(body), default_registry())] == ["conv1"]


def test_decisions_are_numbered_and_whole() -> None:
    records = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
    assert [path.name[:4] for path in records] == [f"{number:04}" for number in range(1, len(records) + 1)]
    for path in records:
        text = path.read_text()
        assert text.startswith(f"# {int(path.name[:4])}. "), path.name
        assert all(f"\n## {part}\n" in text for part in ("Why", "Decision", "Consequences")), path.name


def test_every_invariant_names_its_tests() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text().partition("## Invariants")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \|(.*)\|$", text, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 13))
    assert [number for number, row in rows if "tests/" not in row and "open:" not in row] == []


@by_document
def test_tests_that_only_make_long_runs_are_named_with_it(path: Path) -> None:
    """Else a reader takes for shown by `make test` what that does not run."""
    cited = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`( \(`make long`\))?", FENCE.sub("", path.read_text()))
    wrong = [f"{file}::{test}" for file, test, marked in cited if all(long_marks(file, test)) != bool(marked)]
    assert wrong == [], "after a test that only `make long` runs stands (`make long`), after others it does not"


@functools.cache
def long_marks(file: str, test: str) -> list[bool]:
    """Of each test that is named (of all of a file, where none is) whether it is marked `long`; False where the file has no tests."""
    path = ROOT / file
    tree = ast.parse(path.read_text()) if path.exists() else ast.Module([], [])
    found = [
        "pytest.mark.long" in map(ast.unparse, node.decorator_list)
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.name == test if test else node.name.startswith("test_"))
    ]
    return found or [False]


def test_every_kind_of_object_in_the_store_is_in_the_protocol() -> None:
    section = (ROOT / "PROTOCOL.md").read_text().partition("\n## Objects in the store\n")[2].partition("\n## ")[0]
    body = ast.parse((ROOT / "dataservice" / "keys.py").read_text()).body
    kinds = {node.name for node in body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")}
    kinds -= {name for name in kinds if name.endswith("_prefix")}
    assert kinds == set(re.findall(r"`dataservice\.keys\.(\w+)`", section))


# ---- figures ---------------------------------------------------------------------------------------------------------------------


@by_document
def test_marked_figures_are_those_of_committed_results(path: Path) -> None:
    for file, key, shown in RESULT.findall(path.read_text()):
        value: Any = json.loads((ROOT / file).read_text())
        for part in key.split("/"):
            value = value[int(part)] if isinstance(value, list) else value[part]
        decimals = len(shown.strip().replace(",", "").partition(".")[2])
        assert float(shown.replace(",", "")) == round(float(value), decimals), f"{file} {key} is {value}"


@by_own_document
def test_no_figure_is_unmarked(path: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", RESULT.sub("", prose(path.read_text())))
    found = [match.group() for match in FIGURE.finditer(text)]
    if path.name in ("README.md", "ALGORITHMS.md", "CHANGELOG.md", "ROADMAP.md"):
        found += [match.group() for match in SHARE.finditer(text)]
    assert found == [], "say where it is measured, or mark it: <!-- result: FILE KEY/KEY -->VALUE<!-- end of result -->"


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    return enumerate(path.read_text().splitlines(), 1)


@by_own_document
def test_plain_and_within_lines(path: Path) -> None:
    words = re.compile(
        r"\b(?:TODO|FIXME|XXX|blazing|seamless(?:ly)?|cutting-edge|world-class|revolutionary|effortless(?:ly)?|robustly)\b|/work/|/root/",
        re.IGNORECASE,
    )
    assert [f"{number}: {line}" for number, line in lines_of(path) if words.search(line)] == []


def test_the_description_of_rest_is_that_of_the_routes() -> None:
    assert tables.OPENAPI.read_text() == tables.openapi(), "run: python -m docs.tables"
