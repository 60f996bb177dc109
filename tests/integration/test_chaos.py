"""Goal: a committed schedule of kills and pauses, applied to a network of real processes, ends with a completed job and exact lineages; cables of
machines of their own can be taken out and put back, and nothing of them is left. Judges what was learned, never speed.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from benchmarks import namespaces
from chaos.__main__ import load
from chaos.figures import conclude
from chaos.plot import svg
from chaos.report import run_table
from chaos.run import Setup, run
from chaos.schedule import Kind, Recipe, make_schedule
from chaos.work import Clouds
from dcnr.errors import Refused, Unavailable


def test_kills_and_pauses_lose_nothing() -> None:
    schedule = load("short")
    told: list[str] = []
    work = Clouds("short", num_vnodes=3, passes=9)
    document = run(
        Setup(schedule, work, num_orchestrators=1, memory_mb=512, checkpoint_s=2.0, cpu_percent=30, batches_per_s=8.0, fit=False),
        say=told.append,
    )
    json.dumps(document)
    outcome, faults = document["outcome"], document["faults"]
    assert outcome["state"] == "completed"
    assert (outcome["lineages_exact"], outcome["num_vnodes"]) == (work.num_vnodes, work.num_vnodes)
    assert outcome["jobs"] >= 1
    assert document["learned"][-1][1] > 0
    assert [(row["kind"], row["victim"]) for row in faults] == [(fault.kind, fault.victim) for fault in schedule.faults], told
    assert all(row["over_s"] is not None for row in faults)
    assert conclude(document) == document["figures"]
    assert "3 of 3" in run_table(document)
    assert svg(document)


def test_a_schedule_with_partitions_is_refused_without_machines_of_their_own() -> None:
    recipe = Recipe(1, 3, 1, 60.0, 120.0, kill_share=0.0, partition_share=1.0, pause_share=0.0)
    schedule = make_schedule(recipe)
    assert {fault.kind for fault in schedule.faults} == {Kind.PARTITION}
    with pytest.raises(Unavailable) as caught:
        run(Setup(schedule, Clouds("c")))
    assert caught.value.code == "no_partitions"
    assert "--no-partitions" in caught.value.remedy


def test_machines_of_their_own_are_told_apart_cut_off_and_gone_afterwards() -> None:
    """With root; without, what is missing is said."""
    why = namespaces.lacking()
    if why:
        with pytest.raises(Refused) as caught, namespaces.Machines(1):
            pass
        assert caught.value.code == "no_namespaces"
        assert "--no-partitions" in caught.value.remedy
        return
    with namespaces.Machines(2) as two:
        assert reaches(two, 0, two.address(1))
        assert reaches(two, 0, two.host)
        two.cut(1)
        assert not reaches(two, 0, two.address(1))
        assert reaches(two, 0, two.host), "only the machine whose cable is out is cut off"
        two.join(1)
        assert any(reaches(two, 0, two.address(1)) for _ in range(5))
        assert any(name.startswith(f"dcnrc{os.getpid()}") for name in names())
    assert [name for name in names() if name.startswith(f"dcnrc{os.getpid()}")] == []


def test_what_a_dead_run_left_is_cleaned_and_nothing_else(tmp_path: Path) -> None:
    if namespaces.lacking():
        assert "root" in namespaces.lacking() or "ip" in namespaces.lacking()
        return
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    left = namespaces.Machines(1, pid=gone.pid)
    left.__enter__()
    with namespaces.Machines(1) as living:
        removed = namespaces.clean()
        assert left.bridge in removed
        assert reaches(living, 0, living.host), "a living run keeps its machines"


def reaches(where: namespaces.Machines, index: int, address: str) -> bool:
    """Whether a machine can send something to an address and hears that it is there: a refused connection is an answer."""
    program = f"""
import socket
with socket.socket() as one:
    one.settimeout(2.0)
    try:
        one.connect(("{address}", 9))
    except ConnectionRefusedError:
        print("yes")
    except OSError:
        print("no")
"""
    done = subprocess.run([*where.prefix(index), "python3", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip() == "yes"


def names() -> list[str]:
    """Of all namespaces and bridges."""
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, timeout=20, check=True).stdout.split()
    links = subprocess.run(
        ["ip", "-o", "link", "show", "type", "bridge"], capture_output=True, text=True, timeout=20, check=True
    ).stdout
    return [*spaces, *(line.split(":")[1].strip() for line in links.splitlines())]
