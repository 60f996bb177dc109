"""Renders the tables of README.md from the JSON files alone, between two marks; the same files always give the same text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

README: Final = Path(__file__).with_name("README.md")
BEGIN: Final = "<!-- results: begin (python -m benchmarks report) -->"
END: Final = "<!-- results: end -->"


def write(directory: Path, readme: Path = README) -> None:
    """Replaces what stands between the marks."""
    readme.write_text(with_tables(readme.read_text(), directory))


def with_tables(text: str, directory: Path) -> str:
    """The document with the tables of this directory. Raises ValueError without the marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{BEGIN} or {END} is missing")
    documents = [json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))]
    tables = "\n\n".join(table(document) for document in documents) or "Nothing has been measured yet."
    return f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}"


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
