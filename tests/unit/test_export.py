"""Goal: an export holds the trained weights and nothing else, byte for byte the same each time, and plain torch computes with it what the network computes."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from dcnr.errors import Corrupt
from dcnr.export import FILES, Export, weights_of_state, write_export
from dcnr.graph import graph_digest, graph_from_json, graph_from_toml, graph_to_bytes, stages_of_graph
from dcnr.graph_text import graph_table, graph_to_toml
from dcnr.ids import digest_of
from dcnr.stages import INPUT, Stage
from dcnr.v1 import common_pb2, model_pb2
from vnode.reference import LocalReference
from vnode.registry import default_registry
from vnode.state import StateInfo
from vnode.torch_compute import TorchCompute
from vnode.torch_stage import initial_state
from vnode.vocabulary import Mode

EXAMPLES = Path(__file__).parents[2] / "examples"
REGISTRY = default_registry()
NUM_BATCHES = 4


def script(folder: str) -> ModuleType:
    """The example's ``use_export.py`` as a module."""
    spec = importlib.util.spec_from_file_location(f"use_export_{folder}", EXAMPLES / folder / "use_export.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def graph_of(folder: str) -> model_pb2.ModelGraph:
    return graph_from_toml((EXAMPLES / folder / "model.toml").read_text())


def trained(graph: model_pb2.ModelGraph, batches: Any) -> list[tuple[Stage, bytes]]:
    """States after a few steps, so that running statistics, weights and optimiser slots are not what they were."""
    stages = stages_of_graph(graph, REGISTRY)
    reference = LocalReference(stages, REGISTRY, num_batches=NUM_BATCHES, seed=0, threads=1)
    for _ in reference.train(batches):
        pass
    states = []
    for stage, compute in zip(stages, reference.computes, strict=True):
        info = StateInfo(
            vnode=stage.id, model=graph.name, graph=graph_digest(graph), parent="", epoch=1, step=1, num_batches=NUM_BATCHES, seed=0,
            lineage=lineage(0, NUM_BATCHES),
        )  # fmt: skip
        states.append((stage, compute.snapshot(info)))
    return states


def lineage(first: int, end: int) -> Any:
    from dcnr.intervals import IntervalSet

    return IntervalSet.span(first, end)


def checkpoint(stage: Stage, state: bytes, end: int = NUM_BATCHES) -> model_pb2.Checkpoint:
    intervals = common_pb2.IntervalSet(intervals=[common_pb2.Interval(first=0, end=end)] if end else [])
    return model_pb2.Checkpoint(vnode=stage.id, digest=digest_of(state), size_bytes=len(state), lineage=intervals)


def exported(directory: Path, graph: model_pb2.ModelGraph, states: list[tuple[Stage, bytes]]) -> Export:
    weights = {stage.id: weights_of_state(state, stage, REGISTRY, checkpoint(stage, state)) for stage, state in states}
    return write_export(directory, graph, REGISTRY, weights, manifest_digest="e" * 64)


def exits(states: list[tuple[Stage, bytes]], x: np.ndarray[Any, Any]) -> dict[str, torch.Tensor]:
    """Every exit's scores by the network's own components."""
    values: dict[str, Any] = {INPUT: x}
    scores: dict[str, torch.Tensor] = {}
    for stage, state in states:
        compute = TorchCompute(stage, REGISTRY, num_batches=NUM_BATCHES, seed=0)
        compute.restore(state)
        values[stage.id] = compute.forward(0, [values[item.id] for item in stage.inputs], Mode.EVAL).output
        scores[stage.id] = compute.readout(values[stage.id])
    return scores


def plain_scores(module: ModuleType, directory: Path, x: torch.Tensor, exit_at: str) -> torch.Tensor:
    model = json.loads((directory / "model.json").read_text())
    weights: dict[str, dict[str, torch.Tensor]] = {}
    for name, array in load_file(directory / "model.safetensors").items():
        vnode, _, parameter = name.partition("/")
        weights.setdefault(vnode, {})[parameter] = torch.from_numpy(array)
    with torch.inference_mode():
        scores: torch.Tensor = module.scores(model, weights, x, exit_at)
    return scores


def test_images_in_plain_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (6, 16, 1, 28, 28)).astype(np.float32) * np.float32(1 / 255)
    labels = rng.integers(0, 10, (6, 16))
    graph = graph_of("mnist")
    states = trained(graph, lambda split, number: (pixels[number], labels[number]))
    first, again = exported(tmp_path / "one", graph, states), exported(tmp_path / "two", graph, states)
    assert first.digest == again.digest
    assert [(tmp_path / "one" / name).read_bytes() for name in FILES] == [(tmp_path / "two" / name).read_bytes() for name in FILES]
    module = script("mnist")
    test_x = pixels[4:].reshape(32, 1, 28, 28)
    wanted = exits(states, test_x)
    for exit_at, scores in wanted.items():
        torch.testing.assert_close(
            plain_scores(module, first.directory, torch.from_numpy(test_x), exit_at), scores, rtol=1e-5, atol=1e-5
        )
    np.savez(tmp_path / "data.npz", test_x=test_x, test_y=labels[4:].reshape(32))
    monkeypatch.setattr(sys, "argv", ["use_export.py", str(first.directory), str(tmp_path / "data.npz")])
    module.main()
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    right = int((wanted["conv4"].argmax(dim=1).numpy() == labels[4:].reshape(32)).sum())
    assert told == {"exit": "conv4", "correct": right, "count": 32, "accuracy": right / 32}


def test_text_in_plain_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    text = rng.integers(0, 256, (6, 2, 129)).astype(np.uint8)
    graph = graph_of("text")
    states = trained(graph, lambda split, number: (text[number][:, :-1], text[number][:, 1:]))
    export = exported(tmp_path / "export", graph, states)
    x, y = text[5][:, :-1].copy(), text[5][:, 1:].copy()
    module = script("text")
    wanted = exits(states, x)
    for exit_at, scores in wanted.items():
        torch.testing.assert_close(
            plain_scores(module, export.directory, torch.from_numpy(x), exit_at), scores, rtol=1e-5, atol=1e-5
        )
    np.savez(tmp_path / "data.npz", test_x=x, test_y=y)
    monkeypatch.setattr(sys, "argv", ["use_export.py", str(export.directory), str(tmp_path / "data.npz"), "--bytes", "3"])
    module.main()
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    nats = torch.nn.functional.cross_entropy(wanted["block4"].flatten(0, 1), torch.from_numpy(y).long().flatten())
    assert told["bits_per_byte"] == pytest.approx(float(nats) / np.log(2), rel=1e-4)
    assert told["count"] == y.size
    assert told["sample"].startswith("def ")


def test_only_weights_leave(tmp_path: Path) -> None:
    graph = graph_of("text")
    stages = stages_of_graph(graph, REGISTRY)
    states = [
        (stage, initial_state(stage, REGISTRY, seed=0, model=graph.name, graph=graph_digest(graph), num_batches=NUM_BATCHES))
        for stage in stages
    ]
    weights = {stage.id: weights_of_state(state, stage, REGISTRY, checkpoint(stage, state, 0)) for stage, state in states}
    export = write_export(tmp_path, graph, REGISTRY, weights, manifest_digest="e" * 64)
    names = set(load_file(tmp_path / "model.safetensors"))
    assert all(name.split("/")[1].startswith(("component.", "objective.")) for name in names)
    assert export.num_parameters == sum(stage.num_parameters for stage in stages)
    model = json.loads((tmp_path / "model.json").read_text())
    assert (
        model["weights"]["sha256"] == export.files["model.safetensors"] == digest_of((tmp_path / "model.safetensors").read_bytes())
    )
    assert model["exits"] == [stage.id for stage in stages]


def test_states_that_the_manifest_does_not_name_are_refused() -> None:
    graph = graph_of("text")
    stage = stages_of_graph(graph, REGISTRY)[0]
    state = initial_state(stage, REGISTRY, seed=0, model=graph.name, graph=graph_digest(graph), num_batches=NUM_BATCHES)
    with pytest.raises(Corrupt, match="digest"):
        weights_of_state(state[:-4] + b"\0\0\0\1", stage, REGISTRY, checkpoint(stage, state, 0))
    with pytest.raises(Corrupt, match="lineage"):
        weights_of_state(state, stage, REGISTRY, checkpoint(stage, state, 3))


@pytest.mark.parametrize("folder", ["mnist", "text"])
def test_the_graph_survives_as_json_and_as_toml(folder: str) -> None:
    graph = graph_of(folder)
    graph.train.merge_every, graph.vnodes[0].replicas, graph.vnodes[1].redundancy = 7, 0, 1
    assert graph_to_bytes(graph_from_json(json.dumps(graph_table(graph)))) == graph_to_bytes(graph)
    assert graph_to_bytes(graph_from_toml(graph_to_toml(graph, remarks=("two\nlines",)))) == graph_to_bytes(graph)
