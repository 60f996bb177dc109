"""Cheap maths in place of torch: a state remembers every batch it learned and in which order, and frames say what they are of."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from dcnr.intervals import IntervalSet
from vnode.events import Lane


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
