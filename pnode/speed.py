"""How fast a core of this machine is: measured at its start, and again every few minutes while it hosts nothing. The largest of an hour counts.

Whatever else the machine does can only make a measurement smaller. One that was busy at its start, or shared its processor with others that started too,
would be told to be slow for as long as its daemon runs: plans leave it out, so it hosts nothing, and no step of its own ever corrects that. While it hosts
something nothing is measured: steps are, and what its replicas compute would be held against it. The last hour before stands for that time.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from pnode.measured import Largest
from pnode.probe import Machine, measure_gflops

PROBE_S: Final = 180.0


class MeasuredSpeed:
    """One per daemon. ``measure`` takes some milliseconds and runs on a thread of its own, so that nobody waits for it."""

    def __init__(self, measure: Callable[[], float] = measure_gflops) -> None:
        self._measure = measure
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="speed")
        self._largest = Largest()
        self._measured_s = self._begun_s = float("-inf")
        self._probe: Future[float] | None = None

    def of(self, machine: Machine, *, is_idle: bool, now_s: float) -> Machine:
        """``machine``, which was probed before the first call, as fast as it is known to be now. Asked often; what it begins shows in a later answer."""
        if self._measured_s == float("-inf"):
            self._largest.add(machine.gflops_per_core, now_s)
            self._measured_s = self._begun_s = now_s
        if self._probe is not None and self._probe.done():
            if self._probe.exception() is None:
                self._largest.add(self._probe.result(), now_s)
                self._measured_s = now_s
            self._probe = None
        if is_idle and self._probe is None and now_s >= self._begun_s + PROBE_S:
            self._begun_s, self._probe = now_s, self._thread.submit(self._measure)
        return replace(machine, gflops_per_core=self._largest.of(self._measured_s))
