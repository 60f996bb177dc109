"""What the hops of a question read, and what is checked of it before memory is taken. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dcnr.errors import RemoteFault
from dcnr.stages import INPUT, Stage
from dcnr.tensor import TensorHeader


@dataclass(frozen=True, slots=True)
class Reads:
    """What the stages of one graph read: a source what was asked, under its own name, all others the outputs of VNodes."""

    names: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, stages: Sequence[Stage]) -> Reads:
        """Of these stages."""
        return cls({stage.id: tuple(stage.id if item.id == INPUT else item.id for item in stage.inputs) for stage in stages})

    def needed(self, vnodes: Sequence[str]) -> frozenset[str]:
        """Tensors that these VNodes read. Raises RemoteFault (``bad_question``) for one that the graph does not have."""
        missing = [vnode for vnode in vnodes if vnode not in self.names]
        if missing:
            raise RemoteFault(f"the graph has no VNode {missing[0]!r:.80} with weights", code="bad_question")
        return frozenset(name for vnode in vnodes for name in self.names[vnode])


@dataclass(frozen=True, slots=True)
class Asking:
    """What a hop takes: exactly these tensors, each with 1 to ``batch_size`` samples."""

    vnode: str
    reads: Reads
    batch_size: int

    def check(self, headers: Mapping[str, TensorHeader]) -> None:
        """Raises RemoteFault before memory is taken for what could not be computed. The compute port checks the rest."""
        for name in self.reads.names[self.vnode]:
            header = headers.get(name)
            if header is None:
                raise RemoteFault(f"{self.vnode} reads {name!r:.80}, which did not come", code="bad_question")
            if not header.shape or not 0 < header.shape[0] <= self.batch_size:
                raise RemoteFault(f"{list(header.shape)}: not 1 to {self.batch_size} samples", code="bad_shape")
