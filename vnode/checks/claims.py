"""What a worker says it did in one interval, decoded and ready to be checked. Torch-free.

Whoever builds a claim has verified signatures and digests against the chain of commits: states, inputs, outputs and losses here are those the
worker is bound to, batches and ``num_learned`` those that the chain assigns. The checks decide only whether the values follow from one another.

What a worker keeps until the verdict: the interval's first state, its intermediate states every ``span`` steps (`vnode.checks.tolerances`), its
inputs (or their senders' spools) and its outputs as encoded. A sketch needs, beyond that, `MapClaim` per step and map: 4·rows·(outputs + inputs)
bytes, and 4·rows·values of what is before a kink; kept while learning, or made on challenge by running the interval again from its first state,
which gives the same bits on the same machine (`vnode.checks.torch_record`). A referee needs the state before every step, made in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from dcnr.errors import Corrupt
from dcnr.intervals import IntervalSet
from dcnr.tensor import Payload
from vnode.state import Array
from vnode.vocabulary import Mode

MAX_STEPS = 4096
"""Entries of one interval: far above the 256 between two snapshots."""


Given = Array | Callable[[], Array]
"""A value, or what reads it from the data set or a bundle: an interval takes no more memory than what is looked at of it."""


@dataclass(frozen=True, slots=True)
class MapClaim:
    """What a linear or convolutional map gave: ``output`` = map(input) + bias before anything after it, float32. Or what a part before a kink gave.

    ``input_gradient``: gradient of the loss for the map's input; None for the first map, whose input carries none, and for what is no map.
    """

    output: Array
    input_gradient: Array | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """An output as one receiver decodes it; None where nobody reads it."""

    values: Given | None
    codec: str
    """``raw`` for a local hand-over."""


@dataclass(frozen=True, slots=True)
class ClaimedStep:
    """One entry of the chain: TRAIN, or FORWARD_ONLY with the weights that ``num_learned`` names (loss and lr are 0 there)."""

    batch: int
    mode: Mode
    inputs: tuple[Given, ...]
    """As everyone decodes them: not blurred."""
    target: Given
    num_learned: int
    """Batches that the state's lineage held before this entry."""
    output: Given | None
    """As the receiver decodes it; None where nobody reads it."""
    codec: str
    """In which the output travelled: ``raw`` for a local hand-over."""
    loss: float
    lr: float
    maps: Mapping[str, MapClaim] = field(default_factory=dict)
    """By name of the sketched map, or of the part before a kink; empty where nothing is sketched or nothing was asked."""
    also_sent: tuple[Sent, ...] = ()
    """The same output in further codecs, for other receivers."""

    def data(self) -> tuple[tuple[Array, ...], Array]:
        """Inputs and target, read now and kept by nobody: all batches of an interval together are many times its evidence. Raises what reading raises."""
        return tuple(read(one) for one in self.inputs), read(self.target)

    @property
    def sent(self) -> tuple[tuple[Array, str], ...]:
        """Every output that anybody received, with its codec, read now. Raises what reading raises."""
        outputs = (Sent(self.output, self.codec), *self.also_sent)
        return tuple((read(one.values), one.codec) for one in outputs if one.values is not None)


@dataclass(frozen=True, slots=True)
class Taken:
    """A delta that a primary took in: what a contributor has signed, one part of ``num_learning`` of it."""

    encoded: Payload
    codec: str
    batches: IntervalSet
    num_learning: int

    @property
    def data(self) -> bytes:
        """Encoded, read now."""
        return bytes(self.encoded)


@dataclass(frozen=True, slots=True)
class Anchored:
    """A state that a statement names between two entries, after what was taken in just before it."""

    taken: tuple[Taken, ...]
    stored: Payload

    @property
    def state(self) -> bytes:
        """Read now."""
        return bytes(self.stored)


@dataclass(frozen=True, slots=True)
class Displacement:
    """How far a contributor says that it is from an anchor, in place of a last state."""

    data: bytes
    codec: str
    measured: Payload | None = None
    """That anchor; None: the first state."""


class States(Mapping[int, bytes]):
    """States by number of entries before them, each read when it is asked for."""

    def __init__(self, entries: Collection[int], read: Callable[[int], bytes]) -> None:
        self._entries, self._read = frozenset(entries), read

    def __getitem__(self, entry: int) -> bytes:
        if entry not in self._entries:
            raise KeyError(entry)
        return self._read(entry)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry: object) -> bool:
        return entry in self._entries


@dataclass(frozen=True, slots=True)
class Claim:
    """One interval. ``states`` by number of entries before them: 0 and ``len(steps)`` at least, others where short replays need them."""

    steps: tuple[ClaimedStep, ...]
    states: Mapping[int, bytes]
    anchored: Mapping[int, tuple[Anchored, ...]] = field(default_factory=dict)
    """By number of entries before them, in order; at the same place, the one in ``states`` comes first. From the last one the next entry goes on."""
    displacement: Displacement | None = None
    may_begin_job: bool = False
    """Whether its first state may be one that an earlier job left: behind any other statement than the first of all this job has learned already."""

    def check(self) -> None:
        """Raises Corrupt (``bad_claim``) where the form does not hold: nothing of the values is looked at."""
        last = len(self.steps)
        if not (1 <= last <= MAX_STEPS or (last == 0 and self.anchored)):
            raise _bad(f"{last} entries")
        is_ended = last in self.states or last in self.anchored or self.displacement is not None
        if 0 not in self.states or not is_ended or not all(0 <= at <= last for at in (*self.states, *self.anchored)):
            raise _bad("it lacks its first or last state, or holds one outside")
        if any(step.mode not in (Mode.TRAIN, Mode.FORWARD_ONLY) for step in self.steps):
            raise _bad("an entry is neither TRAIN nor FORWARD_ONLY")
        for index, (before, after) in enumerate(pairwise(self.steps), start=1):
            grown = sum(len(taken.batches) for one in self.anchored.get(index, ()) for taken in one.taken)
            if after.num_learned != before.num_learned + (before.mode is Mode.TRAIN) + grown:
                raise _bad(f"entry for batch {after.batch} does not follow from the one before it")

    def check_is_alone(self) -> None:
        """Raises Corrupt where deltas are a part of it: only a replay sees what merges do."""
        if self.anchored or self.displacement is not None:
            raise _bad("deltas are a part of it")


def read(given: Given) -> Array:
    """The value. Raises what reading raises."""
    return given() if callable(given) else given


def _bad(message: str) -> Corrupt:
    return Corrupt(f"claim refused: {message}", code="bad_claim")
