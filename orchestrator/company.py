"""When questions to one worker go to it: at once while machines of their way have nothing of ours to do, else together with those that come meanwhile. Pure.

What was sent together counts as one call under way until all of it has ended. While there are as many calls as the way has machines, a question waits for
others: until a call has ended, until it has company for a whole batch, and at most `SHARE` of what calls take lately, nor longer than questions waited
at their stages anyway. (Nagle 1984, RFC 896, with answers as acknowledgements; ADR 0075.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

SHARE: Final = 0.1
"""Of the time from sending a call to its last answer: so much longer does an answer take at most."""
MOST_S: Final = 0.05
SMOOTHING: Final = 0.2
WAITED_SMOOTHING: Final = 0.05
"""Per question; the other is per call."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fits:
    """How a question can be computed together with others: it brings so many samples of a batch, over a way of so many machines."""

    num_samples: int
    batch_size: int
    num_machines: int


@dataclass(slots=True)
class _Call:
    """What was sent together and has not ended yet."""

    sent_s: float
    num_open: int


class Company(Generic[T]):
    """Over one stream. Each question enters once, and is over once: whoever is told to send does so in the order of the list."""

    def __init__(self) -> None:
        self._held: dict[bytes, tuple[T, int]] = {}
        """What waits, and its samples."""
        self._since_s = 0.0
        self._calls: dict[int, _Call] = {}
        self._call_of: dict[bytes, int] = {}
        self._num_calls = 0
        self._took_s = self._waited_s = 0.0

    @property
    def due_s(self) -> float | None:
        """When `due` is to be called, if anything waits."""
        return self._since_s + min(MOST_S, SHARE * self._took_s, self._waited_s) if self._held else None

    def waited(self, seconds: float) -> None:
        """So long a question has waited at its stages, all together, as they say."""
        self._waited_s += WAITED_SMOOTHING * (seconds - self._waited_s)

    def enters(self, question: bytes, what: T, fits: Fits, now_s: float) -> list[T]:
        """What is to be sent now."""
        samples = fits.num_samples + sum(count for _, count in self._held.values())
        sent: list[T] = []
        if samples > fits.batch_size:
            sent, samples = self._go(now_s), fits.num_samples
        if not self._held:
            self._since_s = now_s
        self._held[question] = (what, fits.num_samples)
        if len(self._calls) < fits.num_machines or samples >= fits.batch_size:
            sent += self._go(now_s)
        return sent

    def over(self, question: bytes, now_s: float) -> list[T]:
        """Nobody waits for its answer any more. What is to be sent now."""
        self._held.pop(question, None)
        number = self._call_of.pop(question, None)
        if number is None:
            return []
        call = self._calls[number]
        call.num_open -= 1
        if call.num_open:
            return []
        del self._calls[number]
        took_s = now_s - call.sent_s
        self._took_s += SMOOTHING * (took_s - self._took_s) if self._took_s else took_s
        return self._go(now_s)

    def due(self, now_s: float) -> list[T]:
        """What is to be sent now, because it has waited long enough."""
        due_s = self.due_s
        return self._go(now_s) if due_s is not None and due_s <= now_s else []

    def holds(self, question: bytes) -> bool:
        """Whether it has not been sent."""
        return question in self._held

    def _go(self, now_s: float) -> list[T]:
        """All that waits, as one call."""
        if not self._held:
            return []
        self._num_calls += 1
        self._calls[self._num_calls] = _Call(now_s, len(self._held))
        self._call_of.update(dict.fromkeys(self._held, self._num_calls))
        sent, self._held = [what for what, _ in self._held.values()], {}
        return sent
