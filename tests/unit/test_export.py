"""Goal: an export holds the trained weights and nothing else, byte for byte the same each time, and plain torch computes with it what the network computes."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from dcnr import crashpoints
from dcnr.errors import Corrupt, Refused
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
    for vnode, activation in zip(graph.vnodes, ("relu", "gelu"), strict=False):  # an exit without one is behind these
        vnode.objective.config.add(name="activation").value.text = activation
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


EXPORTS = """
import sys
from pathlib import Path

import numpy as np

from dcnr import crashpoints
from dcnr.export import Weights, write_export
from dcnr.graph import graph_from_toml, stages_of_graph
from dcnr.v1 import model_pb2
from vnode.registry import default_registry

crashpoints.arm(__import__("os").environ)
directory, graph, manifest, number = sys.argv[1:]
graph, registry = graph_from_toml(Path(graph).read_text()), default_registry()
weights = {
    stage.id: Weights(model_pb2.Checkpoint(vnode=stage.id), {"component.w": np.full(9, int(number), np.float32)})
    for stage in stages_of_graph(graph, registry)
}
print(write_export(Path(directory), graph, registry, weights, manifest_digest=manifest * 64).digest)
"""


def export_of(directory: Path, number: int, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """An export of a process of its own."""
    arguments = [str(directory), str(EXAMPLES / "text" / "model.toml"), "abc"[number], str(number)]
    return subprocess.run(
        [sys.executable, "-c", EXPORTS, *arguments], env={**os.environ, **(environment or {})}, capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip


@pytest.mark.parametrize("has_older", [True, False])
@pytest.mark.parametrize("num_named", [1, 2, 3, 4])
def test_what_an_interrupted_export_left_is_told_by_model_json_and_written_anew(
    tmp_path: Path, has_older: bool, num_named: int
) -> None:
    """Goal: no description is there whose weights are not, wherever the export dies, and the next one, of another manifest too, is whole."""
    where = tmp_path / "a"
    older, new, other = (dict.fromkeys(FILES, "") for _ in range(3))
    for number, contents in enumerate((older, new, other)):
        assert export_of(tmp_path / f"whole{number}", number).returncode == 0
        contents.update({name: digest_of((tmp_path / f"whole{number}" / name).read_bytes()) for name in FILES})
    if has_older:
        assert export_of(where, 0).returncode == 0
    died = export_of(where, 1, crashpoints.setting("export.written", tmp_path / "note", times=num_named))
    assert died.returncode == -signal.SIGKILL, died.stderr
    found = {name: digest_of((where / name).read_bytes()) for name in FILES if (where / name).exists()}
    assert all(digest in (older[name], new[name]) for name, digest in found.items()), "each of them is whole"
    assert (found.get("model.json") == new["model.json"]) == (found == new) == (num_named == 4)
    again = export_of(where, 2)
    assert again.returncode == 0, again.stderr
    assert {path.name: digest_of(path.read_bytes()) for path in where.iterdir()} == other


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_no_export_wrote_is_not_replaced(tmp_path: Path, name: str) -> None:
    graph = graph_of("text")
    (tmp_path / name).write_text(json.dumps(graph_table(graph)))
    with pytest.raises(Refused, match=f"there is a {name} in") as refused:
        write_export(tmp_path, graph, REGISTRY, {}, manifest_digest="e" * 64)
    assert (refused.value.code, refused.value.remedy) == ("export_exists", "choose another directory")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert json.loads((tmp_path / name).read_text()) == graph_table(graph)


def test_a_disk_that_takes_no_export_keeps_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / ".README.txt.draft").mkdir()
    with pytest.raises(Refused) as refused:
        write_export(tmp_path, graph_of("text"), REGISTRY, {}, manifest_digest="e" * 64)
    assert refused.value.code == "disk_trouble"
    assert [path.name for path in tmp_path.iterdir()] == [".README.txt.draft"]


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
