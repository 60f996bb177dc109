"""How each kind of fault begins and how it ends, on processes, cables and links."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import psutil

from benchmarks.namespaces import Machines
from benchmarks.network import family
from chaos.schedule import Fault, Kind
from dcnr.errors import Unavailable
from dcnr.testing import LocalNetwork, Process

IMPAIRED: Final = "bad"
"""The profile of a link while it is impaired."""
ENDED: Final = "worker_ended"
"""What a daemon's log says of a worker that is gone."""
POLL_S: Final = 0.05
End = Callable[[], None]


def lasting(fault: Fault, process: Process, machines: Machines | None, profile: str) -> End:
    """Begins a fault that lasts; call what it gives when it is over. ``profile``: of every link, where there are any."""
    if fault.kind is Kind.PAUSE:
        stopped = family(process.pid)
        _signal_all(stopped, signal.SIGSTOP)
        return lambda: _signal_all(stopped, signal.SIGCONT)
    assert machines is not None
    if fault.kind is Kind.IMPAIR:
        machines.links.change(fault.victim, IMPAIRED)
        return lambda: machines.links.change(fault.victim, profile)
    machines.cut(fault.victim)
    return lambda: machines.join(fault.victim)


@dataclass(frozen=True, slots=True)
class Killed:
    """Processes that a daemon had started, and how often it had said before that one was killed."""

    pids: frozenset[int]
    times_told: int


def kill_worker(process: Process) -> Killed:
    """SIGKILL to what a daemon has started, and to nothing else."""
    times_told, victims = _times_told(process), [one for one in family(process.pid) if one.pid != process.pid]
    _signal_all(victims, signal.SIGKILL)
    return Killed(frozenset(one.pid for one in victims), times_told)


async def told_and_replaced(process: Process, killed: Killed, within_s: float) -> bool:
    """Waits until a daemon has said that its worker was killed, and has started another one. False where it has not within that time."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        others = {one.pid for one in family(process.pid)} - killed.pids - {process.pid}
        if others and _times_told(process) > killed.times_told:
            return True
        await asyncio.sleep(POLL_S)
    return False


def _times_told(process: Process) -> int:
    """In its log: of a worker that ended by SIGKILL."""
    lines = process.log.read_text(errors="replace").splitlines()
    return sum(ENDED in line and "SIGKILL" in line for line in lines)


def deciding(network: LocalNetwork, holder: str) -> Process:
    """The process of the orchestrator that decides. Raises Unavailable where nobody is known to."""
    process = network.process_of(holder)
    if process is None:
        raise Unavailable("no view has told who decides: there is nobody to kill", code="no_holder")
    return process


def _signal_all(processes: list[psutil.Process], number: signal.Signals) -> None:
    """Signals those that live."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
