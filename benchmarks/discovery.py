"""Discovery over the DHT, as `benchmarks.dht` measures it, in the form of the other benchmarks: 30 % and 50 % of the nodes killed silently."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Final

from benchmarks.machine import ROOT
from benchmarks.result import Options, Result, Row, Target, largest, median_of, rounded

NODES: Final = 50
KILLED: Final = (0.3, 0.5)
AFTER: Final = ("get_after_kill", "get_after_kill_2nd", "set_after_kill", "get_of_new_after_kill")
LIMIT_S: Final = 600.0


def run(options: Options) -> Result:
    """One process of all nodes per round and share."""
    nodes, keys = (12, 10) if options.quick else (NODES, 100)
    result = Result(
        "discovery", "Discovery over the DHT", {"nodes": nodes, "keys": keys, "killed": list(KILLED), "rounds": options.rounds}
    )
    for number in range(options.rounds):
        for killed in KILLED[: 1 if options.quick else None]:
            result.rounds.append({"round": number, "killed": killed, **measure(nodes, keys, killed, number)})
    conclude(result)
    return result


def measure(nodes: int, keys: int, killed: float, seed: int) -> Row:
    """One run's figures, flat: milliseconds and share of operations that succeeded."""
    command = [
        sys.executable,
        "benchmarks/dht.py",
        "--nodes",
        str(nodes),
        "--keys",
        str(keys),
        "--kill",
        str(killed),
        "--seed",
        str(seed),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=ROOT)
    if not done.stdout:
        raise RuntimeError(f"the run failed: {done.stderr[-400:]}")
    out: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    row: Row = {"bootstrap_total_s": out["bootstrap_total_s"], "max_rss_mib": round(out["max_rss_kib"] / 1024, 1)}
    for phase in ("set", "get", *AFTER):
        row |= {f"{phase}_{name}_ms": out[phase]["ms"][name] for name in ("p50", "p99")}
        row[f"{phase}_ok"] = out[phase]["ok"] / out[phase]["total"]
    return row


def conclude(result: Result) -> None:
    """Medians and targets from the rounds alone."""
    for killed in sorted({row["killed"] for row in result.rounds}):
        rows = [row for row in result.rounds if row["killed"] == killed]
        medians = {key: rounded(median_of(rows, key), 2) for key in rows[0] if key not in ("round", "killed")}
        result.medians[f"killed_{killed:g}"] = medians
        share = f"{100 * killed:.0f} % killed"
        result.targets += [
            Target(
                f"{share}: success afterwards, lowest",
                min(row[f"{phase}_ok"] for row in rows for phase in AFTER),
                0.99,
                "share",
                at_least=True,
            ),
            Target(
                f"{share}: p50 afterwards, slowest phase",
                largest(medians[f"{phase}_p50_ms"] for phase in AFTER),
                1000.0,
                "ms",
                at_least=False,
            ),
            Target(
                f"{share}: p99 afterwards, slowest phase",
                largest(medians[f"{phase}_p99_ms"] for phase in AFTER),
                5000.0,
                "ms",
                at_least=False,
            ),
        ]
