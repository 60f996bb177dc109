"""What a replica host is given and keeps: its fixed facts, the plan around it, its averages, and the work that leaves the event loop."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dcnr.crashpoints import reached
from dcnr.errors import Corrupt, InvariantBroken
from dcnr.ids import Digest, ReplicaId, VNodeId, digest_of
from dcnr.stages import Stage
from dcnr.tempo import Tempo
from dcnr.units import Share
from pnode.chain import Standing
from trust.late_draw import BURST_LOSS, UNLEARNED
from vnode.compute import Compute
from vnode.state import NO_VALUES, StateInfo
from vnode.vocabulary import Lane, Role

SLOW_LINK_BYTES_S: Final = 60e6
"""Only links below this rate are worth the work of a lossy codec."""
MAX_UNLEARNED: Final = 64
"""So many are counted: nobody asks for more."""


@dataclass(frozen=True, slots=True)
class Planned:
    """Where the plan puts a replica, and its share of its VNode's batches."""

    replica: ReplicaId
    pnode_id: str
    role: Role
    weight: float

    @property
    def share(self) -> Share:
        """For the core."""
        return Share(self.replica, self.weight)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The plan around a replica. ``predecessors``: by edge, all replicas that feed it, the primary first."""

    predecessors: dict[int, tuple[Planned, ...]]
    successors: dict[ReplicaId, str]
    lead_batches: int
    role: Role = Role.PRIMARY
    siblings: tuple[Planned, ...] = ()
    """All replicas of its VNode, itself included; none where it is alone."""
    halted: bool = False
    """Whether the job is paused."""
    widest_lead_batches: int = 0
    """How far sources may be ahead where one hole holds the floor; 0: no further than the lead."""
    tempo: Tempo | None = None
    """When batches are due; None: at once."""

    @property
    def primary(self) -> Planned | None:
        """Whose checkpoints enter manifests."""
        return next((one for one in self.siblings if one.role is Role.PRIMARY), None)


@dataclass(frozen=True, slots=True)
class Fixed:
    """What a hosted replica is from its first to its last moment."""

    standing: Standing
    stage: Stage
    batch_size: int
    successors: frozenset[VNodeId]
    """VNodes that read from this one in the graph."""
    work_dir: Path
    num_batches: int = 0
    state_path: Path = Path()
    """What it was restored from; its digest and size."""
    state_digest: str = ""
    state_bytes: int = 0
    wanted_codec: str = "raw"
    """Of frames of training, and of deltas, as the graph says."""
    audited: bool = False
    """Whether audits are in force."""

    def state_file(self, digest: Digest) -> Path:
        """Where a state of this replica lies, if it is on this disk at all."""
        return self.state_path if digest == self.state_digest else self.work_dir / "snapshots" / f"{digest}.safetensors"


@dataclass(slots=True)
class Averages:
    """Moving averages for reports."""

    step_s: float = 0.0
    loss: float = 0.0
    num_steps: int = 0
    unlearned: set[int] = field(default_factory=set)
    """Batches that gave nothing finite, or a loss beyond all measure, since one gave better (`trust.late_draw.UNLEARNED`)."""
    is_stuck: bool = False
    """Whether the state has come to values that none may hold: running statistics, or a count, beyond all numbers. Losses need not show it, and nothing that is
    learned from there can ever be written down."""

    @property
    def num_unlearned(self) -> int:
        """As many as a report tells."""
        return max(len(self.unlearned), UNLEARNED) if self.is_stuck else len(self.unlearned)

    def add(self, batch: int, seconds: float, loss: float) -> None:
        """One more step."""
        if loss > BURST_LOSS and len(self.unlearned) < MAX_UNLEARNED:
            self.unlearned.add(batch)
        elif loss <= BURST_LOSS:
            self.unlearned.clear()
        self.num_steps += 1
        weight = max(0.02, 1 / self.num_steps)
        self.step_s += weight * (seconds - self.step_s)
        self.loss += weight * (loss - self.loss)

    def failed(self, lane: Lane, batch: int, error: Exception) -> None:
        """A computation failed."""
        is_broken = lane.is_train and isinstance(error, InvariantBroken) and error.code == "not_finite"
        if is_broken and len(self.unlearned) < MAX_UNLEARNED:
            self.unlearned.add(batch)
        self.is_stuck |= isinstance(error, Corrupt) and error.code == NO_VALUES


def captured(compute: Compute, info: StateInfo) -> tuple[bytes, str]:
    """A whole state and its digest."""
    data = compute.snapshot(info)
    reached("snapshot.captured")
    return data, digest_of(data)


def write_whole(path: Path, data: bytes) -> None:
    """The file whole or not at all, also after a crash. Raises OSError; no half of it keeps a full disk full then."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_suffix(".draft")
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    reached("snapshot.drafted")
    draft.replace(path)
    reached("snapshot.renamed")


def codec_in_force(wanted: str, *, link_bytes_s: float, frame_bytes: int, step_s: float) -> str:
    """The codec for the next frame. ``auto``: raw, unless the link is slow and raw frames come faster than it carries them."""
    if wanted not in ("", "auto"):
        return wanted
    needed_bytes_s = frame_bytes / step_s if step_s > 0 else 0.0
    return "int8" if 0 < link_bytes_s < min(SLOW_LINK_BYTES_S, 1.2 * needed_bytes_s) else "raw"
