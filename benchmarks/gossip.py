"""What it costs a node to know who is there: bytes on its line and processor time, by the size of the network, over partners of a circle (`membership.circle`)
and over partners that are drawn anew each time. Each town of nodes has a network namespace of its own, so all that its loopback carries is theirs. Of larger
networks the messages of exchanges alone are counted, in virtual time (`benchmarks.gossip_messages`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

from benchmarks.gossip_messages import measured
from benchmarks.machine import ROOT
from benchmarks.namespaces import Machines
from benchmarks.result import Options, Result, Row, Target, median_of, rounded

SIZES: Final = (9, 32, 100)
COMPARED: Final = 32
"""So many at most are run with partners drawn anew, too."""
MESSAGE_SIZES: Final = (32, 100, 250)
MESSAGES_FOR_S: Final = 30.0
SETTLE_S: Final = 20.0
FOR_S: Final = 30.0
LIMIT_BYTES_S: Final = 5000.0
"""Each way, of an idle daemon."""
WITHIN_S: Final = 600.0
FIGURES: Final = ("bytes_s", "cpu_percent")


def run(options: Options) -> Result:
    """A round has every size, both ways."""
    sizes, settle_s, for_s = ((3,), 1.0, 2.0) if options.quick else (SIZES, SETTLE_S, FOR_S)
    message_sizes = (5,) if options.quick else MESSAGE_SIZES
    result = Result(
        "gossip", "What it costs to know who is there", {
            "sizes": list(sizes), "message_sizes": list(message_sizes), "settle_s": settle_s, "for_s": for_s, "rounds": options.rounds,
        },
    )  # fmt: skip
    for number in range(options.rounds):
        row: Row = {"round": number}
        for size in sizes:
            for way, anew in (("circle", False), ("anew", True))[: 2 if size <= COMPARED else 1]:
                told = town({"nodes": size, "settle_s": settle_s, "for_s": for_s, "anew": anew})
                row |= {f"{way}_{size}_{name}": value for name, value in told.items()}
        for size in message_sizes:
            row[f"messages_{size}_bytes_s"] = measured(size, MESSAGES_FOR_S, MESSAGES_FOR_S)["bytes_s"]
        result.rounds.append(row)
    conclude(result)
    return result


def town(asked: Row) -> Row:
    """What `benchmarks.gossip_nodes` tells, alone in a namespace."""
    with Machines(1) as machines:
        done = subprocess.run(
            [*machines.prefix(0), sys.executable, "-m", "benchmarks.gossip_nodes"], input=json.dumps(asked), text=True,
            stdout=subprocess.PIPE, timeout=WITHIN_S, check=True, cwd=ROOT,
        )  # fmt: skip
    told: Row = json.loads(done.stdout.splitlines()[-1])  # the lines before are logged
    return told


def conclude(result: Result) -> None:
    """Medians, ratios and the target from the rounds alone."""
    sizes = result.settings["sizes"]
    for size in sizes:
        for name in FIGURES:
            ours, anew = (median_of(result.rounds, f"{way}_{size}_{name}") for way in ("circle", "anew"))
            result.medians[f"{size} nodes, {name}"] = rounded(ours)
            if anew is not None:
                result.medians[f"{size} nodes, {name}, drawn anew"] = rounded(anew)
            if ours and anew:
                result.ratios[f"{size} nodes, {name}, of drawn anew"] = rounded(ours / anew)
    for size in result.settings.get("message_sizes", ()):
        result.medians[f"{size} nodes, messages, bytes_s"] = rounded(median_of(result.rounds, f"messages_{size}_bytes_s"))
    result.targets = [
        Target(
            f"bytes each way per second and node, {size} nodes", median_of(result.rounds, f"circle_{size}_bytes_s"), LIMIT_BYTES_S, "B/s",
            at_least=False,
        )
        for size in sizes
    ]  # fmt: skip
