"""The port through which the replica core reaches its maths: torch in a worker, cheap arithmetic in a simulation. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from vnode.state import StateInfo
from vnode.vocabulary import Mode

Delta = Any
"""A checked delta, decoded: a handle of the adapter's own kind."""
Tensor = Any
"""A handle of the adapter's own kind; inputs may also be numpy arrays as they came from the wire."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """One learned batch. ``loss`` is the mean local loss before the update; ``correct`` of ``count`` predictions were right."""

    output: Tensor
    loss: float
    samples: int
    correct: int
    count: int
    lr: float


@dataclass(frozen=True, slots=True)
class EvalResult:
    """One evaluated batch. ``count``: samples (images) or tokens (text), 0 without a target; ``sum_loss`` is summed over them.

    The loss is the cross-entropy of the readout, so that exits with different local losses compare. ``sinks`` are the outputs
    of stateless sinks.
    """

    output: Tensor
    sum_loss: float
    correct: int
    count: int
    sinks: Mapping[str, Tensor] = field(default_factory=dict)


class Compute(Protocol):
    """The maths of one VNode. Not thread-safe: one caller at a time.

    Raises RemoteFault (an input of wrong shape, dtype or not finite), Corrupt (a target or state that does not fit) and
    InvariantBroken (loss or
    gradient not finite with good inputs; used before `restore`). After any error the state is what it was before the call.
    """

    def restore(self, state: bytes | memoryview | Path) -> StateInfo:
        """Takes over a whole state after strict checks."""
        ...

    def learn(self, batch: int, inputs: Sequence[Tensor], target: Tensor, num_learned: int) -> StepResult:
        """One step on one batch (mode TRAIN). ``num_learned``: size of the lineage before it."""
        ...

    def forward(self, batch: int, inputs: Sequence[Tensor], mode: Mode, target: Tensor | None = None) -> EvalResult:
        """FORWARD_ONLY, EVAL or INFER: changes nothing."""
        ...

    def readout(self, output: Tensor) -> Tensor:
        """Logits of this VNode's own head for an output of `forward`."""
        ...

    def snapshot(self, info: StateInfo) -> bytes:
        """The whole state as safetensors bytes; equal states give equal bytes."""
        ...

    # ---- several replicas of one VNode ------------------------------------------------------------------------------------------

    def anchor(self, info: StateInfo) -> bytes:
        """What contributors take over, always the same bytes: weights and running statistics with their lineage, no optimiser slots; a whole state if the
        adapter was made so.
        """
        ...

    def check_anchor(self, anchor: bytes) -> StateInfo:
        """What an anchor says about itself, after strict checks of all of it. Touches no state: may run on any thread."""
        ...

    def delta(self, codec: str, anchor: bytes, *, is_late: bool = False) -> bytes:
        """How far the weights are from ``anchor``, or (``is_late``) from what they stood on, encoded (``raw`` or ``int8``): what the primary merges. The state
        becomes that anchor.

        Optimiser slots stay as they are, or are those of an anchor that is a whole state. What the codec lost stays with what is learned next, except on such
        an anchor. Raises Corrupt for an anchor that is none of this stage and job.
        """
        ...

    def check_delta(self, data: bytes, codec: str) -> Delta:
        """A delta of this stage, decoded. Raises Corrupt. Touches no state: may run on any thread."""
        ...

    def rebase(self, anchor: bytes, *, keep_after: bool, taken_back: Delta | None = None, share: float = 0.0) -> StateInfo:
        """The state becomes ``anchor`` + what was learned since it was last an anchor if that is to be kept + ``share`` of the delta ``taken_back``.

        What is not kept is gone. Optimiser slots stay as they are, or are those of an anchor that is a whole state.
        Raises Corrupt for an anchor that is none of this stage and job.
        """
        ...

    def merge(
        self, deltas: Sequence[Delta], num_batches: Sequence[int], shares: Sequence[float], *, centred: bool = False,
        bears: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        """Takes deltas into the state, in this order, each with its share (the outer step of ALGORITHMS.md): all of them or none.

        ``num_batches``: how many batches each was learned from. ``shares`` and ``centred``: those of `vnode.merging.counts_of`. A merge that is not
        centred forgets the centre. ``bears`` is asked with them in the state: raises Refused (``worsens``) where it does not.
        """
        ...

    def follow(self) -> None:
        """What is learned from here on lies above the state as it is now: after `restore`, at a contributor or standby."""
        ...

    def lead(self) -> None:
        """The state stays as it is; what `rebase` would need is let go."""
        ...
