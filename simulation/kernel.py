"""Virtual time: actions run in order of time, then of scheduling, so that one seed gives exactly one history."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

Action = Callable[[], None]


class Kernel:
    """The clock, the queue of what happens next, and the sources of randomness, one per purpose."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now_s = 0.0
        self.num_actions = 0
        self._queue: list[tuple[float, int, Action]] = []
        self._count = 0

    def rng(self, purpose: str) -> random.Random:
        """A fresh source for one purpose; the others do not move it."""
        return random.Random(f"{self.seed}/{purpose}")

    def after(self, delay_s: float, action: Action) -> None:
        """Runs ``action`` that much later."""
        self._count += 1
        heapq.heappush(self._queue, (self.now_s + max(0.0, delay_s), self._count, action))

    def run_until(self, end_s: float, is_done: Callable[[], bool], check_every_s: float = 1.0) -> bool:
        """Runs until ``is_done`` or ``end_s``; says whether it was done."""
        next_check_s = self.now_s
        while self._queue and self._queue[0][0] <= end_s:
            self.now_s, _, action = heapq.heappop(self._queue)
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
        self.paused = False
        self._backlog: list[Action] = []

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
        self.kernel.after(delay_s, lambda: self.post(action))

    def pause(self, for_s: float) -> None:
        """Stops it, as SIGSTOP does, and resumes it later."""
        if self.alive and not self.paused:
            self.paused = True
            self.kernel.after(for_s, self._resume)

    def _resume(self) -> None:
        self.paused = False
        backlog, self._backlog = self._backlog, []
        for action in backlog:
            self.post(action)

    def kill(self) -> None:
        """Ends it."""
        self.alive = False
        self._backlog.clear()
