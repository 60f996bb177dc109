"""``python -m chaos`` disturbs networks of real processes on this machine and says what was lost: nothing, or what.

Without a command: all crash points, then the schedule of 125 faults per hour. Results go to ``chaos/results``; ``report`` renders ``docs/chaos.md``
from them. Exit code: 0 if everything held, 1 if not, 2 for wrong usage, 5 where this machine lacks what was asked for (it says what), 7 if what must
always hold did, but a limit of `chaos.targets` was missed (it says which).
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from benchmarks import machine, namespaces
from benchmarks.wan import PROFILES
from chaos import crashes, joining, noise, report, targets
from chaos.crashes import run_rounds
from chaos.documents import conclude_anew, save
from chaos.joining import Joining
from chaos.plot import svg
from chaos.rounds import ROUNDS
from chaos.run import Setup, run
from chaos.schedule import CALM_S, Kind, Recipe, Schedule, first_pairs, from_json, make_schedule, share_of, to_json
from chaos.work import Clouds, Text, Work
from dcnr import crashpoints
from dcnr.errors import DcnrError, InvalidInput
from dcnr.tempo import check_rate
from dcnr.units import check_unit

RESULTS: Final = machine.ROOT / "chaos" / "results"
SCHEDULES: Final = machine.ROOT / "chaos" / "schedules"
DEFAULT: Final = "faults125_wide"
BATCHES_PER_S: Final = 2.5
"""The tempo of a run's job: what of two cores it leaves free is there for what a fault costs (`report` says how much that was)."""
CPU_PERCENT: Final = 25.0
"""Of one core, for each PNode of such a run: several times what it needs, so that others can do the work of one that is away."""
LIMIT_CPU_PERCENT: Final = 5.0
"""The same where the PNodes' limits alone leave two fifths of two cores free: each is at its limit all the time."""
UNIT_BATCHES: Final = 1
"""So that each of four replicas has some within the lead, and a machine that dies owes little."""
AT_LIMIT: Final = "_at_limit"
"""Ends the names of results of runs without a tempo."""

UNDISTURBED: Final = "_undisturbed"
"""Ends the names of results of runs whose faults were left out."""
MISSED_EXIT: Final = 7
DEFAULT_SHARES: Final = {item.name: item.default for item in fields(Recipe)}
LONG_SAMPLES: Final = 80_000
"""Of a job that outlasts any round of joiners: it is not run to its end."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    options = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        match options.command:
            case "crashes":
                return run_crashes(options)
            case "run":
                return run_schedule(options)
            case "join":
                return run_joining(options)
            case "schedule":
                print(to_json(make_schedule(recipe_of(options))), end="")
            case "report":
                conclude_anew(options.out)
                report.write(options.out)
            case "loss":
                say(
                    noise.compared(
                        *(noise.named(path.stem, json.loads(path.read_text())) for path in (options.faulty, *options.calm))
                    )
                )
            case "clean":
                print("\n".join(namespaces.clean()) or "nothing was left behind")
            case _:
                held = run_crashes(parser().parse_args(["crashes"]))
                ran = run_schedule(parser().parse_args(["run"]))
                return held or ran
    except DcnrError as error:
        print(f"error: {error.message}\n  why: {error.code}\n  next: {error.remedy}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted: every process of the run has ended", file=sys.stderr)
        return 130
    return 0


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def parser() -> argparse.ArgumentParser:
    """All commands and options."""
    top = argparse.ArgumentParser(prog="python -m chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(dest="command")
    one = commands.add_parser("crashes", help="kill processes at crash points: all of them, or the named ones")
    one.add_argument("points", nargs="*", metavar="POINT")
    two = commands.add_parser("run", help="a schedule of faults")
    two.add_argument("--schedule", default=DEFAULT, help=f"a file, or one of {', '.join(names())}")
    two.add_argument("--pairs", type=int, default=0, help="the first so many pairs of windows; 0: all")
    two.add_argument(
        "--no-faults", action="store_true", help="the same windows undisturbed: what the loss at the end is compared with"
    )
    two.add_argument("--seed", type=int, default=1, help="of the model and the order of its batches")
    two.add_argument("--work", choices=("text", "clouds"), default="text", help="what the network learns")
    two.add_argument("--vnodes", type=int, default=8, help="length of the chain")
    two.add_argument("--replicas", type=int, default=4, help="wanted per VNode")
    two.add_argument("--batches-per-s", type=float, default=BATCHES_PER_S, help="tempo of the job; 0: as fast as the PNodes can")
    two.add_argument(
        "--unit-batches", type=int, default=UNIT_BATCHES, help="a unit of work: so many batches in a row are one replica's"
    )
    two.add_argument(
        "--cpu-percent", type=float, default=0.0, help=f"of one core, per PNode; 0: {CPU_PERCENT:g}, or what --at-limit says"
    )
    two.add_argument(
        "--at-limit",
        action="store_true",
        help=f"no tempo: PNodes that lend {LIMIT_CPU_PERCENT:g} %% of a core are always at their limit",
    )
    two.add_argument("--orchestrators", type=int, default=2)
    two.add_argument("--batches", type=int, default=0, help="of the job; 0: as many as fit the schedule, by a short job before")
    two.add_argument("--no-partitions", action="store_true", help="kills and pauses only; without --link that needs no root")
    two.add_argument("--link", choices=("", *PROFILES), default="", help="emulated links; needs root, /dev/net/tun and cc")
    two.add_argument(
        "--name",
        default="",
        help=f"of the result file; default: that of the schedule, with the links', and {AT_LIMIT} where the job has no tempo",
    )
    four = commands.add_parser("join", help="PNodes that join all at once while a job runs")
    four.add_argument("--pnodes", type=int, default=8, help="that are there before")
    four.add_argument("--joiners", type=int, default=4)
    four.add_argument("--vnodes", type=int, default=8, help="length of the chain")
    four.add_argument("--replicas", type=int, default=4, help="wanted per VNode")
    four.add_argument("--cpu-percent", type=float, default=LIMIT_CPU_PERCENT, help="of one core, per PNode")
    four.add_argument("--before-s", type=float, default=60.0)
    four.add_argument("--after-s", type=float, default=90.0)
    three = commands.add_parser("schedule", help="print a schedule made from a recipe")
    for name, kind in (("seed", int), ("victims", int), ("pairs", int), ("window-s", float), ("per-hour", float)):
        three.add_argument(f"--{name}", type=kind, required=True)
    three.add_argument("--max-down", type=int, default=0)
    for fault in Kind:
        three.add_argument(f"--{fault}-share", type=float, default=DEFAULT_SHARES[share_of(fault)])
    three.add_argument("--calm-s", type=float, default=CALM_S, help="at the end of each window, without faults")
    commands.add_parser("report", help="docs/chaos.md from the results")
    five = commands.add_parser("loss", help="the loss at the end of a run with faults beside the spread of runs without")
    five.add_argument("faulty", type=Path, metavar="RESULT", help="of a run with faults")
    five.add_argument("calm", type=Path, nargs="+", metavar="UNDISTURBED", help="of the same run without them, of other seeds")
    commands.add_parser("clean", help="remove network namespaces that a killed run left behind")
    for command in (one, two, four, commands.choices["report"]):
        command.add_argument("--out", type=Path, default=RESULTS, help="where the results go")
    return top


def names() -> list[str]:
    """The committed schedules."""
    return sorted(path.stem for path in SCHEDULES.glob("*.json"))


def load(name: str) -> Schedule:
    """A committed schedule or a file. Raises InvalidInput."""
    path = SCHEDULES / f"{name}.json" if name in names() else Path(name)
    try:
        return from_json(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{name} cannot be read: {error}", code="bad_schedule", remedy=f"one of {', '.join(names())}") from None


def recipe_of(options: argparse.Namespace) -> Recipe:
    """From the flags."""
    return Recipe(
        options.seed,
        options.victims,
        options.pairs,
        options.window_s,
        options.per_hour,
        calm_s=options.calm_s,
        max_down=options.max_down,
        **{share_of(kind): getattr(options, share_of(kind)) for kind in Kind},
    )


def without(schedule: Schedule, kinds: Collection[Kind]) -> Schedule:
    """The same recipe with their shares given to the other kinds in proportion. Raises InvalidInput (``bad_schedule``) where nothing is left."""
    shares = schedule.recipe.shares
    rest = sum(share for kind, share in shares.items() if kind not in kinds)
    if not rest:
        raise InvalidInput(
            f"this schedule has nothing but {' and '.join(sorted(kinds))}", code="bad_schedule", remedy="choose another"
        )
    changed = {share_of(kind): 0.0 if kind in kinds else share / rest for kind, share in shares.items()}
    return make_schedule(replace(schedule.recipe, **changed))  # type: ignore[arg-type]  # shares alone


def setup_of(options: argparse.Namespace) -> Setup:
    """What the flags of ``run`` ask for."""
    schedule = load(options.schedule)
    if options.pairs:
        schedule = first_pairs(schedule, options.pairs)
    if options.no_partitions:
        schedule = without(schedule, {Kind.PARTITION} if options.link else {Kind.PARTITION, Kind.IMPAIR})
    if options.no_faults:
        schedule = replace(schedule, faults=())
    kind = Text if options.work == "text" else Clouds
    work: Work = kind(options.work, num_vnodes=options.vnodes, replicas=options.replicas, seed=options.seed)
    if options.batches:
        work = replace(work, samples=options.batches * work.batch_size, passes=1)
    return Setup(
        schedule,
        work,
        num_orchestrators=options.orchestrators,
        cpu_percent=options.cpu_percent or (LIMIT_CPU_PERCENT if options.at_limit else CPU_PERCENT),
        batches_per_s=0.0 if options.at_limit else check_rate(options.batches_per_s),
        unit_batches=check_unit(options.unit_batches),
        own_machines=not options.no_partitions or bool(options.link),
        link=options.link,
        fit=not options.batches,
    )


def name_of(options: argparse.Namespace, setup: Setup) -> str:
    """Of the result of a run."""
    links = f"_{setup.link}" if setup.link else ""
    ends = ("" if setup.batches_per_s else AT_LIMIT) + (UNDISTURBED if options.no_faults else "")
    return str(options.name) or Path(options.schedule).stem + links + ends


def run_schedule(options: argparse.Namespace) -> int:
    """One run, written as JSON and as a picture."""
    setup = setup_of(options)
    document = run(setup, say=say)
    name = name_of(options, setup)
    save(options.out / f"{name}.json", document)
    (options.out / f"{name}.svg").write_text(svg(document))
    say(report.run_table(document))
    figures = document["figures"]
    exact = figures["lineages_exact"] == document["outcome"]["num_vnodes"]
    return ended(figures, held=figures["completed"] and exact and not figures["untold"])


def run_joining(options: argparse.Namespace) -> int:
    """One round of joiners, written as JSON."""
    work = Text("joining", num_vnodes=options.vnodes, replicas=options.replicas, samples=LONG_SAMPLES)
    document = joining.run(
        Joining(
            work, num_pnodes=options.pnodes, num_joiners=options.joiners, cpu_percent=options.cpu_percent, before_s=options.before_s,
            after_s=options.after_s,
        ),
        say=say,
    )  # fmt: skip
    save(options.out / "joining.json", document)
    say(report.joining_table(document))
    return ended(document["figures"], held=document["figures"]["all_contribute"])


def ended(figures: dict[str, Any], *, held: bool) -> int:
    """The exit code: what must always hold weighs more than a limit."""
    for name in (missed := targets.missed(figures)):
        say(f"missed: {name}")
    return 1 if not held else MISSED_EXIT if missed else 0


def run_crashes(options: argparse.Namespace) -> int:
    """All rounds, or some: the file keeps the newest of each."""
    unknown = sorted(set(options.points) - set(crashpoints.POINTS))
    if unknown:
        raise InvalidInput(f"no crash point is named {', '.join(unknown)}", code="bad_crash_point", remedy="see dcnr.crashpoints")
    facts, path = machine.describe(), options.out / "crashes.json"
    kept = {row["point"]: row for row in json.loads(path.read_text())["rounds"]} if path.exists() else {}

    def played(row: dict[str, Any]) -> None:
        kept[row["point"]] = {**row, "commit": facts["commit"], "load_before": facts["load_before"][0]}
        known = [kept[round_.point] for round_ in ROUNDS if round_.point in kept]
        save(path, {"format": "dcnr-crashes-1", "machine": facts, "rounds": known})

    rows = run_rounds(options.points, say=say, played=played)
    say(crashes.table(rows))
    return 0 if all(row["held"] for row in rows) else 1


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
