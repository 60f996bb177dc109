"""Virtual time: actions run in order of time, then of scheduling, so that one seed gives exactly one history."""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from simulation.transcript import Transcript

Action = Callable[[], None]
_Entry = tuple[float, int, Action]
SLICES_PER_S: Final = 100.0


class Kernel:
    """The clock, the queue of what happens next, the sources of randomness (one per purpose), and the transcript of what happened."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now_s = 0.0
        self.num_actions = 0
        self.transcript = Transcript()
        self._near: list[_Entry] = []
        """A heap: what happens in the slice of time that is under way, or happened to be late for an earlier one."""
        self._later: dict[int, list[_Entry]] = {}
        """What happens in later slices, in no order yet: the queue of thousands of machines is long, and what lies in a heap is compared over and over."""
        self._slices: list[int] = []
        """A heap of the keys of `_later`."""
        self._slice = 0
        self._soon: deque[Action] = deque()
        self._count = 0

    def rng(self, purpose: str) -> random.Random:
        """A fresh source for one purpose; the others do not move it."""
        return random.Random(f"{self.seed}/{purpose}")

    def note(self, kind: str, *facts: object) -> None:
        """A line of the transcript. Facts are kept as they are: only what never changes may be handed in."""
        self.transcript.note(self.now_s, kind, facts)

    def after(self, delay_s: float, action: Action) -> None:
        """Runs ``action`` that much later."""
        self._count += 1
        at_s = self.now_s + delay_s if delay_s > 0.0 else self.now_s
        number = int(at_s * SLICES_PER_S)
        if number <= self._slice:
            heapq.heappush(self._near, (at_s, self._count, action))
        elif (known := self._later.get(number)) is not None:
            known.append((at_s, self._count, action))
        else:
            self._later[number] = [(at_s, self._count, action)]
            heapq.heappush(self._slices, number)

    def _next_s(self) -> float:
        """When the next action of the queue is due; infinity where there is none."""
        if not self._near and self._slices:
            self._slice = heapq.heappop(self._slices)
            self._near = self._later.pop(self._slice)
            heapq.heapify(self._near)
        return self._near[0][0] if self._near else math.inf

    def soon(self, action: Action) -> None:
        """Runs ``action`` at this very time, before anything that is still in the queue."""
        self._soon.append(action)

    def run_until(self, end_s: float, is_done: Callable[[], bool], check_every_s: float = 1.0) -> bool:
        """Runs until ``is_done`` or ``end_s``; says whether it was done."""
        next_check_s = self.now_s
        soon, heappop = self._soon, heapq.heappop
        while soon or (self._near[0][0] if self._near else self._next_s()) <= end_s:
            if soon:
                action = soon.popleft()
            else:
                self.now_s, _, action = heappop(self._near)
            self.num_actions += 1
            action()
            if self.now_s >= next_check_s:
                next_check_s = self.now_s + check_every_s
                if is_done():
                    return True
        self.now_s = end_s
        return is_done()


class Process:
    """A process that can be paused (everything waits, in order) and killed (everything for it is lost)."""

    def __init__(self, kernel: Kernel, host: str) -> None:
        self.kernel, self.host = kernel, host
        self.alive = True
        self._paused_until_s = 0.0
        self.resumed_s = -1.0
        """When it last went on after a pause."""
        self.paused = False
        self._backlog: list[Action] = []
        kernel.note("starts", host)

    def post(self, action: Action) -> None:
        """Runs ``action`` now, when it is resumed, or never."""
        if not self.alive:
            return
        if self.paused:
            self._backlog.append(action)
        else:
            action()

    def after(self, delay_s: float, action: Action) -> None:
        """Posts ``action`` that much later."""
        self.kernel.after(delay_s, partial(self.post, action))

    def soon(self, action: Action) -> None:
        """Posts ``action`` at this very time, after what is running now."""
        self.kernel.soon(partial(self.post, action))

    def pause(self, for_s: float) -> None:
        """Stops it, as SIGSTOP or a disk that hangs does, and resumes it later; of two pauses the one that ends later counts."""
        if not self.alive:
            return
        self.kernel.note("stands still", self.host, round(for_s, 3))
        self.paused = True
        self._paused_until_s = max(self._paused_until_s, self.kernel.now_s + for_s)
        self.kernel.after(for_s, self._resume)

    def _resume(self) -> None:
        if not self.paused or self.kernel.now_s < self._paused_until_s:
            return
        self.paused, self.resumed_s = False, self.kernel.now_s
        backlog, self._backlog = self._backlog, []
        for action in backlog:
            self.post(action)

    def kill(self) -> None:
        """Ends it."""
        if self.alive:
            self.kernel.note("dies", self.host)
        self.alive = False
        self._backlog.clear()
