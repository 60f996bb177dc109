"""Goal: while another version is being loaded, what answers goes on answering, whichever has the higher number."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from stages_rig import LINE

from dcnr import limits
from dcnr.v1 import identity_pb2, membership_pb2, model_pb2, orchestrator_pb2
from orchestrator.candidates import served_tables
from orchestrator.inventory import Inventory
from orchestrator.versions import Version
from orchestrator.view import JobFacts

MODEL, NODE = "toy", "a" * 40
VNODES = [stage.id for stage in LINE]


def version(number: int, graph: str) -> Version:
    request = model_pb2.JobRequest(graph_digest=graph)
    facts = JobFacts(request, "r", model_pb2.ModelGraph(), b"", LINE, ())
    states = {name: model_pb2.Checkpoint(vnode=name, digest=f"{number}-{name}") for name in VNODES}
    return Version(f"m{number}", number, False, facts, states)


def test_a_released_version_of_another_graph_takes_no_questions_before_it_is_whole() -> None:
    """A job that begins anew counts its manifests from 0: the version to go back to may have the higher number."""
    old, new = version(9, "old graph"), version(1, "new graph")
    versions = {one.manifest_digest: one for one in (old, new)}
    inventory = Inventory()
    inventory.attached(NODE, 0.0)
    runtime: Any = SimpleNamespace(
        model=MODEL, shared=SimpleNamespace(inventory=inventory), serving=SimpleNamespace(versions=versions)
    )
    workers: Any = SimpleNamespace(of=lambda record: SimpleNamespace(envelope=identity_pb2.Envelope()))

    def tables(*ready: tuple[Version, list[str]]) -> list[str]:
        seats = [
            orchestrator_pb2.SeatReport(
                model=MODEL, vnode=name, state_digest=one.states[name].digest, ready=True, manifest_digest=one.manifest_digest
            )
            for one, names in ready
            for name in names
        ]
        beat = orchestrator_pb2.Beat(worker_alive=True, capability=membership_pb2.Capability(accepts_work=True), seats=seats)
        inventory.beat(NODE, 0.0, beat, limits.HEARTBEAT_S)
        inventory.tick(0.0)
        return [table.manifest_digest for table in served_tables(runtime, workers)]

    assert tables((new, VNODES), (old, VNODES[:1])) == ["m1"]
    assert tables((new, VNODES), (old, VNODES)) == ["m9"]
    assert tables((old, VNODES[:1])) == ["m9"], "of nothing that is whole, the newest"
