"""The worker process of a PNode that misbehaves: the real worker, with other maths, another chain of commits, or another auditor inside.

``python -m examples.byzantine --behaviour NAME --fd N …``: started by the daemon that `examples.byzantine.__main__` runs. NAME@FILE: honest until that file
is there.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from dcnr.v1 import local_pb2, model_pb2
from examples.byzantine.behaviours import BEHAVIOURS, Behaviour
from examples.byzantine.worker import CheatingCompute
from pnode import worker
from pnode.auditing import Auditing, record_of
from pnode.chain import CommitChain, Link
from pnode.making import Making
from trust.overturned import Finding
from vnode.torch_compute import TorchCompute
from vnode.torch_merging import DeltaValues, encode

EQUIVOCATING: Final = "equivocating"
COLLUDING: Final = "colluding"
SLANDERING: Final = "slandering"
TURNED_DELTAS: Final = "turned_deltas"
NAMES: Final = (*(behaviour.name for behaviour in BEHAVIOURS), EQUIVOCATING, COLLUDING, SLANDERING, TURNED_DELTAS)
STEPS_OF_A_LIFE: Final = 64
"""For behaviours that depend on how far an interval is: counted from the start of a replica."""


class EquivocatingChain(CommitChain):
    """Gives its commits one number: other stories about one place."""

    def close(self, **stated: str) -> Link:
        """As `CommitChain.close`, but the number was given before."""
        self.sequence = 0
        return super().close(**stated)


class WavingAuditor(Auditing):
    """Passes everything that it is asked to audit, after a look at whose it is."""

    def _tell(self, order: local_pb2.WorkerAudit, finding: model_pb2.AuditFinding.ValueType, **found: Any) -> None:
        if not order.record and finding in (model_pb2.AUDIT_FINDING_FAULT, model_pb2.AUDIT_FINDING_DOUBT):
            finding, found = model_pb2.AUDIT_FINDING_PASS, {"check": found.get("check"), "compute_s": found.get("compute_s", 0.0)}
        super()._tell(order, finding, **found)


class SlanderingAuditor(Auditing):
    """Faults everything that it is asked to audit, with a record of the form that real ones have."""

    def _tell_found(self, order: local_pb2.WorkerAudit, check: Any, seconds: float) -> None:
        found = replace(check.found(), finding=Finding.FAULT, ratio=9.0)
        record = record_of(order.task, found).SerializeToString(deterministic=True)
        self._tell(order, model_pb2.AUDIT_FINDING_FAULT, check=check, found=found, record=record, compute_s=seconds)


class TurnedDeltas(TorchCompute):
    """Learns honestly, and brings a primary three times the opposite of what it learned."""

    def delta(self, codec: str, anchor: bytes, *, is_late: bool = False) -> bytes:
        """As `TorchCompute.delta`, turned."""
        found = self.check_delta(super().delta(codec, anchor, is_late=is_late), codec)
        return encode(DeltaValues({name: -3 * value for name, value in found.weights.items()}, found.buffers), codec)


def making_of(name: str) -> Making:
    """What a worker of that behaviour is made with; ``NAME@FILE``: cheats once that file is there. Raises ValueError for a name that is none."""
    name, _, file = name.partition("@")
    if name not in NAMES:
        raise ValueError(f"no behaviour {name!r}: {', '.join(NAMES)}")
    if name == EQUIVOCATING:
        return Making(chain=EquivocatingChain)
    if name == COLLUDING:
        return Making(auditing=WavingAuditor)
    if name == SLANDERING:
        return Making(auditing=SlanderingAuditor)
    if name == TURNED_DELTAS:
        return Making(compute=TurnedDeltas)
    behaviour = next(behaviour for behaviour in BEHAVIOURS if behaviour.name == name)
    return Making(compute=_cheating(replace(behaviour, when=lambda index, num_steps: Path(file).exists()) if file else behaviour))


def _cheating(behaviour: Behaviour) -> Callable[..., CheatingCompute]:
    def made(stage: Any, registry: Any, **given: Any) -> CheatingCompute:
        return CheatingCompute(stage, registry, behaviour, num_steps=STEPS_OF_A_LIFE, **given)

    return made


def main(arguments: list[str]) -> int:
    """What the worker's process does, with the behaviour among its arguments."""
    parser = argparse.ArgumentParser(prog="examples.byzantine")
    parser.add_argument("--behaviour", dest="making", type=making_of, required=True)
    options, rest = parser.parse_known_args(arguments)
    return worker.main(rest, options.making)
