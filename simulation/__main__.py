"""Runs one seed, or many, and prints what happened: ``python -m simulation --seed 7``, ``--seeds 0:200``."""

from __future__ import annotations

import argparse
import sys
import time

from dcnr.errors import InvariantBroken
from simulation.control_world import ControlWorld
from simulation.world import Simulation, Violation


def main() -> int:
    """Exit code 1 if any seed failed."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="one seed, with its story")
    parser.add_argument("--seeds", default="0:20", help="a range, first:end")
    parser.add_argument("--world", choices=("data", "control"), default="data", help="which world; the data plane without this")
    arguments = parser.parse_args()
    first, end = (arguments.seed, arguments.seed + 1) if arguments.seed is not None else map(int, arguments.seeds.split(":"))
    if arguments.world == "control":
        return _control(range(first, end), tells=arguments.seed is not None)
    failed = 0
    for seed in range(first, end):
        started_s = time.perf_counter()
        world = Simulation(seed)
        try:
            world.run()
            outcome = "ok"
        except (Violation, InvariantBroken) as error:
            failed += 1
            outcome = f"FAILED {error}"
        took_s = time.perf_counter() - started_s
        line = (
            f"seed {seed} {world.topology.name} window {world.knobs.window_batches} lead {world.lead_batches} "
            f"lost states {world.num_lost_states}: {world.kernel.now_s:.0f} s virtual, {world.kernel.num_actions} actions, "
            f"{world.checkers.num_learned} learned, {world.checkers.num_forwarded} computed again, "
            f"{world.checkers.num_merged} deltas merged, {world.checkers.num_successions} successions, {took_s:.2f} s: {outcome}"
        )
        sys.stdout.write(line + "\n")
        if arguments.seed is not None:
            sys.stdout.write("\n".join(world.story()) + "\n")
    return 1 if failed else 0


def _control(seeds: range, *, tells: bool) -> int:
    """The same for the control plane."""
    failed = 0
    for seed in seeds:
        started_s = time.perf_counter()
        world = ControlWorld(seed)
        try:
            world.run()
            outcome = "ok"
        except (Violation, InvariantBroken) as error:
            failed += 1
            outcome = f"FAILED {error}"
        counts, knobs = world.checkers, world.knobs
        sys.stdout.write(
            f"seed {seed} {knobs.num_orchestrators} orchestrators{', one lies' if knobs.liar else ''}, {knobs.num_pnodes} PNodes: "
            f"{world.kernel.now_s:.0f} s virtual, {world.kernel.num_actions} actions, {counts.num_head_writes} head writes, "
            f"{counts.num_takeovers} terms, {counts.num_manifests} manifests, {counts.plans.num_moves} moves, "
            f"{counts.plans.num_promotions} promotions, {counts.num_deleted} deleted, "
            f"{counts.num_tampered} tampered, {time.perf_counter() - started_s:.2f} s: {outcome}\n"
        )
        if tells:
            sys.stdout.write("\n".join(world.story()) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
