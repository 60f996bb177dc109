"""Streams as TCP gives them: in order while they live, then broken as a whole, noticed by each side in its own time.

Between streams nothing is ordered. Messages are bytes. A one-way partition loses what crosses it; the stream never recovers from that loss. A message
may be repeated later on the same stream where the knob says so: receivers must bear that.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from simulation.kernel import Kernel, Process


@dataclass(frozen=True, slots=True)
class NetworkKnobs:
    """How bad the network is."""

    latency_s: tuple[float, float] = (0.005, 0.08)
    repeat_probability: float = 0.0
    """A message is delivered a second time, up to a second later."""


class Receiver(Protocol):
    """One end of a stream."""

    def on_message(self, data: bytes) -> None:
        """A message came."""
        ...

    def on_broken(self) -> None:
        """The stream is over; said once."""
        ...


class Stream:
    """A connection of two processes; side 0 opened it."""

    def __init__(self, network: Network, processes: tuple[Process, Process], receivers: tuple[Receiver, Receiver]) -> None:
        self._network, self.processes, self._receivers = network, processes, receivers
        self._free_s = [0.0, 0.0]
        self._lossy = [False, False]
        self._told = [False, False]
        hosts = processes[0].host, processes[1].host
        self._latency_s = network.latency_s(*hosts), network.latency_s(hosts[1], hosts[0])

    def send(self, side: int, data: bytes, transfer_s: float = 0.0, on_left: Callable[[], None] | None = None) -> None:
        """Sends from ``side``: it leaves after what was sent before, ``transfer_s`` long, and arrives a latency later."""
        network = self._network
        start_s = max(network.kernel.now_s, self._free_s[side])
        self._free_s[side] = start_s + transfer_s
        leave_s = self._free_s[side] - network.kernel.now_s
        if on_left is not None:
            self.processes[side].after(leave_s, on_left)
        arrive_s = leave_s + self._latency_s[side]
        network.kernel.after(arrive_s, partial(self._arrive, side, data))
        if network.rng.random() < network.knobs.repeat_probability:
            network.kernel.after(arrive_s + network.rng.random(), lambda: self._arrive(side, data))

    def _arrive(self, side: int, data: bytes) -> None:
        other = 1 - side
        if self._told[other]:
            return
        if self._network.is_blocked(self.processes[side].host, self.processes[other].host):
            if not self._lossy[side]:
                self._lossy[side] = True
                self.fail(1.0, 6.0)
        elif not self._lossy[side]:
            process = self.processes[other]
            self._network.note_message("message", self.processes[side].host, process.host, data)
            if process.alive and not process.paused:
                self._receivers[other].on_message(data)
            else:
                process.post(partial(self._deliver, other, data))

    def _deliver(self, side: int, data: bytes) -> None:
        if not self._told[side]:
            self._receivers[side].on_message(data)

    def fail(self, soonest_s: float, latest_s: float) -> None:
        """Breaks it: each side notices at its own time; a dead process notices nothing."""
        for side in (0, 1):
            self.processes[side].after(self._network.rng.uniform(soonest_s, latest_s), lambda side=side: self._tell(side))  # type: ignore[misc]
        self._lossy = [True, True]

    def close(self, side: int) -> None:
        """``side`` is done with it: it hears nothing more, the other side soon hears that it is over."""
        self._told[side] = True
        other = 1 - side
        self.processes[other].after(self._network.rng.uniform(0.01, 0.2), lambda: self._tell(other))

    def _tell(self, side: int) -> None:
        if not self._told[side]:
            self._told[side] = True
            self._network.kernel.note("stream broken", self.processes[side].host, self.processes[1 - side].host)
            if self.is_over:
                self._network.forget(self)
            self._receivers[side].on_broken()

    @property
    def is_over(self) -> bool:
        """Whether both sides know that it is over, or are gone."""
        return all(told or not process.alive for told, process in zip(self._told, self.processes, strict=True))


class Network:
    """All streams and the partitions between hosts."""

    def __init__(self, kernel: Kernel, knobs: NetworkKnobs) -> None:
        self.kernel, self.knobs = kernel, knobs
        self.rng = kernel.rng("network")
        self._blocked: dict[tuple[str, str], int] = {}
        """How many partitions lie over a direction now."""
        self._latencies: dict[tuple[str, str], float] = {}
        self._streams: dict[Process, dict[Stream, None]] = {}

    def latency_s(self, source: str, target: str) -> float:
        """One way; constant per pair of hosts, so that a stream keeps its order."""
        found = self._latencies.get((source, target))
        if found is None:
            rng = self.kernel.rng(f"latency/{min(source, target)}/{max(source, target)}")
            found = self._latencies[source, target] = rng.uniform(*self.knobs.latency_s)
        return found

    def is_blocked(self, source: str, target: str) -> bool:
        """Whether messages of that direction are lost."""
        return (source, target) in self._blocked

    def block(self, source: str, target: str, for_s: float) -> None:
        """A one-way partition for a while."""
        way = (source, target)
        self.kernel.note("partition", source, target, round(for_s, 3))
        self._blocked[way] = self._blocked.get(way, 0) + 1
        self.kernel.after(for_s, lambda: self._unblock(way))

    def _unblock(self, way: tuple[str, str]) -> None:
        self._blocked[way] -= 1
        if not self._blocked[way]:
            del self._blocked[way]

    def note_message(self, kind: str, source: str, target: str, data: bytes) -> None:
        """A message in the transcript: from whom, to whom, how long, and a checksum that tells equal from unequal."""
        self.kernel.note(kind, source, target, len(data), zlib.crc32(data))

    def connect(self, processes: tuple[Process, Process], receivers: tuple[Receiver, Receiver]) -> Stream | None:
        """A new stream, or None where the other side cannot be reached."""
        hosts = processes[0].host, processes[1].host
        if not processes[1].alive or self.is_blocked(*hosts) or self.is_blocked(hosts[1], hosts[0]):
            return None
        self.kernel.note("stream", *hosts)
        stream = Stream(self, processes, receivers)
        for process in processes:
            self._streams.setdefault(process, {})[stream] = None
        return stream

    def forget(self, stream: Stream) -> None:
        """Both sides know that it is over."""
        for process in stream.processes:
            self._streams.get(process, {}).pop(stream, None)

    def streams_of(self, process: Process) -> list[Stream]:
        """Streams with that process at one end."""
        return list(self._streams.get(process, {}))

    def lose(self, process: Process, *, silently: bool) -> None:
        """The process died: its peers notice soon (reset) or late (a silent machine)."""
        for stream in self.streams_of(process):
            stream.fail(*((2.0, 6.0) if silently else (0.02, 0.5)))
        self._streams.pop(process, None)

    def break_one(self) -> None:
        """Some stream fails."""
        living = [stream for streams in self._streams.values() for stream in streams if not stream.is_over]
        if living:
            self.rng.choice(living).fail(0.01, 3.0)
