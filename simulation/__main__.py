"""Runs one seed, or many: ``python -m simulation --seed 7``, ``--world control --seeds 0:200``, ``--world control --nodes 2000 --hours 1 --seeds 0:1``."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks import machine
from simulation.runner import ALL, IN_TURN, JOINING, Choice, Outcome, run_seed, run_seeds


def main() -> int:
    """Exit code 1 if any seed failed."""
    arguments = _arguments()
    hours = arguments.hours if arguments.nodes else 0.0
    choice = Choice(arguments.world, arguments.nodes, hours, arguments.replicas, arguments.heavy)
    first, end = map(int, arguments.seeds.split(":")) if arguments.seed is None else (arguments.seed, arguments.seed + 1)
    seeds = range(first, end)
    ran_on = machine.describe()
    started_s, cpu_s, failed, counts = time.perf_counter(), 0.0, [], Counter[str]()
    highest: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        if arguments.transcript:
            file = stack.enter_context(Path(arguments.transcript).open("w", encoding="utf-8"))
            outcomes: Iterator[Outcome] = iter([run_seed(choice, seeds[0], file)])
        elif len(seeds) == 1:
            outcomes = iter([run_seed(choice, seeds[0], progress=sys.stderr if arguments.nodes else None)])
        else:
            outcomes = run_seeds(choice, seeds, arguments.processes)
        for outcome in outcomes:
            counts.update(outcome.counts)
            highest |= {name: max(value, highest.get(name, value)) for name, value in outcome.counts.items()}
            cpu_s += outcome.cpu_s
            failed += [outcome.seed] if outcome.failure else []
            sys.stdout.write("\n".join(outcome.told()) + "\n")
            sys.stdout.flush()
    took_s = time.perf_counter() - started_s
    result = {
        "command": f"python -m simulation {choice.options} --seeds {seeds.start}:{seeds.stop}",
        "seeds": len(seeds),
        "failed": failed,
        "took_s": round(took_s, 1),
        "cpu_s": round(cpu_s, 1),
        "processes": arguments.processes,
        "seeds_per_minute": round(60.0 * len(seeds) / took_s, 1),
        "counts": {name: round(value, 1) for name, value in sorted(counts.items())},
        "highest": {name: round(value, 1) for name, value in sorted(highest.items())},
        "machine": ran_on | {"load_after": [round(value, 2) for value in os.getloadavg()]},
    }
    sys.stdout.write(
        f"{len(seeds)} seeds, {len(failed)} failed {failed or ''}: {took_s:.0f} s, {result['seeds_per_minute']} seeds a minute\n"
    )
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(result, indent=1) + "\n")
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument(
        "--world",
        choices=(*IN_TURN, JOINING, ALL),
        default="data",
        help="which world (data): all gives each in turn, but for joining",
    )
    parser.add_argument("--seed", type=int, help="one seed")
    parser.add_argument("--seeds", default="0:20", help="a range, first:end")
    parser.add_argument("--nodes", type=int, default=0, help="PNodes of a large control world; its standard size without this")
    parser.add_argument("--hours", type=float, default=1.0, help="how long faults go on in a large control world")
    parser.add_argument("--replicas", type=int, default=1, help="of each VNode in a large control world")
    parser.add_argument(
        "--heavy", action="store_true", help="a large control world where also some lie, and calls and disks are slow"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="seeds that run at once")
    parser.add_argument("--transcript", help="writes everything that happens in the first seed into this file")
    parser.add_argument("--json", help="writes the summary into this file")
    arguments = parser.parse_args()
    if arguments.nodes and arguments.world != "control":
        parser.error(f"--nodes makes a large control world, and not one of --world {arguments.world}: add --world control")
    if arguments.replicas != 1 and not arguments.nodes:
        parser.error("--replicas is for a large control world: add --nodes; others draw theirs from the seed")
    if arguments.heavy and not arguments.nodes:
        parser.error("--heavy is for a large control world: add --nodes; others draw what goes wrong from the seed")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
