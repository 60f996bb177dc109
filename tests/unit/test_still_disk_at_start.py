"""Goal: a daemon and its worker begin and end beside a disk that stands still, and whatever needs no disk goes on meanwhile."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from socket import socket
from typing import Any

import pytest
from still_disk_rig import standing_still
from test_bad_disk import NODE, POLICY
from test_still_disk import Greeting, meets, nothing
from test_uploads import until

from dcnr.settings import PNodeSettings
from dcnr.system import SystemClock
from dcnr.v1 import local_pb2
from pnode.daemon import Daemon
from pnode.entry import _numbered
from pnode.home import Home
from pnode.probe import Machine
from pnode.reaching import Outside, Reaching
from pnode.snapshots import Shelf
from pnode.supervisor import Supervisor, WorkerOptions, WorkerProcess
from pnode.telling import Condition
from trust.in_force import InForce
from vnode.registry import default_registry

Heard = Callable[..., Awaitable[None]]


class Failing(Greeting):
    """A worker that ends by an error when its pipe closes, and that says so in its log before."""

    async def wait(self) -> int:
        return 1


def supervised(
    log: Path, started: list[Greeting], downs: list[str], kind: type[Greeting] = Greeting, *, up: Heard = nothing, message: Heard = nothing
) -> Supervisor:  # fmt: skip
    async def start(pipe: socket, arguments: Sequence[str], environment: Mapping[str, str], written: int) -> WorkerProcess:
        process = kind(pipe)
        await process.say_hello()
        started.append(process)
        return process

    async def down(reason: str) -> None:
        downs.append(reason)

    options = WorkerOptions("127.0.0.1", 0, 1, "cpu", log, os.environ, start=start)
    return Supervisor(options, next_incarnation=lambda: 1, on_up=up, on_message=message, on_down=down)


def open_files() -> set[str]:
    found = set[str]()
    for entry in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{entry}"))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_worker_starts_when_the_disk_has_opened_its_log_and_who_is_stopped_waits_for_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stopped: bool
) -> None:
    """What is opened too late is closed."""
    log, started, downs = tmp_path / "worker.log", list[Greeting](), list[str]()

    async def story() -> None:
        mine = supervised(log, started, downs)
        with standing_still(monkeypatch, tmp_path, "open") as disk:
            running = asyncio.create_task(mine.run())
            await meets(disk)
            assert not started
            if is_stopped:
                await mine.stop(within_s=0.01)
                await until(lambda: bool(downs))
        if not is_stopped:
            await until(lambda: mine.worker is not None)
            await mine.stop(within_s=0.01)
        await running
        for process in started:
            await process.close()

    asyncio.run(story())  # which ends when its threads have
    assert bool(started) != is_stopped
    assert str(log) not in open_files()


def test_the_last_words_of_a_worker_wait_for_the_disk_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, started, downs = tmp_path / "worker.log", list[Greeting](), list[str]()

    async def story() -> None:
        mine = supervised(log, started, downs, Failing)
        running = asyncio.create_task(mine.run())
        await until(lambda: mine.worker is not None)
        log.write_text("OutOfMemoryError: too large\n")
        with standing_still(monkeypatch, tmp_path, "stat") as disk:
            started[0].returncode = 1
            await started[0].close()
            await meets(disk)
            assert not downs
        await until(lambda: bool(downs))
        assert downs == ["the worker ended with exit code 1"]
        assert mine.last_words == "OutOfMemoryError: too large"
        await mine.stop(within_s=0.01)
        await running

    asyncio.run(story())


@pytest.mark.parametrize("meant", ["up", "message"])
def test_who_is_stopped_waits_for_no_disk_with_what_it_does_about_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meant: str
) -> None:
    """What the last worker left, or the note of a snapshot: the daemon went on for as long as the disk stood still, and said that it leaves."""
    monkeypatch.setattr("pnode.supervisor.KILLED_S", 0.01)
    started, downs = list[Greeting](), list[str]()

    async def tidied(*_: object) -> None:
        await asyncio.to_thread(os.rename, tmp_path / "a", tmp_path / "b")

    async def story() -> None:
        up, message = (tidied, nothing) if meant == "up" else (nothing, tidied)
        mine = supervised(tmp_path / "worker.log", started, downs, up=up, message=message)
        (tmp_path / "a").touch()
        with standing_still(monkeypatch, tmp_path / "a", "rename") as disk:
            running = asyncio.create_task(mine.run())
            await until(lambda: mine.worker is not None)
            if meant == "message":
                await started[0].pipe.send(local_pb2.FromWorker(report=local_pb2.WorkerReport()))
            await meets(disk)
            assert not downs
            await mine.stop(within_s=0.01)
            await asyncio.wait([running], timeout=20)
            assert downs
        await running
        await started[0].close()

    asyncio.run(story())


def test_who_is_stopped_before_it_has_read_what_lies_here_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads every state, which takes minutes of a slow disk."""
    shelf, stopped = Shelf(tmp_path), asyncio.Event()
    (tmp_path / f"{'a' * 64}.snapshot").write_bytes(b"")

    async def story() -> None:
        with standing_still(monkeypatch, tmp_path, "stat") as disk:
            asking = asyncio.create_task(shelf.loaded(stopped))
            await meets(disk)
            assert not asking.done()
            stopped.set()
            assert await asking is None
        assert await shelf.loaded(asyncio.Event()) is not None

    asyncio.run(story())


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_daemon_begins_with_a_number_that_the_disk_has_and_who_is_stopped_before_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stopped: bool
) -> None:
    home, stopped = Home(tmp_path / "home"), asyncio.Event()
    home.open()

    async def story() -> None:
        with standing_still(monkeypatch, home.root, "replace") as disk:
            asking = asyncio.create_task(_numbered(home, SystemClock(), stopped))
            await meets(disk)
            assert not asking.done()
            if is_stopped:
                stopped.set()
                assert await asking is None
        assert (await asking is None) == is_stopped

    asyncio.run(story())
    home.close()


def test_neighbours_are_kept_fresh_while_the_disk_is_being_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pnode.daemon.REFRESH_S", 0.001)
    home = Home(tmp_path / "home")
    home.open()
    num_refreshed = 0

    async def refresh() -> None:
        nonlocal num_refreshed
        num_refreshed += 1

    async def story() -> None:
        daemon = Daemon(
            PNodeSettings(), home, key=NODE, network=InForce(POLICY), machine=Machine(2, 4 << 30, 4 << 30, 40 << 30, 10.0, "x86_64", "linux"),
            clock=SystemClock(), rng=random.Random(1), environment={}, bootstrap=[], registry=default_registry(), incarnation=1,
        )  # fmt: skip
        async with asyncio.TaskGroup() as group:
            daemon._wire(group)
            monkeypatch.setattr(daemon._neighbours, "refresh", refresh)
            with standing_still(monkeypatch, home.root, "lstat") as disk:
                watching = group.create_task(daemon._watch())
                await meets(disk)
                before = num_refreshed
                await until(lambda: num_refreshed > before + 3)
                watching.cancel()
            for stop in (daemon._duties.stop, daemon._neighbours.stop, daemon._shards.stop):
                stop()

    asyncio.run(story())
    home.close()


def test_this_machine_s_own_names_are_looked_up_while_every_thread_of_the_loop_stands_in_the_disk() -> None:
    goes_on = threading.Event()
    none: Any = None

    async def story() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        standing = loop.run_in_executor(None, goes_on.wait)
        hosts = iter(("10.0.0.1", "10.0.0.2"))
        outside = Outside(lambda: next(hosts), False, Condition(0.0), none, none, none, none, none, SystemClock(), random.Random(0))
        mine = Reaching(outside)
        try:
            assert await mine._host_now() == "10.0.0.2"
            assert await mine._addresses_of("localhost")
        finally:
            goes_on.set()
            await standing

    asyncio.run(story())
