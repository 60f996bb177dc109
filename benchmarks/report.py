"""Renders the tables of README.md and one picture from the JSON files alone; the same files always give the same text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from benchmarks import audit_plot

README: Final = Path(__file__).with_name("README.md")
BEGIN: Final = "<!-- results: begin (python -m benchmarks report) -->"
END: Final = "<!-- results: end -->"


def write(directory: Path, readme: Path = README) -> None:
    """Replaces what stands between the marks, and the picture of audits, where its figures are there."""
    readme.write_text(with_tables(readme.read_text(), directory))
    if (sources := audited(documents(directory))) is not None:
        (directory / audit_plot.NAME).write_text(audit_plot.svg(*sources))


def with_tables(text: str, directory: Path) -> str:
    """The document with the tables of this directory. Raises ValueError without the marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{BEGIN} or {END} is missing")
    found = documents(directory)
    sources = audited(found)
    tables = "\n\n".join(
        f"{table(document)}\n\n{audit_plot.table(*sources)}" if sources is not None and document is sources[0] else table(document)
        for document in found
    )
    tables = tables or "Nothing has been measured yet."
    return f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}"


def documents(directory: Path) -> list[dict[str, Any]]:
    """Every committed result, by name."""
    return [json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))]


def audited(found: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """What audits cost and what they see; None where either was not measured."""
    by_name = {document["benchmark"]: document for document in found}
    names = ("audit_cost", "detection")
    return (by_name[names[0]], by_name[names[1]]) if by_name.keys() >= set(names) else None


def table(document: dict[str, Any]) -> str:
    """Targets, then medians, of one benchmark."""
    facts = document["machine"]
    lines = [
        f"### {document['title']}",
        "",
        f"`{document['benchmark']}.json`: {len(document['rounds'])} rows of raw figures; {facts['cores']} cores ({facts['cpu']}), {facts['memory_gib']} GiB, "
        f"{facts['kernel']}, commit {facts['commit']}, load before the run {facts['load_before'][0]}.",
        "",
        "| target | measured | wanted | met |",
        "|---|---|---|---|",
    ]
    for target in document["targets"]:
        sign, bound = (">=", target["at_least"]) if "at_least" in target else ("<=", target["at_most"])
        lines.append(
            f"| {target['name']} | {shown(target['value'])} | {sign} {bound:g} {target['unit']} | {'yes' if target['met'] else '**no**'} |"
        )
    lines += ["", *medians(document["medians"])]
    return "\n".join([*lines, *(f"\n{note}" for note in document["notes"])])


def medians(values: dict[str, Any]) -> list[str]:
    """A table of medians: one row per case where they come by case, else one row per figure."""
    cases = {name: value for name, value in values.items() if isinstance(value, dict)}
    if not cases:
        return ["| median | value |", "|---|---|", *(f"| {name} | {shown(value)} |" for name, value in values.items())]
    columns = list(dict.fromkeys(key for case in cases.values() for key in case))
    if len(columns) <= 8:
        head = ["| case | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
        return head + [
            f"| {name} | " + " | ".join(shown(case.get(column)) for column in columns) + " |" for name, case in cases.items()
        ]
    head = ["| median | " + " | ".join(cases) + " |", "|---" * (len(cases) + 1) + "|"]
    return head + [f"| {column} | " + " | ".join(shown(case.get(column)) for case in cases.values()) + " |" for column in columns]


def shown(value: object) -> str:
    """A figure as people read it."""
    if value is None:
        return "not measured"
    return (
        f"{value:.4g}"
        if isinstance(value, float) and abs(value) < 1000
        else f"{value:.0f}"
        if isinstance(value, float)
        else str(value)
    )
