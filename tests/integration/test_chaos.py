"""Goal: a committed schedule of kills and pauses, applied to a network of real processes, ends with a completed job and exact lineages; cables of
machines of their own can be taken out and put back, emulated links among them delay and lose what they carry, and nothing of them is left. Judges what was
learned, never speed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from nursery import forked, nursed
from trouble_rig import processes_of

from benchmarks import namespaces
from chaos.__main__ import load
from chaos.figures import conclude
from chaos.plot import svg
from chaos.report import run_table
from chaos.run import Setup, run
from chaos.schedule import Fault, Kind, Recipe, make_schedule
from chaos.ways import lasting
from chaos.work import Clouds
from dcnr.errors import Refused, Unavailable
from dcnr.testing import PNODE, LocalNetwork, LocalPNode, Process


@pytest.fixture
def _forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """PNodes and their workers are forked (`nursery`), but for the last, which is as in any run: a worker that is forked is no child of its PNode."""
    networks: list[LocalNetwork] = []

    def network(directory: Path, *, pnodes: Sequence[LocalPNode], **more: Any) -> LocalNetwork:
        *others, last = pnodes
        others = nursed([replace(one, program=PNODE) for one in others])
        networks.append(LocalNetwork(directory, pnodes=(*others, last), starting=forked, **more))
        return networks[-1]

    def family(pid: int) -> list[psutil.Process]:
        (home,) = [one.home for one in networks[-1].pnodes if one.pid == pid]
        found = {one.pid: one for one in (psutil.Process(pid), *processes_of(home))}
        assert len(found) == 2, found
        return [*found.values()]

    monkeypatch.setattr("chaos.run.LocalNetwork", network)
    monkeypatch.setattr("chaos.ways.family", family)


@pytest.mark.usefixtures("_forked")
def test_kills_and_pauses_lose_nothing() -> None:
    schedule = load("short")
    told: list[str] = []
    work = Clouds("short", num_vnodes=3, passes=9, replicas=2)
    document = run(
        Setup(schedule, work, num_orchestrators=1, memory_mb=512, checkpoint_s=2.0, cpu_percent=30, batches_per_s=8.0, fit=False),
        say=told.append,
    )
    json.dumps(document)
    outcome, faults = document["outcome"], document["faults"]
    assert outcome["state"] == "completed"
    assert (outcome["lineages_exact"], outcome["num_vnodes"]) == (work.num_vnodes, work.num_vnodes)
    assert max(good for _, _, good, *_ in document["shares"]) == work.num_vnodes * work.replicas, (
        "every replica learns at some time"
    )
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


def test_a_schedule_with_impaired_links_is_refused_without_links_that_are_better_before() -> None:
    recipe = Recipe(1, 3, 1, 60.0, 120.0, kill_share=0.0, partition_share=0.0, pause_share=0.0, impair_share=1.0)
    schedule = make_schedule(recipe)
    assert {fault.kind for fault in schedule.faults} == {Kind.IMPAIR}
    for link in ("", "bad"):
        with pytest.raises(Unavailable) as caught:
            run(Setup(schedule, Clouds("c"), own_machines=True, link=link))
        assert caught.value.code == "no_links"
        assert "--link home" in caught.value.remedy


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


def links_lacking() -> str:
    """What emulated links lack here; refused with it."""
    why = namespaces.lacking("home")
    if why:
        with pytest.raises(Refused) as caught, namespaces.Machines(1, profile="home"):
            pass
        assert (caught.value.code, why in caught.value.message) == ("no_namespaces", True)
    return why


def test_links_delay_lose_and_are_cut_and_healed() -> None:
    """With root, /dev/net/tun and cc; without, what is missing is said, and the test is told as not run."""
    if why := links_lacking():
        pytest.skip(f"emulated links need {why}")
    with namespaces.Machines(2, profile="home") as two:
        for address in (two.address(1), two.host):
            assert 2 * (40 - 2) <= two.round_trip_ms(0, address) < 4 * 40
        assert two.links.carried()[1].dropped_packets == 0
        two.cut(1)
        assert not reaches(two, 0, two.address(1))
        assert not reaches(two, 1, two.host)
        assert two.links.carried()[1].dropped_packets > 0
        assert reaches(two, 0, two.host), "only the machine whose cable is out is cut off"
        two.join(1)
        assert two.round_trip_ms(0, two.address(1)) >= 2 * (40 - 2), "a link is as it was"
        end = lasting(Fault(0.0, Kind.IMPAIR, 1, 4.0), cast(Process, None), two, "home")
        assert two.round_trip_ms(0, two.address(1)) >= 2 * (70 - 4), "one end is impaired"
        assert two.round_trip_ms(0, two.host) < 4 * 40, "only that machine's"
        end()
        assert two.round_trip_ms(0, two.address(1)) < 4 * 40
        two.links.become("lan")
        assert two.round_trip_ms(0, two.address(1)) < 40
        two.links.become("bad")
        assert 0.002 < lost(two, 0, 4000) < 0.04
        with pytest.raises(Unavailable):
            namespaces.Machines(1).links.carried()


def lost(where: namespaces.Machines, index: int, count: int) -> float:
    """Of so many small packets from a machine to this computer, the share that its link loses; the queue of a narrow one is given time."""
    before = where.links.carried()[index]
    program = f"""
import socket, time
with socket.socket(type=socket.SOCK_DGRAM) as one:
    for number in range({count}):
        one.sendto(bytes(100), ("{where.host}", 9))
        if number % 100 == 0:
            time.sleep(0.01)
"""
    with socket.socket(type=socket.SOCK_DGRAM) as sink:
        sink.bind((where.host, 9))
        subprocess.run([*where.prefix(index), "python3", "-c", program], timeout=60, check=True)
    after = where.links.carried()[index]
    assert after.sent_packets - before.sent_packets >= 0.9 * count
    return (after.lost_packets - before.lost_packets) / (after.sent_packets - before.sent_packets)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_links_of_a_run_that_is_ended_are_gone(number: signal.Signals) -> None:
    """By itself, or, where nothing could be done any more, by the router's own end and a command."""
    if why := links_lacking():
        pytest.skip(f"emulated links need {why}")
    program = """
import signal
from benchmarks.namespaces import Machines
with Machines(2, profile="home") as two:
    print(two.bridge, two.links.router_pid, two.links.config, flush=True)
    signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as run_:
        assert run_.stdout is not None
        bridge, router, config = run_.stdout.readline().split()
        assert bridge in names()
        assert Path(config).exists()
        run_.send_signal(number)
    deadline = time.monotonic() + 20
    while (bridge in names() or Path(f"/proc/{router}").exists()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert bridge not in names(), "the router ends with its run, its devices with it"
    left = [name for name in names() if name.startswith(bridge[:-1])] + [str(Path(config).parent)] * Path(config).exists()
    assert len(left) == (0 if number == signal.SIGINT else 3)
    assert {Path(name).name for name in left} <= set(namespaces.clean())
    assert not Path(config).exists()
    assert [name for name in names() if name.startswith(bridge[:-1])] == []


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
    """Of all namespaces and devices."""
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, timeout=20, check=True).stdout.split()
    links = subprocess.run(["ip", "-o", "link", "show"], capture_output=True, text=True, timeout=20, check=True).stdout
    return [*spaces, *(line.split(":")[1].strip() for line in links.splitlines())]
