"""The words that all parts of a replica share: lanes, modes, roles, peers. Pure, torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple

from dcnr.ids import ReplicaId

TensorHandle = Any
"""A tensor of the compute port: never looked into by the core."""


class Lane(NamedTuple):
    """Numbers that belong together: a split of the data and, for evaluations, the round (test: round 0). Looked up by with every message."""

    split: str
    round: int = 0

    @property
    def is_train(self) -> bool:
        """Whether batches of this lane are learned from."""
        return self.split == "train"


TRAIN_LANE = Lane("train")


class Mode(Enum):
    """How a batch goes through a stage.

    TRAIN: batch statistics, keyed dropout and shifts, weights learn. FORWARD_ONLY: the values TRAIN would give with the
    current weights, and nothing changes. EVAL and INFER: running statistics, no randomness.
    """

    TRAIN = auto()
    FORWARD_ONLY = auto()
    EVAL = auto()
    INFER = auto()


class Role(Enum):
    """What a replica is to its VNode."""

    PRIMARY = "primary"
    """Its state is the VNode's: it learns, takes in deltas, and its checkpoints enter manifests."""
    CONTRIBUTOR = "contributor"
    """Learns its own units on top of the primary's anchor and brings what it learned as deltas."""
    STANDBY = "standby"
    """Keeps the newest anchor and learns nothing."""


class Verdict(Enum):
    """What the primary says to a contributor that asked."""

    MERGED = "merged"
    """The delta is in the primary's lineage."""
    REFUSED = "refused"
    """It never will be: it overlaps the lineage or cannot be used."""
    ANCHOR = "anchor"
    """No delta was brought; here is the anchor."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A replica with the incarnation that a link was opened with."""

    replica: ReplicaId
    incarnation: int
