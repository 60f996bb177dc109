"""Machines of their own on one computer: a network namespace each, joined by a bridge, all made by one run and all removed by it.

Every name begins with that of the run, which holds its process id; nothing else is ever touched. ``clean`` removes what a killed run left behind. A
partition takes the machine's cable out of the bridge: its processes live and reach nothing. Needs root, ``ip`` and, for link profiles, ``tc`` with
the kernel's netem.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from dcnr.errors import Refused, Unavailable

COMMAND_S: Final = 20.0
"""Limit of one ``ip`` or ``tc``."""
QUEUE_MS: Final = 400.0
"""What waits before a limited cable at most: as much as routers of homes keep."""
MAX_MACHINES: Final = 100
"""Two digits: a name of an interface has 15 characters at most."""
_PREFIX: Final = "dcnrc"
_NAME: Final = re.compile(r"dcnrc(\d+)[bm]")


@dataclass(frozen=True, slots=True)
class LinkProfile:
    """How a machine is connected, each way: half of the round trip, bandwidth, share of packets lost."""

    delay_ms: float
    rate_mbit: float
    loss_percent: float

    def netem(self) -> list[str]:
        """Arguments of ``tc qdisc``."""
        return ["netem", "delay", f"{self.delay_ms:g}ms", "rate", f"{self.rate_mbit:g}mbit", "loss", f"{self.loss_percent:g}%"]


PROFILES: Final = {
    "lan": LinkProfile(0.1, 1000, 0), "metro": LinkProfile(10, 100, 0), "home": LinkProfile(40, 50, 0.1), "bad": LinkProfile(100, 20, 1),
}  # fmt: skip


def lacking(profile: str = "") -> str:
    """What this computer lacks for machines of their own; empty if nothing."""
    needs = ["ip", *(["tc"] if profile else [])]
    absent = [name for name in needs if shutil.which(name) is None]
    if os.geteuid() != 0:
        return "root (network namespaces and their links are made by root only): sudo, or a container with CAP_NET_ADMIN and CAP_SYS_ADMIN"
    if absent:
        return f"the commands {', '.join(absent)} (package iproute2)"
    return ""


class Machines:
    """``count`` namespaces on a bridge. Use as a context manager: whatever ends the block, everything is removed."""

    def __init__(self, count: int, *, profile: str = "", pid: int | None = None) -> None:
        if not 1 <= count <= MAX_MACHINES:
            raise Refused(f"1 to {MAX_MACHINES} machines, not {count}", code="too_many_machines")
        self.count = count
        self._run = f"{_PREFIX}{pid or os.getpid()}"
        self._profile = PROFILES[profile] if profile else None
        second, third = divmod((pid or os.getpid()) % 12_500, 250)
        self._subnet = f"10.{200 + second}.{third}"
        self.bridge = f"{self._run}b"

    @property
    def host(self) -> str:
        """This computer's own address on the bridge: where store and orchestrators listen."""
        return f"{self._subnet}.254"

    def address(self, index: int) -> str:
        """Of a machine."""
        return f"{self._subnet}.{index + 1}"

    def prefix(self, index: int) -> tuple[str, ...]:
        """What to put before a command so that it runs on that machine; the process keeps the id with which it was started."""
        return ("ip", "netns", "exec", self._machine(index))

    def cut(self, index: int) -> None:
        """Takes its cable out: nothing comes, nothing goes."""
        _ip("link", "set", self._cable(index), "down")

    def join(self, index: int) -> None:
        """Puts the cable back."""
        _ip("link", "set", self._cable(index), "up")

    def limit(self, index: int, rate_mbit: float) -> None:
        """From now on its cable carries so much each way; more waits in a queue of `QUEUE_MS`, and is lost above that. Raises
        Unavailable without ``tc`` and the kernel's tbf.
        """
        bucket = ("root", "tbf", "rate", f"{rate_mbit:g}mbit", "burst", "32kb", "latency", f"{QUEUE_MS:g}ms")
        _run("tc", "-n", self._machine(index), "qdisc", "replace", "dev", "eth0", *bucket)
        _run("tc", "qdisc", "replace", "dev", self._cable(index), *bucket)

    def carried(self, index: int) -> tuple[int, int]:
        """Bytes that came from that machine, and that went to it, since it was made."""
        counts = Path("/sys/class/net") / self._cable(index) / "statistics"
        return int((counts / "rx_bytes").read_text()), int((counts / "tx_bytes").read_text())

    def __enter__(self) -> Machines:
        why = lacking("netem" if self._profile else "")
        if why:
            raise Refused(f"machines of their own need {why}", code="no_namespaces", remedy="leave partitions out: --no-partitions")
        self._remove()
        try:
            _ip("link", "add", self.bridge, "type", "bridge")
            _ip("addr", "add", f"{self.host}/24", "dev", self.bridge)
            _ip("link", "set", self.bridge, "up")
            for index in range(self.count):
                self._make(index)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._remove()

    def _make(self, index: int) -> None:
        machine, cable = self._machine(index), self._cable(index)
        _ip("netns", "add", machine)
        _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", machine)
        _ip("link", "set", cable, "master", self.bridge, "up")
        _ip("-n", machine, "link", "set", "lo", "up")
        _ip("-n", machine, "addr", "add", f"{self.address(index)}/24", "dev", "eth0")
        _ip("-n", machine, "link", "set", "eth0", "up")
        if self._profile is not None:
            for where in (["-n", machine, "qdisc", "add", "dev", "eth0"], ["qdisc", "add", "dev", cable]):
                _tc(*where, "root", *self._profile.netem())

    def _remove(self) -> None:
        """Removes what bears this run's name; what is not there is fine."""
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


def clean() -> list[str]:
    """Removes bridges and namespaces of runs whose process is gone; their names. Raises Unavailable."""
    removed: list[str] = []
    names = [line.split()[0] for line in _ip("netns", "list").splitlines() if line.strip()]
    names += [line.split(":")[1].strip() for line in _ip("-o", "link", "show", "type", "bridge").splitlines()]
    for name in names:
        found = _NAME.match(name)
        if found is None or os.path.exists(f"/proc/{found[1]}"):
            continue
        with contextlib.suppress(Unavailable):
            _ip(*(("link", "del") if name.endswith("b") else ("netns", "del")), name)
            removed.append(name)
    return removed


def _ip(*arguments: str) -> str:
    return _run("ip", *arguments)


def _tc(*arguments: str) -> str:
    try:
        return _run("tc", *arguments)
    except Unavailable as error:
        raise Refused(
            f"link profiles need the kernel's netem (CONFIG_NET_SCH_NETEM): {error.message}",
            code="no_netem",
            remedy="leave --link out",
        ) from None


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{' '.join(command)}: {error}", code="ip_failed") from error
    if done.returncode:
        raise Unavailable(f"{' '.join(command)}: {done.stderr.strip()}", code="ip_failed")
    return done.stdout
