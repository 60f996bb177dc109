"""``python -m benchmarks [NAME...] [--rounds N] [--out DIRECTORY] [--profile]`` measures; ``python -m benchmarks report`` renders the tables of README.md.

Every benchmark writes one JSON file, whatever its figures. Exit code: 0 if all targets are met, 1 if some are not, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks import machine, report
from benchmarks.result import Options, Result
from dcnr.errors import Unavailable

NAMES: Final = (
    "handover",
    "training",
    "merging",
    "merging_rates",
    "bad_deltas",
    "startup",
    "failure",
    "predictions",
    "store_away",
    "suspicion",
    "gossip",
    "discovery",
    "deciders",
    "scale",
    "tolerances",
    "honest",
    "detection",
    "attackers",
    "audit_cost",
    "commits",
    "mutants",
    "refusals",
    "split_check",
    "optimizers",
    "dashboard",
    "serving",
    "serving_links",
    "generation",
    "accelerator",
    "gateway",
)
DEFAULT_OUT: Final = machine.ROOT / "benchmarks" / "results"
DEFAULT_ROUNDS: Final = 5


def run_one(name: str, options: Options) -> Result:
    """Runs one benchmark."""
    module: Any = importlib.import_module(f"benchmarks.{name}")
    result: Result = module.run(options)
    return result


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(NAMES)}; none: all. Or: report")
    parser.add_argument("--rounds", type=int, default=DEFAULT_ROUNDS, help="interleaved rounds (default: 5)")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="where the JSON files go")
    parser.add_argument("--profile", action="store_true", help="also write where the time goes (needs py-spy)")
    parser.add_argument("--quick", action="store_true", help="the short form that tests use; its figures mean nothing")
    asked = parser.parse_args(arguments)
    if asked.names == ["report"]:
        report.write(asked.out)
        return 0
    unknown = sorted(set(asked.names) - set(NAMES))
    if unknown or asked.rounds < 1:
        parser.error(f"no such benchmark: {', '.join(unknown)}" if unknown else "--rounds is at least 1")
    met = True
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        options = Options(asked.rounds, Path(scratch), quick=asked.quick, profile=asked.profile, kept=asked.out / "kept")
        for name in asked.names or NAMES:
            facts = machine.describe()
            print(f"{name}: {asked.rounds} rounds", file=sys.stderr, flush=True)
            try:
                result = run_one(name, options)
            except Unavailable as lacking:
                print(f"  NOT MEASURED: {lacking}", file=sys.stderr)
                met = met and not asked.names
                continue
            print(f"  written to {result.write(asked.out, facts)}", file=sys.stderr)
            for target in result.targets:
                row = target.row()
                bound = f">= {target.limit:g}" if target.at_least else f"<= {target.limit:g}"
                print(
                    f"  {'met   ' if target.met else 'MISSED'} {target.name}: {row['value']} ({bound} {target.unit})",
                    file=sys.stderr,
                )
                met = met and target.met
    if asked.out == DEFAULT_OUT and not asked.quick:
        report.write(asked.out)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
