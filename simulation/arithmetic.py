"""Cheap maths in place of torch: a state remembers every batch in it and in which order, and frames say what they are of.

What a state holds follows from what was done to it alone, never from what a core believes: a batch that is taken in twice is in it twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from dcnr.intervals import IntervalSet
from vnode.vocabulary import Lane


@dataclass(frozen=True, slots=True)
class State:
    """``checksum`` does not depend on the order of learning, ``digest`` does."""

    vnode: str
    lineage: IntervalSet
    learned: tuple[int, ...]
    checksum: int
    digest: str

    def learn(self, batch: int) -> State:
        """The state after one step."""
        return replace(
            self,
            lineage=self.lineage.add(batch),
            learned=(*self.learned, batch),
            checksum=(self.checksum + _number(self.vnode, batch)) % 2**64,
            digest=_digest(self.digest, batch),
        )

    def expected_checksum(self) -> int:
        """What the checksum must be if every batch of the lineage was learned exactly once."""
        return sum(_number(self.vnode, batch) for batch in self.lineage) % 2**64

    def take_in(self, batches: Iterable[int]) -> State:
        """The state after those batches, however they come into it."""
        state = self
        for batch in batches:
            state = state.learn(batch)
        return state

    @property
    def is_sum(self) -> bool:
        """Whether every batch of the lineage is in it exactly once."""
        return len(self.learned) == len(self.lineage) and self.checksum == self.expected_checksum()


def lineage_of(anchor: bytes) -> IntervalSet:
    """The lineage that an anchor is said to have."""
    return IntervalSet.from_pairs((first, end) for first, end in json.loads(anchor)[1])


class Maths:
    """The compute port of one simulated replica: an anchor with what was learned on it, and the open delta beside it. All three are in ``state``: a replica
    that leads takes in what is open first.
    """

    def __init__(self, state: State) -> None:
        self.state = self._anchor = state
        self.open: tuple[int, ...] = ()
        self.after: tuple[int, ...] = ()

    def learn(self, batch: int) -> None:
        """One step."""
        self.after = (*self.after, batch)
        self.state = self.state.learn(batch)

    def anchor(self, lineage: IntervalSet) -> bytes:
        """Everything in the state, and the lineage that it is said to have."""
        return json.dumps([self.state.vnode, lineage.pairs(), self.state.learned]).encode()

    def delta(self, anchor: bytes) -> bytes:
        """Hands in what was learned since the last one, and goes on from the anchor."""
        self._stand(anchor, self.after, ())
        return json.dumps(self.open).encode()

    def merge_own(self) -> None:
        """Takes in what is open: it is in the weights from here on, above an anchor that lacks it."""
        self.open, self.after = (), (*self.open, *self.after)
        self.state = self._anchor.take_in(self.after)

    def lead(self) -> None:
        """Everything in the weights is the anchor from here on, and what is open is gone."""
        self._anchor, self.open, self.after = self._anchor.take_in(self.after), (), ()
        self.state = self._anchor

    def rebase(self, anchor: bytes, *, keep_open: bool, keep_after: bool) -> None:
        """The anchor and what is kept; nothing is open."""
        self._stand(anchor, (), (*(self.open if keep_open else ()), *(self.after if keep_after else ())))

    def _stand(self, anchor: bytes, open_: tuple[int, ...], after: tuple[int, ...]) -> None:
        vnode, _, batches = json.loads(anchor)
        self.open, self.after = open_, after
        self._anchor = initial_state(vnode).take_in(batches)
        self.state = self._anchor.take_in((*open_, *after))

    def merge(self, deltas: Iterable[bytes]) -> None:
        """Takes in what others learned."""
        for delta in deltas:
            self.state = self.state.take_in(json.loads(delta))


def initial_state(vnode: str) -> State:
    """Checkpoint 0."""
    return State(vnode, IntervalSet.empty(), (), 0, _digest(vnode))


def frame(lane: Lane, batch: int, value: str) -> bytes:
    """A tensor that says which batch it is of."""
    return f"{lane.split}/{lane.round}/{batch}/{value}".encode()


def is_of(tensor: bytes, lane: Lane, batch: int) -> bool:
    """Whether a tensor is of that batch."""
    return tensor.startswith(f"{lane.split}/{lane.round}/{batch}/".encode())


def data(lane: Lane, batch: int) -> bytes:
    """A batch of the data set."""
    return frame(lane, batch, "data" if lane.is_train else _digest("data", lane.split, batch))


def evaluate(state: State, lane: Lane, batch: int, inputs: tuple[bytes, ...]) -> tuple[bytes, float]:
    """(output, loss): both depend on the whole history of the state and of those before it."""
    value = _digest(state.digest, *(tensor.rsplit(b"/", 1)[1].decode() for tensor in inputs))
    return frame(lane, batch, value), int(value[:6], 16) / 1000.0


def _number(*parts: object) -> int:
    return int(_digest(*parts), 16)


def _digest(*parts: object) -> str:
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()[:16]
