"""Goal: a component and an objective that live in a file outside the tree are trained by a network of real processes, because those who run these name
the file; a client that does not name it refuses the graph, a PNode that does not gets no part of it, and without an orchestrator that does the job waits and
says so.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from pathlib import Path

import network_rig
import numpy as np
import pytest
from network_rig import MODEL, running_network

import dcnr.sdk
from dcnr.cli import dcnr as maintainer
from dcnr.cli import errors
from dcnr.errors import InvalidInput
from dcnr.graph import Graph
from dcnr.sdk.staging import Source
from dcnr.sdk.submission import JobOptions
from dcnr.specs import TensorSpec
from dcnr.testing import LocalNetwork, LocalPNode
from dcnr.v1 import model_pb2, orchestrator_pb2

WIDTH = 32
PASSES = 2
NUM_BATCHES = PASSES * network_rig.SAMPLES // network_rig.BATCH_SIZE
OUTSIDE = '''
from __future__ import annotations

from dataclasses import dataclass

from dcnr.specs import ComponentPlan, Fields, ObjectivePlan


@dataclass(frozen=True, slots=True)
class Mix:
    """No configuration. Input and output [d]."""

    name: str = "mix"
    stateful: bool = True

    def check(self, config, inputs):
        with Fields(config, self.name):
            pass
        (spec,) = inputs
        (width,) = spec.shape
        return ComponentPlan(spec, num_parameters=width * width + width, forward_flops=2 * width * width, activation_bytes=8 * width)

    def build(self, config, inputs):
        from torch import nn

        (width,) = inputs[0].shape
        return nn.Sequential(nn.Linear(width, width), nn.Tanh())


@dataclass(frozen=True, slots=True)
class Distance:
    """No configuration. Squared distance of a linear map of the output to the class."""

    name: str = "distance"

    def check(self, config, output, target, num_classes):
        with Fields(config, self.name):
            pass
        (width,) = output.shape
        return ObjectivePlan(num_parameters=width * num_classes, forward_flops=2 * width * num_classes, activation_bytes=8 * num_classes)

    def build(self, config, output, target, num_classes):
        from torch import nn
        from torch.nn import functional

        from vnode.torch_objective import LocalObjective

        class Objective(LocalObjective):
            def __init__(self):
                super().__init__()
                self.scores = nn.Linear(output.shape[0], num_classes, bias=False)

            def readout(self, h):
                return self.scores(h)

            def step(self, h, x, y):
                logits = self.readout(h)
                return functional.mse_loss(logits, functional.one_hot(y, num_classes).float()), logits

        return Objective()


SPEC = (Mix(), Distance())
'''


def graph() -> model_pb2.ModelGraph:
    """Two VNodes, one after the other."""
    made = Graph(
        MODEL, input=TensorSpec("float32", (WIDTH,)), target=TensorSpec("int64", ()), num_classes=4,
        train={"passes": PASSES, "batch_size": network_rig.BATCH_SIZE, "seed": 1, "codec": "raw"},
        data={use: f"dataset:{MODEL}#{use}" for use in ("train", "validation", "test")},
    )  # fmt: skip
    for vnode, before in (("a", "input"), ("b", "a")):
        objective, optimizer = {"name": "distance", "config": {}}, {"name": "sgd", "lr": 0.05}
        made.vnode(vnode, "mix", {}, inputs=[before], objective=objective, optimizer=optimizer)
    return made.build()


def test_a_component_and_an_objective_in_a_file_are_trained_to_the_end(tmp_path: Path) -> None:
    file = tmp_path / "mixing.py"
    file.write_text(OUTSIDE)
    additions = {"o1": {"ORCHESTRATOR_COMPONENTS": str(file)}}
    first = tuple(LocalPNode(name, flags=("--components", str(file))) for name in ("p1", "p2"))
    with running_network(first, num_orchestrators=1, width=WIDTH, vnodes=("a", "b"), forked=False, additions=additions) as rig:
        network, options = rig.network, JobOptions(idempotency_key="outside", checkpoint_s=1.0, unit_batches=8)
        with rig.client() as client, pytest.raises(InvalidInput, match="unknown component 'mix'"):
            client.submit(graph(), [rig.key], options)
        with dcnr.sdk.connect(network.bootstrap, network=network.network_file, key=rig.key, components=[str(file)]) as client:
            job = client.submit(graph(), [rig.key], options).job_id
            rig.ended(job, 240.0)
            assert {item.vnode: (item.exact, item.num_batches) for item in rig.audit()} == dict.fromkeys("ab", (True, NUM_BATCHES))
            _, exits = client.evaluate(MODEL)
            assert [one.vnode for one in exits] == ["a", "b"]
            assert exits[-1].accuracy > 0.5, exits
            other = tmp_path / "other.npz"
            np.savez(other, **{name: array[:-8] for name, array in network_rig.dots(WIDTH, 64).items()})  # type: ignore[arg-type]
            client.stage(Source(str(other), MODEL, "CC0", "made here later", version=2))
            assert client.evaluate(MODEL)[1] == exits, "a model is judged over the data that its job was signed for"


def test_a_pnode_that_lacks_a_component_is_gone_round(tmp_path: Path) -> None:
    """Goal: the machine that the planner would choose first is asked for nothing of a graph that it cannot build, and everybody is told why."""
    file = tmp_path / "mixing.py"
    file.write_text(OUTSIDE)
    pnodes = (LocalPNode("has", cores=0.5, flags=("--components", str(file))), LocalPNode("lacks", cores=2.0))
    additions = {"o1": {"ORCHESTRATOR_COMPONENTS": str(file)}}
    with running_network(pnodes, num_orchestrators=1, width=WIDTH, vnodes=("a", "b"), additions=additions) as rig:
        network, options = rig.network, JobOptions(idempotency_key="round", checkpoint_s=1.0, unit_batches=8)
        _, lacks = network.pnodes
        with dcnr.sdk.connect(network.bootstrap, network=network.network_file, key=rig.key, components=[str(file)]) as client:
            chosen = {item.pnode_id for item in client.plan(rig.graph(1)).plan.assignments}
            assert chosen == {lacks.node_id}, "of what both can build the faster one gets everything"
            job = client.submit(graph(), [rig.key], options).job_id
            rig.ended(job, 120.0)
            assert {item.vnode: (item.exact, item.num_batches) for item in rig.audit()} == dict.fromkeys("ab", (True, NUM_BATCHES))
            _, exits = client.evaluate(MODEL)
            assert [one.vnode for one in exits] == ["a", "b"]
            told = client.explain(orchestrator_pb2.ExplainRequest(model=MODEL, vnode="a"))
            [refused] = [line for line in told if line.inputs.get("pnode") == lacks.node_id]
            lacking = "lacks component mix, objective distance"
            assert refused.reason.startswith("when plan ")
            assert refused.reason.endswith(f" was made: {lacking}")
            assert ("lacking", f"{MODEL}: {lacking}") in [
                (line.verdict, line.reason) for line in client.explain(orchestrator_pb2.ExplainRequest(node_id=lacks.node_id))
            ]
        assert not [event for event in rig.events(lacks) if event.startswith(("assignment_refused", "replica_hosted"))]
        owner_is_told = rig.told(lacks)
        assert lacking in owner_is_told.reason
        assert "setting components" in owner_is_told.next_action


def test_a_job_that_no_living_orchestrator_can_read_says_so_and_goes_on_with_the_first_that_can(tmp_path: Path) -> None:
    """Goal: an orchestrator that was started again without the file keeps the job and tells everybody who asks what is missing; started with it, it goes on."""
    file = tmp_path / "mixing.py"
    file.write_text(OUTSIDE)
    additions = {"o1": {"ORCHESTRATOR_COMPONENTS": str(file)}}
    first = (LocalPNode("p1", flags=("--components", str(file))),)
    with running_network(first, num_orchestrators=1, width=WIDTH, vnodes=("a", "b"), additions=additions) as rig:
        network = rig.network
        [orchestrator] = network.orchestrators
        options = JobOptions(idempotency_key="gone", checkpoint_s=1.0, unit_batches=8, batches_per_s=8.0)
        with dcnr.sdk.connect(network.bootstrap, network=network.network_file, key=rig.key, components=[str(file)]) as client:
            job = client.submit(graph(), [rig.key], options).job_id
        rig.until(lambda: rig.job(job).state == model_pb2.JOB_STATE_RUNNING, "it runs", 90.0)

        def started_again(environment: Mapping[str, str]) -> None:
            network.kill(orchestrator)
            orchestrator.environment = environment
            network.restart(orchestrator)

        complete = orchestrator.environment
        started_again({name: value for name, value in complete.items() if name != "ORCHESTRATOR_COMPONENTS"})
        rig.until(lambda: "lacks component mix, objective distance" in listed(network), "the list says what is missing", 90.0)
        assert f"dcnr job cancel {job}" in listed(network)
        started_again(complete)
        rig.ended(job, 120.0)
        assert "lacks" not in listed(network)


def listed(network: LocalNetwork) -> str:
    """What `dcnr job list` prints; nothing while no orchestrator answers."""
    where = ("--network", str(network.network_file), "--bootstrap", network.bootstrap[0], "--home", str(network.maintainer_home))
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        errors.exit_code(maintainer.app, "dcnr", ["job", "list", *where])
    return out.getvalue()
