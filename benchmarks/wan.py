"""Links of machines far from one another, on one computer: a router in userspace that has queues, delays and losses, between network namespaces.

Needs no netem of the kernel, but root, /dev/net/tun and ``cc``. Links are changed while they carry something, by any process of this computer. The router
ends when whoever started it does, however that ends, and its devices with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dcnr.errors import Unavailable

COMMAND_S: Final = 20.0
READY_S: Final = 10.0
POLL_S: Final = 0.02
SOURCE: Final = Path(__file__).parent / "wanrouter.c"
TUN: Final = Path("/dev/net/tun")
OWN: Final = "-"
"""Instead of the name of a namespace: that of whoever starts the router."""
SERVER_MBIT: Final = 1000.0
NARROW_QUEUE_MS: Final = 400.0
"""What waits before a link that was made narrow at most: as much as routers of homes keep."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A machine's link: half of the round trip between two of them, its jitter, bandwidth each way, share of packets lost, queue."""

    delay_ms: float
    jitter_ms: float
    up_mbit: float
    down_mbit: float
    loss_percent: float
    queue_ms: float


PROFILES: Final = {
    "lan": Profile(0.1, 0, 1000, 1000, 0, 20), "metro": Profile(10, 0.5, 100, 100, 0, 100), "home": Profile(40, 2, 50, 200, 0.1, 200),
    "clean": Profile(40, 2, 50, 200, 0, 200), "bad": Profile(100, 10, 20, 20, 1, 300),
}  # fmt: skip
"""``clean``: a home where no packet is lost."""


@dataclass(frozen=True, slots=True)
class Link:
    """One machine's link as the router reads it."""

    namespace: str
    device: str
    address: str
    profile: Profile
    is_up: bool = True

    def of(self, name: str) -> Link:
        """With another profile. A server has as far to go and loses as much as everybody, on a line that is wide enough for all."""
        profile = PROFILES[name]
        if self.namespace == OWN:
            profile = replace(profile, up_mbit=SERVER_MBIT, down_mbit=SERVER_MBIT)
        return replace(self, profile=profile)

    def line(self) -> str:
        """For the router, and for `link_of`."""
        it = self.profile
        numbers = (it.up_mbit, it.down_mbit, it.delay_ms, it.jitter_ms, it.loss_percent, it.queue_ms)
        return f"{self.namespace} {self.device} {self.address} {' '.join(f'{number:g}' for number in numbers)} {self.is_up:d}\n"


def link_of(line: str) -> Link:
    """What was written there."""
    namespace, device, address, *words, is_up = line.split()
    up_mbit, down_mbit, delay_ms, jitter_ms, loss_percent, queue_ms = map(float, words)
    return Link(namespace, device, address, Profile(delay_ms, jitter_ms, up_mbit, down_mbit, loss_percent, queue_ms), is_up == "1")


@dataclass(frozen=True, slots=True)
class Carried:
    """Of one machine since its link was made: what left it and what came to it; packets that were lost, and that a full queue or a cut link dropped."""

    sent_packets: int
    sent_bytes: int
    come_packets: int
    come_bytes: int
    dropped_packets: int
    lost_packets: int


@dataclass(frozen=True, slots=True)
class Links:
    """The links of a running router as any process of this computer may change them, from the next packet on."""

    router_pid: int
    config: str

    def become(self, profile: str) -> None:
        """All links are of that kind."""
        self._change(lambda _, link: link.of(profile))

    def change(self, index: int, profile: str) -> None:
        """That one alone is of that kind."""
        self._change(lambda number, link: link.of(profile) if number == index else link)

    def cut(self, index: int) -> None:
        """Nothing comes, nothing goes."""
        self._change(lambda number, link: replace(link, is_up=False) if number == index else link)

    def join(self, index: int) -> None:
        """As it was before `cut`."""
        self._change(lambda number, link: replace(link, is_up=True) if number == index else link)

    def narrow(self, index: int, rate_mbit: float) -> None:
        """It carries so much each way; more waits in a queue of `NARROW_QUEUE_MS`, and is lost above that."""

        def narrowed(number: int, link: Link) -> Link:
            profile = replace(link.profile, up_mbit=rate_mbit, down_mbit=rate_mbit, queue_ms=NARROW_QUEUE_MS)
            return replace(link, profile=profile) if number == index else link

        self._change(narrowed)

    def carried(self) -> list[Carried]:
        """By machine. Raises Unavailable where the router is gone."""
        told = Path(f"{self.config}.stats")
        told.unlink(missing_ok=True)
        self._signal(signal.SIGUSR1)
        _wait_for(told, lambda: True)
        rows = [[int(word.partition("=")[2]) for word in line.split()[1:]] for line in told.read_text().splitlines()]
        return [Carried(*row) for row in rows]

    def _change(self, change: Callable[[int, Link], Link]) -> None:
        config = Path(self.config)
        links = [link_of(line) for line in config.read_text().splitlines()]
        draft = config.with_suffix(".draft")
        draft.write_text("".join(change(number, link).line() for number, link in enumerate(links)))
        draft.replace(config)
        self._signal(signal.SIGHUP)

    def _signal(self, number: int) -> None:
        try:
            os.kill(self.router_pid, number)
        except ProcessLookupError:
            raise Unavailable("the router of emulated links is gone", code="no_router") from None


class Router:
    """A running router: its `links`, until `stop`. ``name`` begins that of its directory. Raises Unavailable where it does not start."""

    def __init__(self, links: Sequence[Link], name: str) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix=f"{name}-"))
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self.links = self._started(links)
        except BaseException:
            self.stop()
            raise

    def _started(self, links: Sequence[Link]) -> Links:
        """In a process group apart, so that Ctrl-C ends first what speaks over the links."""
        program, config = self._directory / "router", self._directory / "config"
        command = ("cc", "-O2", "-w", "-o", str(program), str(SOURCE))
        built = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)
        if built.returncode:
            raise Unavailable(f"{' '.join(command)}: {built.stderr.strip()[:400]}", code="no_router")
        config.write_text("".join(link.line() for link in links))
        process = self._process = subprocess.Popen(
            [str(program), str(config)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )
        _wait_for(Path(f"{config}.ready"), lambda: process.poll() is None)
        return Links(process.pid, str(config))

    def stop(self) -> None:
        """Its devices are gone afterwards."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.terminate()  # what was forked here meanwhile may hold the other end of its input
            self._process.wait(COMMAND_S)
        shutil.rmtree(self._directory, ignore_errors=True)


def lacking() -> list[str]:
    """What a router needs and is not there, besides root."""
    return [
        *([] if shutil.which("cc") else ["the command cc (a C compiler)"]),
        *([] if TUN.exists() else [f"{TUN} (the module tun)"]),
    ]


def _wait_for(path: Path, alive: Callable[[], bool]) -> None:
    """Until the router has written it. Raises Unavailable."""
    deadline = time.monotonic() + READY_S
    while not path.exists():
        if not alive() or time.monotonic() > deadline:
            raise Unavailable("the router of emulated links does not answer", code="no_router")
        time.sleep(POLL_S)
