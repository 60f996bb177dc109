"""Runs the check that a task names over a claim, with torch, and finds again what a fault record says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dcnr.errors import Corrupt, Refused, RemoteFault
from dcnr.specs import Registry
from dcnr.v1 import model_pb2
from trust.comparison import Comparison
from vnode.checks.claims import Claim, States
from vnode.checks.opening import UNVERIFIABLE, Assigned
from vnode.checks.plan import StageChecks, checks_of_stage
from vnode.checks.replay import replay_in_pieces
from vnode.checks.torch_record import as_array
from vnode.checks.torch_referee import Referee
from vnode.checks.torch_sides import TwoSidedCompute
from vnode.checks.torch_sketch import Sketch
from vnode.state import for_new_job, parse
from vnode.torch_stage import schema_of


@dataclass(frozen=True, slots=True)
class Checker:
    """Checks claims about one stage of one job. ``seed``: of the job's graph; ``graph``: its digest."""

    assigned: Assigned
    registry: Registry
    seed: int
    graph: str

    @property
    def checks(self) -> StageChecks:
        """What applies to this stage."""
        return checks_of_stage(self.assigned.stage, self.registry)

    def maps(self, kind: model_pb2.CheckKind.ValueType) -> tuple[str, ...]:
        """Whose products the check reads. Raises Refused (``not_sketchable``)."""
        if kind != model_pb2.CHECK_KIND_SKETCH:
            return ()
        if not self.checks.maps:
            raise Refused("nothing in this stage may be sketched", code="not_sketchable")
        return self.checks.maps

    def comparisons(self, claim: Claim, kind: model_pb2.CheckKind.ValueType, secret: bytes) -> Iterator[Comparison]:
        """In the order of the entries. Raises as `pieces`."""
        return (comparison for comparison in self.pieces(claim, kind, secret) if comparison is not None)

    def pieces(self, claim: Claim, kind: model_pb2.CheckKind.ValueType, secret: bytes) -> Iterator[Comparison | None]:
        """Comparisons in the order of the entries; None where nothing is known yet: no item takes much longer than a step.

        Raises Refused (``unverifiable``: the claim is none that can be checked so; ``no_such_check``).
        """
        stage, registry, num_batches = self.assigned.stage, self.registry, self.assigned.num_batches
        checks = self.checks
        try:
            claim = self._of_this_job(claim)
            match kind:
                case model_pb2.CHECK_KIND_REPLAY:
                    compute = TwoSidedCompute(stage, registry, num_batches=num_batches, seed=self.seed)
                    yield from replay_in_pieces(compute, schema_of(stage, registry), claim, checks.replay(), as_array=as_array)
                case model_pb2.CHECK_KIND_SKETCH:
                    sketch = Sketch(stage, registry, checks, secret=secret, num_batches=num_batches, seed=self.seed)
                    yield from sketch.check(claim, checks.sketch())
                case model_pb2.CHECK_KIND_REFEREE:
                    referee = Referee(stage, registry, num_batches=num_batches, seed=self.seed)
                    yield from referee.check(claim, checks.referee())
                case _:
                    raise Refused(f"no check of kind {kind} is known here", code="no_such_check")
        except (Corrupt, RemoteFault) as error:
            raise Refused(error.message, code=UNVERIFIABLE, cause=error.code) from error

    def _of_this_job(self, claim: Claim) -> Claim:
        """With the first state as this job began with it, where an earlier job left it. Elsewhere none is made anew: else whoever says that its state holds
        nothing yet would learn at the rates of the beginning, with slots of zero.
        """
        if not claim.may_begin_job:
            return claim
        schema = schema_of(self.assigned.stage, self.registry)
        info, _ = parse(claim.states[0], schema)
        is_of_this_job = (info.num_batches, info.seed, info.graph) == (self.assigned.num_batches, self.seed, self.graph)
        begins_the_job = not claim.steps[0].num_learned if claim.steps else not is_of_this_job
        if not begins_the_job or (is_of_this_job and not info.lineage):
            return claim
        begun = for_new_job(
            claim.states[0], schema, num_batches=self.assigned.num_batches, seed=self.seed, graph=self.graph, parent=info.parent
        )
        return replace(claim, states=States(claim.states, lambda entry: claim.states[entry] if entry else begun))
