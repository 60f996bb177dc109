"""Machines of their own on one computer: a network namespace each, joined by a bridge or by emulated links, all made by one run and all removed by it.

Every name begins with that of the run, which holds its process id; nothing else is ever touched. ``clean`` removes what a killed run left behind. A
partition takes the machine's cable out: its processes live and reach nothing. Needs root and ``ip``; emulated links also what `benchmarks.wan` needs. Over
these TCP goes with cubic, as the machines of homes do.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from benchmarks import wan
from benchmarks.machine import ROOT
from benchmarks.wan import OWN, Link, Links, Router
from dcnr.errors import Refused, Unavailable

COMMAND_S: Final = 20.0
"""Limit of one ``ip``."""
MAX_MACHINES: Final = 100
"""Two digits: a name of an interface has 15 characters at most."""
CONTROL: Final = "cubic"
_PREFIX: Final = "dcnrc"
_NAME: Final = re.compile(r"dcnrc(\d+)(?:b|m\d+|-\w+)")
_TRIPS: Final = """
import socket, sys, time
for _ in range(9):
    with socket.socket() as one:
        one.settimeout(5.0)
        began_s = time.monotonic()
        try:
            one.connect((sys.argv[1], 9))
        except ConnectionRefusedError:
            print(1e3 * (time.monotonic() - began_s))
"""


def lacking(profile: str = "") -> str:
    """What this computer lacks for machines of their own, with links of a profile if one is named; empty if nothing."""
    if os.geteuid() != 0:
        return "root (network namespaces and their links are made by root only): sudo, or a container with CAP_NET_ADMIN and CAP_SYS_ADMIN"
    absent = [] if shutil.which("ip") else ["the command ip (package iproute2)"]
    return ", ".join([*absent, *(wan.lacking() if profile else [])])


class Machines:
    """``count`` namespaces on a bridge, or behind links of a profile. Use as a context manager: whatever ends the block, everything is removed."""

    def __init__(self, count: int, *, profile: str = "", pid: int | None = None) -> None:
        if not 1 <= count <= MAX_MACHINES:
            raise Refused(f"1 to {MAX_MACHINES} machines, not {count}", code="too_many_machines")
        self.count = count
        self._run = f"{_PREFIX}{pid or os.getpid()}"
        self._profile = profile
        self._router: Router | None = None
        second, third = divmod((pid or os.getpid()) % 12_500, 250)
        self._subnet = f"10.{200 + second}.{third}"
        self.bridge = f"{self._run}b"

    @property
    def host(self) -> str:
        """This computer's own address among them: where store and orchestrators listen."""
        return f"{self._subnet}.254"

    @property
    def links(self) -> Links:
        """Those of a profile. Raises Unavailable where there are none."""
        if self._router is None:
            raise Unavailable("these machines have no emulated links, or not yet", code="no_router")
        return self._router.links

    def address(self, index: int) -> str:
        """Of a machine."""
        return f"{self._subnet}.{index + 1}"

    def prefix(self, index: int) -> tuple[str, ...]:
        """What to put before a command so that it runs on that machine; the process keeps the id with which it was started."""
        return ("ip", "netns", "exec", self._machine(index))

    def cut(self, index: int) -> None:
        """Takes its cable out: nothing comes, nothing goes."""
        if self._router is not None:
            self._router.links.cut(index)
        else:
            _ip("link", "set", self._cable(index), "down")

    def join(self, index: int) -> None:
        """Puts the cable back."""
        if self._router is not None:
            self._router.links.join(index)
        else:
            _ip("link", "set", self._cable(index), "up")

    def round_trip_ms(self, index: int, address: str) -> float:
        """From that machine to an address: until a connection is refused, the median of some. Raises Unavailable where none is."""
        taken_ms = [float(line) for line in _run(*self.prefix(index), sys.executable, "-c", _TRIPS, address).splitlines()]
        if not taken_ms:
            raise Unavailable(f"{address} is not reached from machine {index}", code="no_way")
        return statistics.median(taken_ms)

    def __enter__(self) -> Machines:
        why = lacking(self._profile)
        if why:
            remedy = "leave --link out" if self._profile and not lacking() else "leave partitions and links out: --no-partitions"
            raise Refused(f"machines of their own need {why}", code="no_namespaces", remedy=remedy)
        self._remove()
        try:
            for index in range(self.count):
                _ip("netns", "add", self._machine(index))
                _ip("-n", self._machine(index), "link", "set", "lo", "up")
            if self._profile:
                self._link()
            else:
                self._cross()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._remove()

    def _cross(self) -> None:
        """A bridge, and a cable from each machine to it."""
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("addr", "add", f"{self.host}/24", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")
        for index in range(self.count):
            machine, cable = self._machine(index), self._cable(index)
            _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", machine)
            _ip("link", "set", cable, "master", self.bridge, "up")
            _ip("-n", machine, "addr", "add", f"{self.address(index)}/24", "dev", "eth0")
            _ip("-n", machine, "link", "set", "eth0", "up")

    def _link(self) -> None:
        """A router, and a device of it in each machine and here."""
        profile = wan.PROFILES[self._profile]
        ends = [Link(self._machine(index), "eth0", self.address(index), profile) for index in range(self.count)]
        ends.append(Link(OWN, self.bridge, self.host, profile).of(self._profile))
        self._router = Router(ends, self._run)
        for end in ends:
            where = () if end.namespace == OWN else ("-n", end.namespace)
            _ip(*where, "addr", "add", f"{end.address}/24", "dev", end.device, "noprefixroute")
            _ip(*where, "link", "set", end.device, "mtu", "1500", "txqueuelen", "1000", "up")
            _ip(*where, "route", "add", f"{self._subnet}.0/24", "dev", end.device, "src", end.address, "congctl", CONTROL)

    def _remove(self) -> None:
        """Removes what bears this run's name; what is not there is fine."""
        if self._router is not None:
            self._router.stop()
            self._router = None
        for index in range(self.count):
            with contextlib.suppress(Unavailable):
                _ip("netns", "del", self._machine(index))
            with contextlib.suppress(Unavailable):
                _ip("link", "del", self._cable(index))
        with contextlib.suppress(Unavailable):
            _ip("link", "del", self.bridge)

    def _machine(self, index: int) -> str:
        return f"{self._run}m{index}"

    def _cable(self, index: int) -> str:
        return f"{self._run}c{index}"


def told_on_last(module: str, asked: Mapping[str, Any], *, count: int, profile: str, within_s: float) -> dict[str, Any]:
    """The JSON that ``python -m module`` prints on the last of ``count`` machines; on its standard input: ``asked``, and how the machines are reached."""
    with Machines(count, profile=profile) as machines:
        each = range(count)
        whole = {
            **asked, "addresses": [machines.address(number) for number in each], "prefixes": [machines.prefix(number) for number in each],
            "links": asdict(machines.links),
        }  # fmt: skip
        done = subprocess.run(
            [*machines.prefix(count - 1), sys.executable, "-m", module], input=json.dumps(whole), text=True, stdout=subprocess.PIPE,
            timeout=within_s, check=True, cwd=ROOT,
        )  # fmt: skip
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def clean() -> list[str]:
    """Removes bridges, namespaces and routers' directories of runs whose process is gone; their names. Raises Unavailable."""
    removed: list[str] = []
    for command, names in (
        (("netns", "del"), [line.split()[0] for line in _ip("netns", "list").splitlines() if line.strip()]),
        (("link", "del"), [line.split(":")[1].strip() for line in _ip("-o", "link", "show").splitlines()]),
    ):
        for name in filter(_is_left, names):
            with contextlib.suppress(Unavailable):
                _ip(*command, name)
                removed.append(name)
    for path in filter(lambda path: _is_left(path.name), Path(tempfile.gettempdir()).glob(f"{_PREFIX}*")):
        shutil.rmtree(path, ignore_errors=True)
        removed.append(path.name)
    return removed


def _is_left(name: str) -> bool:
    """Whether that is of a run whose process is gone."""
    found = _NAME.fullmatch(name)
    return found is not None and not os.path.exists(f"/proc/{found[1]}")


def _ip(*arguments: str) -> str:
    return _run("ip", *arguments)


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{' '.join(command)}: {error}", code="ip_failed") from error
    if done.returncode:
        raise Unavailable(f"{' '.join(command)}: {done.stderr.strip()}", code="ip_failed")
    return done.stdout
