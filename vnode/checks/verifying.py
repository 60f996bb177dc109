"""The port through which an orchestrator has evidence checked without knowing torch: its own verifier, where no independent PNode can audit.

An orchestrator never decides on somebody else's word: a fault that an auditor tells of is measured again through `Verifier.measure`, and only what
`trust.evidence.verify` then proves counts. Torch-free.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dcnr.v1 import local_pb2, model_pb2


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a check reads besides the task or record. Everything is on this machine, and verified by digest, before the check begins."""

    bundle: Path
    """The bundle that the accused handed over."""
    graph: bytes
    """Serialised ModelGraph that the job's signed request names."""
    num_batches: int
    """N of the job, as its signed request says."""
    dataset_manifest: Path
    """Of the data set that the request names."""
    shard_dir: Path
    """Shards that are here, each in a file named by its digest."""
    bring: Callable[[str, str], Awaitable[None]]
    """Lays the shard (data set, digest) into ``shard_dir``. Raises DcnrError where it cannot be had."""


class Verifier(Protocol):
    """One check at a time; others wait. Nothing runs between checks for longer than a few minutes."""

    async def audit(self, task: model_pb2.AuditTask, evidence: Evidence) -> local_pb2.WorkerAudited:
        """The signed report on a task, with the FaultRecord of a fault. The report's ``pnode_id`` is this orchestrator's id.

        What goes wrong with the check itself is a finding (``REFUSED``, ``UNVERIFIABLE``). Raises Unavailable, TimedOut where no process can do it.
        """
        ...

    async def measure(self, record: bytes, evidence: Evidence) -> float:
        """The residual of a FaultRecord of a computation, measured here, in units of its tolerance: hold it against 1 (`trust.evidence.verify`).

        Raises Refused (``unproven``) where nothing can be measured, Unavailable, TimedOut where no process can do it.
        """
        ...

    async def close(self) -> None:
        """Ends the process, if there is one."""
        ...
