"""Tables in the documents are made from the code: ``python docs/tables.py`` writes them anew, ``--check`` says which are out of date.

A document holds ``<!-- table: NAME ARGUMENT -->`` and ``<!-- end of table -->``; what lies between the two lines belongs to this script. Sources: the
proto files with their comments, the error tree, `dcnr.limits`, the settings classes, the command line as typer knows it, the registry of
components, ``docs/glossary.toml``, the committed runs of the demo, and for codes the calls that raise them.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import sys
import tomllib
import typing
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import click
import typer.main

from dcnr import errors, limits, settings
from dcnr.cli import dcnr as dcnr_command
from dcnr.cli import orchestrator as orchestrator_command
from dcnr.cli import pnode as pnode_command
from dcnr.cli import schemas
from dcnr.cli.homes import PREFIXES
from dcnr.demo import record
from gateway.app import description
from gateway.errors import CODES
from gateway.metrics import CATALOGUE
from vnode.registry import default_registry

ROOT: Final = Path(__file__).resolve().parents[1]
OPENAPI: Final = ROOT / "gateway" / "openapi.json"
SCHEMAS: Final = ROOT / "docs" / "schemas"
PACKAGES: Final = ("dcnr", "trust", "membership", "dataservice", "vnode", "pnode", "orchestrator", "gateway")
APPS: Final = {"dcnr": dcnr_command.app, "orchestrator": orchestrator_command.app, "pnode": pnode_command.app}
EXITS: Final = {
    0: "ok",
    1: "failed",
    2: "usage or wrong input",
    3: "not running",
    4: "unreachable",
    5: "refused by policy",
    6: "timed out",
}
BLOCK: Final = re.compile(r"(<!-- table: ([a-z-]+)(?: ([\w. /-]+?))? -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)


def documents() -> list[Path]:
    """All Markdown documents of the tree."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")])


def rewritten(text: str) -> str:
    """``text`` with every table made anew. Raises KeyError for a table that nobody makes."""
    return BLOCK.sub(lambda found: f"{found[1]}{TABLES[found[2]](found[3] or '')}\n{found[5]}", text)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    lines = [[str(cell).replace("|", "\\|").replace("\n", " ").strip() for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in [list(header), ["---"] * len(header), *lines])


# ---- the contract ----------------------------------------------------------------------------------------------------------------


def proto_texts() -> dict[str, str]:
    """Proto files by stem."""
    return {path.stem: path.read_text() for path in sorted((ROOT / "proto" / "dcnr" / "v1").glob("*.proto"))}


def services(_: str) -> str:
    """Every call with what it is for."""
    rows: list[tuple[str, str, str, str]] = []
    for text in proto_texts().values():
        for service in re.finditer(r"^service (\w+) \{\n(.*?)^\}", text, re.DOTALL | re.MULTILINE):
            pattern = r"((?:^\s*//.*\n)+)\s*rpc (\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\);"
            for call in re.finditer(pattern, service[2], re.MULTILINE):
                comment = " ".join(line.strip().lstrip("/ ") for line in call[1].strip().splitlines())
                kind = {
                    (False, False): "unary",
                    (True, False): "stream up",
                    (False, True): "stream down",
                    (True, True): "both ways",
                }
                rows.append((f"`{service[1]}`", f"`{call[2]}`", kind[bool(call[3]), bool(call[5])], comment))
    return table(("service", "call", "kind", "what it does"), rows)


def messages(stem: str) -> str:
    """Every message of one proto file with its comment."""
    found = re.finditer(r"((?:^//.*\n)+)message (\w+)", proto_texts()[stem], re.MULTILINE)
    rows = [(f"`{m[2]}`", " ".join(line.lstrip("/ ") for line in m[1].strip().splitlines())) for m in found]
    return table(("message", "what it is"), rows)


def fields(message: str) -> str:
    """The fields of one message with their comments."""
    for text in proto_texts().values():
        if body := re.search(rf"^message {message} \{{\n(.*?)^\}}", text, re.DOTALL | re.MULTILINE):
            rows = re.findall(r"^\s+((?:repeated )?[\w.<>, ]+?) (\w+) = \d+;\s*// (.*)$", body[1], re.MULTILINE)
            return table(("field", "type", "meaning"), [(f"`{name}`", kind, meaning) for kind, name, meaning in rows])
    raise KeyError(f"there is no message {message}")


def enum(name: str) -> str:
    """The values of one enum, in words, with their comments."""
    for text in proto_texts().values():
        if body := re.search(rf"^enum {name} \{{\n(.*?)^\}}", text, re.DOTALL | re.MULTILINE):
            prefix = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", re.sub(r"^PNode", "Pnode", name)).upper() + "_"
            values = re.findall(r"^\s+(\w+) = \d+;\s*// (.*)$", body[1], re.MULTILINE)
            rows = [
                (f"`{value.removeprefix(prefix).lower()}`", text) for value, text in values if not value.endswith("UNSPECIFIED")
            ]
            return table(("value", "meaning"), rows)
    raise KeyError(f"there is no enum {name}")


def glossary(_: str) -> str:
    """The vocabulary; each word with the symbol that carries it."""
    words = tomllib.loads((ROOT / "docs" / "glossary.toml").read_text())
    return table(("word", "meaning", "in the code"), [(f"**{w}**", e["meaning"], f"`{e['symbol']}`") for w, e in words.items()])


# ---- errors ----------------------------------------------------------------------------------------------------------------------


def error_classes(_: str) -> str:
    """The tree: who can act, and the three statuses."""
    rows = [
        (f"`{cls.__name__}`", (cls.__doc__ or "").splitlines()[0], f"`{cls.grpc_status}`", cls.http_status, cls.exit_code)
        for cls in errors.ERROR_CLASSES
    ]
    return table(("class", "meaning", "gRPC", "HTTP", "exit"), rows)


def exit_codes(_: str) -> str:
    """Of every command."""
    return table(("exit code", "meaning"), [*EXITS.items(), (130, "interrupted")])


@cache
def raised_codes() -> dict[str, dict[str, list[str]]]:
    """Code to class to modules, from every call that names one of the error classes; defaults included."""
    classes = {cls.__name__: cls.default_code for cls in errors.ERROR_CLASSES}
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for path in modules():
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and (
                base := next((ast.unparse(b) for b in node.bases if ast.unparse(b) in classes), "")
            ):
                for value in (
                    key.value for call in ast.walk(node) if isinstance(call, ast.Call) for key in call.keywords if key.arg == "code"
                ):
                    if isinstance(value, ast.Constant):  # a class of its own, with its code in ``super().__init__``
                        found[str(value.value)][base].add(name)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in classes:
                given = [key.value for key in node.keywords if key.arg == "code"]
                for value in given:
                    for constant in ast.walk(value) if not isinstance(value, ast.JoinedStr) else ():
                        if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                            found[constant.value][node.func.id].add(name)
                if not given:
                    found[classes[node.func.id]][node.func.id].add(name)
    return {code: {cls: sorted(names) for cls, names in sorted(by.items())} for code, by in sorted(found.items())}


def codes(_: str) -> str:
    """Every code with its class and the packages that raise it."""
    rows = [
        (f"`{code}`", f"`{cls}`", ", ".join(sorted({name.partition(".")[0] for name in names})))
        for code, by in raised_codes().items()
        for cls, names in by.items()
    ]
    return table(("code", "class", "raised in"), rows)


def why_codes() -> dict[str, str]:
    """The reasons that `pnode why` gives, with what would change them."""
    calls = [node for node in ast.walk(ast.parse((ROOT / "pnode" / "reasons.py").read_text())) if isinstance(node, ast.Call)]
    found: dict[str, str] = {}
    for call in sorted(calls, key=lambda call: call.lineno):
        if isinstance(call.func, ast.Name) and call.func.id == "line" and isinstance(call.args[0], ast.Constant):
            parts = getattr(call.args[2], "values", [call.args[2]])
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)
            found[str(call.args[0].value)] = text or "nothing has to"
    return found


def why(_: str) -> str:
    """As a table."""
    return table(("reason", "what would change it"), [(f"`{code}`", change) for code, change in why_codes().items()])


# ---- REST ------------------------------------------------------------------------------------------------------------------------


def rest_codes(_: str) -> str:
    """Every code of the gateway."""
    return table(("code", "status", "meaning"), [(f"`{name}`", code.status, code.meaning) for name, code in CODES.items()])


def rest_routes(_: str) -> str:
    """Every route of the gateway."""
    rows = [
        (f"`{method.upper()} {path}`", operation["summary"])
        for path, operations in description()["paths"].items()
        for method, operation in operations.items()
    ]
    return table(("route", "what it gives"), rows)


def metrics(_: str) -> str:
    """Every family of metrics."""
    rows = [(f"`{name}`", kind, ", ".join(labels), meaning) for name, (kind, labels, meaning) in CATALOGUE.items()]
    return table(("metric", "kind", "labels", "meaning"), rows)


def openapi() -> str:
    """The file gateway/openapi.json."""
    return json.dumps(description(), indent=1, ensure_ascii=False) + "\n"


def made_files() -> dict[Path, str]:
    """Files that are made as a whole: the description of the REST routes, the schema of each JSON output."""
    found = {SCHEMAS / schemas.file_of(name): json.dumps(schemas.schema_of(name), indent=1) + "\n" for name in schemas.SCHEMAS}
    return {OPENAPI: openapi(), **found}


# ---- settings, limits, commands, components --------------------------------------------------------------------------------------


def _setting_rows(cls: type[Any], prefix: str, path: tuple[str, ...] = ()) -> list[tuple[str, str, str, str]]:
    rows: list[tuple[str, str, str, str]] = []
    hints = typing.get_type_hints(cls)
    for item in dataclasses.fields(cls):
        kind, inner = hints[item.name], (*path, item.name)
        if dataclasses.is_dataclass(kind):
            rows += _setting_rows(typing.cast(type[Any], kind), prefix, inner)
            continue
        default = ", ".join(item.default) if isinstance(item.default, tuple) else item.default
        shown = f"`{default}`" if default not in ("", ()) else "empty"
        rule = item.metadata["rule"]
        text = rule.help + (f" ({', '.join(rule.options)})" if rule.options else "")
        rows.append((f"`{'.'.join(inner)}`", shown, f"`{prefix}_{'_'.join(inner).upper()}`", text))
    return rows


def settings_table(name: str) -> str:
    """One settings class: key in config.toml, default, environment, meaning."""
    cls = getattr(settings, name)
    return table(("key", "default", "environment", "meaning"), _setting_rows(cls, PREFIXES[cls][0]))


def limits_table(_: str) -> str:
    """Every constant of `dcnr.limits` with its value and note."""
    rows: list[tuple[str, str, str]] = []
    body = ast.parse((ROOT / "dcnr" / "limits.py").read_text()).body
    for position, node in enumerate(body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id not in ("KIB", "MIB"):
            after = body[position + 1] if position + 1 < len(body) else None
            note = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            rows.append((f"`{node.target.id}`", _plain(node.target.id, getattr(limits, node.target.id)), str(note)))
    return table(("limit", "value", "note"), rows)


def _plain(name: str, value: float) -> str:
    """The value in the unit that its name says: bytes, seconds, either of them per second or hour, or a number."""
    words = name.split("_")
    per = {"S": "second", "H": "hour"}.get(words[-1], "")
    if "BYTES" in words[-2:]:
        return f"{_bytes(value)} per {per}" if per else _bytes(value)
    if words[-1] == "S" and words[-2] != "PER":
        return f"{value:g} s"
    return f"{value:g} per {per}" if per else f"{value:g}"


def _bytes(value: float) -> str:
    for size, unit in ((1024 * limits.MIB, "GiB"), (limits.MIB, "MiB"), (limits.KIB, "KiB")):
        if value and value % size == 0:
            return f"{value / size:g} {unit}"
    return f"{value:g} B"


def commands(app: str) -> dict[str, click.Command]:
    """Every command of one program by its words: ``dcnr data stage``."""
    found: dict[str, click.Command] = {}

    def walk(name: str, command: Any) -> None:
        if hasattr(command, "commands"):
            for word, inner in command.commands.items():
                walk(f"{name} {word}", inner)
        else:
            found[name] = command

    walk(app, typer.main.get_command(APPS[app]))
    return found


def cli(app: str) -> str:
    """The reference of one program."""
    parts: list[str] = []
    for name, command in commands(app).items():
        help_text = inspect.cleandoc(command.help or "").replace("\f", "")
        parts.append(f"### `{name}`\n\n{_fenced_examples(help_text)}")
        rows = [_parameter_row(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
        if rows:
            parts.append(table(("parameter", "default", "meaning"), rows))
        if name in schemas.SCHEMAS:
            each = "Each line of its JSON" if name in schemas.LINES else "Its JSON"
            parts.append(f"{each}: [{schemas.file_of(name)}](../schemas/{schemas.file_of(name)})")
    return "\n\n".join(parts)


def _fenced_examples(text: str) -> str:
    return re.sub(r"^Example: (.*)$", r"Example: `\1`", text, flags=re.MULTILINE)


def _parameter_row(parameter: Any) -> tuple[str, str, str]:
    argument = parameter.param_type_name == "argument"
    names = parameter.name.upper() if argument else " / ".join([*parameter.opts, *parameter.secondary_opts])
    default = parameter.default() if callable(parameter.default) else parameter.default
    shown = "required" if parameter.required else "" if default in (None, "", False, ()) else f"`{default}`"
    return f"`{names}`", shown, (parameter.help or "").strip()


def components(_: str) -> str:
    """The allow-list: what a graph may name."""
    registry, rows = default_registry(), []
    kinds: Mapping[str, Mapping[str, Any]] = {
        "component": registry.components, "objective": registry.objectives, "optimiser": registry.optimizers,
    }  # fmt: skip
    for kind, specs in kinds.items():
        for name, spec in sorted(specs.items()):
            text = inspect.cleandoc(type(spec).__doc__ or "")
            rows.append(
                (f"`{name}`", kind, "yes" if getattr(spec, "stateful", kind == "objective") else "no", " ".join(text.split()))
            )
    return table(("name", "kind", "has weights", "configuration"), rows)


def adrs(_: str) -> str:
    """The decision records with their titles."""
    rows = [
        (f"[{path.stem[:4]}]({path.name})", path.read_text().splitlines()[0].partition(". ")[2])
        for path in sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
    ]
    return table(("number", "decision"), rows)


def demo(name: str) -> str:
    """What the committed run of an example came to."""
    path = ROOT / "examples" / name / record.NAME
    told = record.rows(json.loads(path.read_text())) if path.exists() else [("runs on a quiet machine", "none is committed yet")]
    return table(("", name), told)


def modules() -> list[Path]:
    """Hand-written modules of all packages."""
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if "v1" not in path.parts)


TABLES: Final[Mapping[str, Callable[[str], str]]] = {
    "adrs": adrs, "cli": cli, "codes": codes, "components": components, "demo": demo, "enum": enum, "errors": error_classes, "exit-codes": exit_codes,
    "fields": fields, "glossary": glossary, "limits": limits_table, "messages": messages, "metrics": metrics, "rest-codes": rest_codes,
    "rest-routes": rest_routes, "services": services, "settings": settings_table, "why": why,
}  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Rewrites the tables, or with ``--check`` only names the documents that would change."""
    wanted = made_files() | {path: rewritten(path.read_text()) for path in documents()}
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")
        if "--check" not in arguments:
            path.parent.mkdir(exist_ok=True)
            path.write_text(wanted[path])
    return int(bool(stale) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
