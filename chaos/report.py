"""Renders the results of ``docs/chaos.md`` from the JSON files alone, between two marks; the same files always give the same text."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from benchmarks.machine import ROOT
from chaos import targets
from chaos.committed import command_of
from chaos.figures import TIMES
from dcnr.crashpoints import POINTS

PAGE: Final = ROOT / "docs" / "chaos.md"
BEGIN: Final = "<!-- results: begin (python -m chaos report) -->"
BUSY: Final = "**Other work ran on this machine meanwhile: what was learned counts, rates and times do not.**"
END: Final = "<!-- results: end -->"
IN_TWOS: Final = 2
"""The units of results that do not name theirs."""


def write(directory: Path, page: Path = PAGE) -> None:
    """Replaces what stands between the marks."""
    page.write_text(with_results(page.read_text(), directory))


def with_results(text: str, directory: Path) -> str:
    """The page with the results of this directory. Raises ValueError without the marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{BEGIN} or {END} is missing")
    documents = {path.stem: json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))}
    crashes = documents.pop("crashes", {"rounds": []})
    joining = documents.pop("joining", None)
    parts = [run_section(name, document, directory) for name, document in documents.items()]
    parts += [joining_section(joining)] if joining is not None else []
    return "\n\n".join([f"{before}{BEGIN}", *parts, crash_section(crashes), f"{END}{after}"])


def run_section(name: str, document: dict[str, Any], directory: Path) -> str:
    """One run."""
    settings, facts = document["settings"], document["machine"]
    picture = os.path.relpath(directory / f"{name}.svg", PAGE.parent)
    tempo = settings.get("batches_per_s", 0.0)
    cap = f"its tempo is {tempo:g} batches per second" if tempo else "without a tempo: as fast as the PNodes may"
    return "\n".join(
        [
            f"### Schedule `{name}`",
            "",
            command_of(name),
            "",
            f"`{name}.json`: {settings['num_vnodes']} VNodes of {settings['work']}, {settings['replicas_per_vnode']} wanted replica(s) each, on "
            f"{settings['num_pnodes']} PNodes that lend {settings['cpu_percent_per_pnode']:g} % of a core and {settings['memory_mb_per_pnode']} MiB each; "
            f"{settings['num_orchestrators']} orchestrators; a job of {settings['num_batches']} batches in units of "
            f"{settings.get('unit_batches', IN_TWOS)}, {cap}; "
            f"{settings['faults_per_hour']:g} faults per hour in "
            f"{settings['pairs']} pairs of windows of {settings['window_s']:g} s; "
            f"{'each PNode in a network namespace' if settings['own_machines'] else 'no namespaces, no partitions'}{links_of(document)}. "
            f"{facts['cores']} cores ({facts['cpu']}), {facts['memory_gib']} GiB, commit {facts['commit']}, load before the run {facts['load_before'][0]}; "
            f"processor time that was free meanwhile, on average: {shown(free_of(document))} %, in the windows without faults "
            f"{shown(free_of(document, between_faults=True))} %, in those with them {shown(document['figures']['free_with_percent'])} %.",
            *(["", BUSY] if facts["load_before"][0] > facts["cores"] else []),
            "",
            run_table(document),
            "",
            f"![Batches learned over time, faults marked]({picture})",
        ]
    )  # fmt: skip


def links_of(document: dict[str, Any]) -> str:
    """What was between the machines, as asked for and as measured; empty where nothing was."""
    if "links" not in document:
        return ""
    profile, links = document["settings"]["profile"], document["links"]
    sent, lost, dropped = (sum(one[f"{name}_packets"] for one in links["carried"]) for name in ("sent", "lost", "dropped"))
    trips_ms = links["round_trips_ms"]
    return (
        f", its link one of `{document['settings']['link']}`: {profile['delay_ms']:g} ms to each other and to orchestrators and store, "
        f"{profile['up_mbit']:g} Mbit/s up, {profile['down_mbit']:g} down, {profile['loss_percent']:g} % of the packets lost. Measured: round trips of "
        f"{min(trips_ms):g} to {max(trips_ms):g} ms before the run; of {sent} packets {lost} were lost, and {dropped} dropped by full queues or cut links"
    )


def free_of(document: dict[str, Any], *, between_faults: bool = False) -> int | None:
    """Per cent of the processor that nobody used, on average, in all of the run or in its windows without faults."""
    window_s = document["settings"]["window_s"]
    length_s = 2 * document["settings"]["pairs"] * window_s
    free = [
        100 - row[1]
        for row in document["load"]
        if not between_faults or (0 <= row[0] < length_s and int(row[0] // window_s) % 2 == 0)
    ]
    return round(sum(free) / len(free)) if free else None


def run_table(document: dict[str, Any]) -> str:
    """The figures of a run."""
    figures, outcome = document["figures"], document["outcome"]
    kept = [shown(pair["kept"]) for pair in figures["pairs"]]
    losses = [value for value in outcome["loss"].values() if value is not None]
    settled: list[str] = []
    if "settled" in figures:
        both = f"{shown(figures['settled'])}, {shown(figures['settled_least'])}"
        settled = [f"| both of machines that have had none for ten seconds | {both} |"]
    lines = [
        "| figure | value |",
        "|---|---|",
        f"| faults | {figures['num_faults']} |",
        f"| batches per second over all VNodes without faults, median of pairs | {shown(figures['rate_without'])} |",
        f"| with faults | {shown(figures['rate_with'])} |",
        f"| rate kept, median of pairs | {shown(figures['rate_kept'])} ({', '.join(kept)}) |",
        f"| rate kept, all pairs together | {shown(figures['rate_kept_together'])} |",
        f"| replicas on machines without a fault that contribute, on average | {shown(figures['contributing'])} |",
        f"| and at least, at any time | {shown(figures['contributing_least'])} |",
        *settled,
        f"| longest time without progress anywhere | {shown(figures['longest_gap_s'])} s |",
        f"| job | {outcome['state']} |",
        f"| VNodes whose lineage is exactly all batches | {figures['lineages_exact']} of {outcome['num_vnodes']} |",
        *(
            [f"| killed workers of which their daemon said nothing | {figures['untold']} |"]
            if "worker" in figures["by_kind"]
            else []
        ),
        f"| loss at the end, last exit | {shown(losses[-1] if losses else None)} |",
        "",
        "| fault | number | hosting | no replica of its VNodes learns: middle / largest (of how many), s | suspected | taken for gone "
        "| its VNodes learn again | its machine contributes again |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind, row in figures["by_kind"].items():
        cells = [_times(row[name]) for name in TIMES]
        lines.append(f"| {kind} | {row['faults']} | {row['hosting']} | {' | '.join(cells)} |")
    return "\n".join([*lines, *_held(figures)])


def _held(figures: dict[str, Any]) -> list[str]:
    """What the figures are held against, after an empty line."""
    return ["", targets.table(figures["targets"])] if figures["targets"] else []


def _times(found: dict[str, Any]) -> str:
    """Seconds of one kind of fault: a 99th percentile only of so many that it is not the largest."""
    if not found["seen"]:
        return "not seen"
    p99 = "" if found["p99"] is None else f" / p99 {shown(found['p99'])}"
    return f"{shown(found['p50'])}{p99} / {shown(found['max'])} ({found['seen']})"


def joining_section(document: dict[str, Any]) -> str:
    """Machines that joined at once."""
    settings, facts = document["settings"], document["machine"]
    return "\n".join(
        [
            "### Machines that join at once",
            "",
            f"`joining.json`: {settings['num_vnodes']} VNodes of {settings['work']}, {settings['replicas_per_vnode']} wanted replicas each; "
            f"{settings['num_joiners']} PNodes join {settings['num_pnodes']}, each lends {settings['cpu_percent']:g} % of a core. "
            f"{facts['cores']} cores ({facts['cpu']}), {facts['memory_gib']} GiB, commit {facts['commit']}, load before the run {facts['load_before'][0]}.",
            *(["", BUSY] if facts["load_before"][0] > facts["cores"] else []),
            "",
            joining_table(document),
        ]
    )


def joining_table(document: dict[str, Any]) -> str:
    """The figures of joiners."""
    figures = document["figures"]
    return "\n".join(
        [
            "| figure | value |",
            "|---|---|",
            f"| from process start to the first contribution, each (s) | {', '.join(shown(value) for value in document['contributed_s'])} |",
            f"| batches per second over all VNodes before | {shown(figures['rate_before'])} |",
            f"| and when they had come | {shown(figures['rate_after'])} |",
            f"| longest time with less than 80 % of the rate before (s; rates of 10 s) | {shown(figures['below_s'])} |",
            f"| least of the rate before in any ten seconds | {shown(figures['kept_least'])} |",
            *_held(figures),
        ]
    )


def crash_section(document: dict[str, Any]) -> str:
    """The crash points, measured or not."""
    rows = {row["point"]: row for row in document["rounds"]}
    held = sum(row["held"] for row in rows.values())
    facts = document.get("machine")
    when = f"; {facts['cores']} cores ({facts['cpu']}), {facts['memory_gib']} GiB" if facts else ""
    lines = [
        "### Crash points",
        "",
        f"`crashes.json`: {len(rows)} of {len(POINTS)} points played, {held} held{when}. Seconds are from the moment when the process is "
        "set, or the work is given, to its death, and from there until everything is done; load is that of the machine before the round's run.",
        "",
        "| point | what is true there | whose | passing | dead after (s) | done after (s) | load | held |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, meaning in POINTS.items():
        row = rows.get(name, {})
        cells = [
            row.get("where", "-"),
            row.get("times", "-"),
            row.get("reached_s", "-"),
            row.get("complete_s", "-"),
            row.get("load_before", "-"),
        ]
        end = "not run" if not row else "yes" if row["held"] else "**no**"
        lines.append(f"| `{name}` | {meaning} | {' | '.join(map(str, cells))} | {end} |")
    return "\n".join(lines)


def shown(value: object) -> str:
    """A figure as people read it."""
    if value is None:
        return "not seen"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
