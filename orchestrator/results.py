"""What became of work that a PNode was given: one entry after the other. A correction is an entry of its own; none is ever changed. Pure data.

A result is in time or it is not. What is not in time (slow, late, failed, gone) makes a PNode look less reliable and nothing worse: only
evidence that anybody can verify says that somebody is dishonest (`trust.standing`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from dcnr.v1 import membership_pb2

MAX_CLASS: Final = 80
MAX_REASON: Final = 200
MIN_SECONDS: Final = 1e-9
MAX_SECONDS: Final = 1e6
"""What a stranger says of times is bounded on both sides: nothing is divided by nothing."""


class Kind(Enum):
    """What happened."""

    PROVISIONED = "provisioned"
    """A replica came to work; ``seconds`` after it was asked for."""
    STEPS = "steps"
    """It learned; ``seconds`` per batch of ``gflop``."""
    FAILED = "failed"
    """It did not come to work, or stopped, under a living worker."""
    LOST = "lost"
    """Its PNode, or the worker there, was gone without a word."""
    IDLE = "idle"
    """Its PNode beats, but no manifest names anything new of it."""
    UNSHOWN = "unshown"
    """It showed no evidence of what it had learned, though it was there."""
    NAMED = "named"
    """A manifest names what it learned; only written when a lost history is rebuilt."""
    CORRECTED = "corrected"
    """The entry ``corrects`` does not count."""


@dataclass(frozen=True, slots=True)
class Result:
    """One entry. ``number`` grows; ``time_s`` is network time."""

    number: int
    time_s: float
    pnode_id: str
    model: str
    job_id: str
    vnode: str
    replica: str
    component: str
    device_class: str
    kind: Kind
    on_time: bool
    seconds: float = 0.0
    gflop: float = 0.0
    corrects: int = 0
    reason: str = ""


def device_class_of(capability: membership_pb2.Capability) -> str:
    """What kind of machine computes, as the PNode says it: ``cpu/AMD EPYC``, ``cuda/NVIDIA H200``; without a name its architecture."""
    name = capability.device_name or capability.architecture or "unknown"
    text = f"{capability.device or 'cpu'}/{name}"
    return "".join(one if one.isprintable() else " " for one in text)[:MAX_CLASS]
