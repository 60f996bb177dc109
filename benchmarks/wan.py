"""Machines far from one another, on one computer: a network namespace each, joined by a router in userspace that has queues, delays and losses.

For kernels without netem. Needs root, /dev/net/tun, ``ip`` and ``cc``. Everything made by a run is removed by it; names begin with its process id. Inside,
TCP goes with cubic, as the machines of homes do.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from benchmarks.machine import ROOT
from dcnr.errors import Refused, Unavailable

COMMAND_S: Final = 20.0
READY_S: Final = 10.0
ROUTER: Final = Path(__file__).parent / "wanrouter.c"
ALLOWED: Final = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
CONTROL: Final = "cubic"


@dataclass(frozen=True, slots=True)
class Profile:
    """A machine's link: half of the round trip between two of them, its jitter, bandwidth each way, share of packets lost, queue."""

    delay_ms: float
    jitter_ms: float
    up_mbit: float
    down_mbit: float
    loss_percent: float
    queue_ms: float

    def line(self, namespace: str, address: str) -> str:
        """For the router."""
        return (
            f"{namespace} wan0 {address} {self.up_mbit:g} {self.down_mbit:g} {self.delay_ms:g} {self.jitter_ms:g} {self.loss_percent:g} "
            f"{self.queue_ms:g} 1\n"
        )


PROFILES: Final = {
    "lan": Profile(0.1, 0, 1000, 1000, 0, 20), "metro": Profile(10, 0.5, 100, 100, 0, 100), "home": Profile(40, 2, 50, 200, 0.1, 200),
    "clean": Profile(40, 2, 50, 200, 0, 200), "bad": Profile(100, 10, 20, 20, 1, 300),
}  # fmt: skip
"""``clean``: a home where no packet is lost."""


@dataclass(frozen=True, slots=True)
class Links:
    """The links of a `Wan` as any process of this computer may change them."""

    router_pid: int
    config: str

    def become(self, profile: str) -> None:
        """From the next packet on all links are of that kind."""
        config = Path(self.config)
        named = [line.split() for line in config.read_text().splitlines()]
        draft = config.with_suffix(".draft")
        draft.write_text("".join(PROFILES[profile].line(namespace, address) for namespace, _, address, *_ in named))
        draft.replace(config)
        os.kill(self.router_pid, signal.SIGHUP)


class Wan:
    """``count`` machines. Use as a context manager."""

    def __init__(self, count: int, profile: str) -> None:
        self.count, self._profile, self._run = count, PROFILES[profile], f"dcnrw{os.getpid()}"
        self._directory: Path | None = None
        self._router: subprocess.Popen[bytes] | None = None

    @property
    def links(self) -> Links:
        """Of a running one."""
        if self._router is None or self._directory is None:
            raise Unavailable("the emulated links are not there yet", code="no_router")
        return Links(self._router.pid, str(self._directory / "config"))

    def address(self, index: int) -> str:
        """Of a machine."""
        return f"10.77.0.{index + 1}"

    def prefix(self, index: int) -> tuple[str, ...]:
        """What to put before a command so that it runs on that machine; the process keeps the id with which it was started."""
        return ("ip", "netns", "exec", self._namespace(index))

    def __enter__(self) -> Wan:
        lacking = [name for name in ("ip", "cc") if shutil.which(name) is None]
        if os.geteuid() != 0 or lacking or not Path("/dev/net/tun").exists():
            raise Refused("emulated links need root, /dev/net/tun, and the commands ip and cc", code="no_namespaces")
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._remove()

    def _make(self) -> None:
        allowed = ALLOWED.read_text().split()
        if CONTROL not in allowed:
            ALLOWED.write_text(" ".join([*allowed, CONTROL]))
        self._directory = Path(tempfile.mkdtemp(prefix="bench-wan-"))
        program, config = self._directory / "router", self._directory / "config"
        _do("cc", "-O2", "-w", "-o", str(program), str(ROUTER))
        config.write_text("".join(self._profile.line(self._namespace(index), self.address(index)) for index in range(self.count)))
        for index in range(self.count):
            _do("ip", "netns", "add", self._namespace(index))
        self._router = subprocess.Popen([str(program), str(config)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + READY_S
        while not Path(f"{config}.ready").exists():
            if self._router.poll() is not None or time.monotonic() > deadline:
                raise Unavailable("the router of emulated links did not start", code="no_router")
            time.sleep(0.05)
        for index in range(self.count):
            _do("ip", "-n", self._namespace(index), "link", "set", "lo", "up")
            _do("ip", "-n", self._namespace(index), "link", "set", "wan0", "mtu", "1500", "txqueuelen", "1000", "up")
            _do("ip", "-n", self._namespace(index), "addr", "add", f"{self.address(index)}/16", "dev", "wan0")
            _do(*self.prefix(index), "sysctl", "-qw", f"net.ipv4.tcp_congestion_control={CONTROL}")

    def _remove(self) -> None:
        if self._router is not None:
            self._router.send_signal(signal.SIGTERM)
            self._router.wait(COMMAND_S)
        for index in range(self.count):
            subprocess.run(["ip", "netns", "del", self._namespace(index)], capture_output=True, timeout=COMMAND_S, check=False)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _namespace(self, index: int) -> str:
        return f"{self._run}-{index}"


def told_on_last(module: str, asked: Mapping[str, Any], *, count: int, profile: str, within_s: float) -> dict[str, Any]:
    """The JSON that ``python -m module`` prints on the last of ``count`` machines; on its standard input: ``asked``, and how the machines are reached."""
    with Wan(count, profile) as wan:
        machines = range(count)
        whole = {
            **asked, "addresses": [wan.address(number) for number in machines], "prefixes": [wan.prefix(number) for number in machines],
            "links": asdict(wan.links),
        }  # fmt: skip
        done = subprocess.run(
            [*wan.prefix(count - 1), sys.executable, "-m", module], input=json.dumps(whole), text=True, stdout=subprocess.PIPE,
            timeout=within_s, check=True, cwd=ROOT,
        )  # fmt: skip
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    if done.returncode:
        raise Refused(f"{' '.join(command)}: {done.stderr.strip()[:200]}", code="no_namespaces")
