"""What a worker makes its replicas' parts with. Only code that starts a worker itself can put others in their place: tests, and demonstrations of cheats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pnode.auditing import Auditing
from pnode.chain import CommitChain
from vnode.torch_compute import TorchCompute


@dataclass(frozen=True, slots=True)
class Making:
    """Each is called like the class that it is by default."""

    compute: Callable[..., TorchCompute] = TorchCompute
    chain: Callable[..., CommitChain] = CommitChain
    auditing: Callable[..., Auditing] = Auditing
