"""Goal: an imported module is a graph that computes what the module computes, with its weights; whatever cannot be imported is named, all of it at once."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from importing_modules import Attention, Digits, Foreign, Hesitant, Mixing, Residual, Twice, Writer, perceptron, settled
from schemas_rig import check_value
from torch import Tensor, nn

from dataservice.dataset_manifest import DatasetManifest, FieldSpec, ShardRef
from dcnr.cli import dcnr as command
from dcnr.cli.errors import exit_code
from dcnr.cli.session import Session
from dcnr.errors import InvalidInput
from dcnr.graph import graph_from_toml, graph_to_bytes, stages_of_graph, tensor_spec
from dcnr.sdk.submission import JobOptions, planned, prepare, request_of
from dcnr.sdk.weights import read_weights, write_imported
from dcnr.stages import INPUT
from dcnr.v1 import data_pb2, orchestrator_pb2
from trust.identity import NodeKey
from vnode.importing.model import Chosen, Imported, from_torch
from vnode.importing.operations import UnsupportedOperations
from vnode.registry import default_registry
from vnode.state import parse
from vnode.torch_compute import TorchCompute
from vnode.torch_stage import initial_state, schema_of
from vnode.vocabulary import Mode

REGISTRY = default_registry()
NUM_BATCHES = 8


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5))


def text(length: int = 12) -> Tensor:
    return torch.randint(0, 256, (3, length), generator=torch.Generator().manual_seed(5))


@pytest.fixture(autouse=True, scope="module")
def _operator() -> Iterator[None]:
    """An operator of the maintainer's own."""
    library = torch.library.Library("dcnr_test", "DEF")
    library.define("squared(Tensor x) -> Tensor")
    library.impl("squared", lambda x: x * x, "CompositeExplicitAutograd")
    yield
    library._destroy()


def components(imported: Imported) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(vnode.id, vnode.component.name, tuple(vnode.inputs)) for vnode in imported.graph.vnodes]


def logits(imported: Imported, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What the exit of the imported graph answers, computed as a PNode computes it: from checkpoint 0 with the carried weights."""
    values: dict[str, Any] = {INPUT: x}
    found: np.ndarray[Any, Any] = np.zeros(0)
    for stage in stages_of_graph(imported.graph, REGISTRY):
        state = initial_state(
            stage, REGISTRY, seed=0, model="m", graph="", num_batches=NUM_BATCHES, given=imported.weights[stage.id]
        )
        compute = TorchCompute(stage, REGISTRY, num_batches=NUM_BATCHES, seed=0)
        compute.restore(state)
        inputs = [values[item.id] for item in stage.inputs]
        values[stage.id] = compute.forward(0, inputs, Mode.INFER, None).output
        if stage.id == imported.answer:
            found = np.asarray(compute.readout(values[stage.id]))
    return found


@pytest.mark.parametrize(
    ("module", "example", "wanted"),
    [
        (perceptron(), drawn(4, 3, 4), [
            ("layer0", "flatten", ("input",)), ("layer1", "linear", ("layer0",)), ("layer2", "relu", ("layer1",)), ("layer3", "dropout", ("layer2",)),
            ("layer4", "linear", ("layer3",)),
        ]),
        (Digits(), drawn(2, 1, 28, 28), [
            ("conv1", "conv_block", ("input",)), ("conv2", "conv_block", ("conv1",)), ("conv3", "conv_block", ("conv2",)),
            ("add", "add", ("conv2", "conv3")), ("conv4", "conv_block", ("add",)),
        ]),
        (Residual(), drawn(1, 3, 6, 6), [
            ("first", "conv_block", ("input",)), ("second", "conv_block", ("first",)), ("add", "add", ("first", "second")), ("relu", "relu", ("add",)),
            ("mean", "average_pool", ("relu",)), ("flatten", "flatten", ("mean",)), ("fc", "linear", ("flatten",)),
        ]),
        (Mixing(), drawn(3, 6), [
            ("wide", "linear", ("input",)), ("linear_block", "linear_block", ("wide",)), ("other", "linear", ("input",)),
            ("cat", "concat", ("linear_block", "other")), ("scores", "linear", ("cat",)),
        ]),
        (Writer(), text(), [
            ("token", "byte_embedding", ("input",)), ("transformer_block", "transformer_block", ("token",)),
            ("transformer_block-2", "transformer_block", ("transformer_block",)),
        ]),
    ],
    ids=["perceptron", "digits", "residual", "mixing", "writer"],
)  # fmt: skip
def test_a_module_becomes_vnodes_that_compute_the_same(
    module: nn.Module, example: Tensor, wanted: list[Any], tmp_path: Path
) -> None:
    imported = from_torch(settled(module).train(), example, Chosen(name="mine"))
    assert components(imported) == wanted
    assert module.training, "the module is left as it was"
    another = drawn(5, *example.shape[1:]) if example.is_floating_point() else text()
    as_input = another.numpy() if example.is_floating_point() else another.to(torch.uint8).numpy()
    with torch.no_grad():
        answer = module.eval()(another)
    found = torch.from_numpy(logits(imported, as_input))
    scores = found.log_softmax(1) if isinstance(module, Digits) else found
    assert torch.allclose(scores, answer, atol=2e-5), "on samples that the import has not seen"
    write_imported(imported, tmp_path / "model.toml", tmp_path / "first.safetensors")
    again = graph_from_toml((tmp_path / "model.toml").read_text())
    assert graph_to_bytes(again) == graph_to_bytes(imported.graph)
    weights = read_weights(tmp_path / "first.safetensors")
    assert {v: set(own) for v, own in weights.items()} == {v: set(own) for v, own in imported.weights.items()}


def test_every_operation_without_a_component_is_named_with_its_line() -> None:
    with pytest.raises(UnsupportedOperations) as caught:
        from_torch(Foreign(), drawn(2, 5, 6))
    named = {one.node: one for one in caught.value.operations}
    assert [one.target for one in caught.value.operations] == [
        "aten.lstm.input", "aten.cumsum.default", "dcnr_test.squared.default", "aten.tanh.default", "aten.select.int",
    ]  # fmt: skip
    assert named["lstm"].owner == "lstm"
    for node, line in (("lstm", "self.lstm(x)"), ("cumsum", "torch.cumsum"), ("tanh", "torch.tanh")):
        assert named[node].where.startswith("importing_modules.py:") or "tests/unit/importing_modules.py:" in named[node].where
        assert line in named[node].where
    assert "transformer_block" in named["lstm"].instead
    assert "setting components" in named["squared"].instead
    assert all(str(one) in caught.value.message for one in caught.value.operations)
    assert caught.value.code == "unsupported_operations"


@pytest.mark.parametrize(
    ("module", "example", "code", "told"),
    [
        (Hesitant(), drawn(3, 4), "not_traceable", "if x.sum() > 0"),
        (nn.Linear(4, 4), drawn(3, 5), "module_failed", "shapes"),
        (nn.LSTM(4, 3, batch_first=True), drawn(2, 3, 4), "bad_module", "results"),
        (Twice(), drawn(3, 4), "unsupported_operations", "shares its weights with linear"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)), drawn(2, 1, 4, 4), "unsupported_operations", "padding=1"),
        (nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(2)), drawn(2, 1, 4, 4), "unsupported_operations", "directly behind a Conv2d"),
        (nn.Sequential(nn.Embedding(100, 8), nn.LayerNorm(8)), text() % 100, "unsupported_operations", "knows 100 tokens"),
        (nn.Linear(4, 3), drawn(4), "bad_example", "no batch"),
        (nn.Flatten(), drawn(2, 3, 4), "bad_graph", "weights"),
        (nn.Sequential(nn.Linear(4, 4), nn.GELU(approximate="tanh"), nn.Linear(4, 2)), drawn(2, 4), "unsupported_operations", "exact GELU"),
    ],
)  # fmt: skip
def test_what_cannot_be_imported_says_why(
    module: nn.Module, example: Tensor, code: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidInput) as caught:
        from_torch(module, example)
    assert caught.value.code == code
    assert told in str(caught.value)
    assert capsys.readouterr() == ("", ""), "torch's own words are in the error alone"
    assert logging.root.manager.disable == 0


def test_a_block_that_only_looks_like_ours_is_found_out() -> None:
    with pytest.raises(InvalidInput) as caught:
        from_torch(settled(Writer(by_head=True)), text())
    assert (caught.value.code, caught.value.details["vnode"]) == ("import_differs", "transformer_block")


def test_attention_without_its_block_is_named_as_such() -> None:
    with pytest.raises(UnsupportedOperations) as caught:
        from_torch(nn.Sequential(nn.Linear(8, 8), Attention(8, 2, split=False), nn.Linear(8, 3)), drawn(2, 4, 8))
    attention = next(one for one in caught.value.operations if one.node == "scaled_dot_product_attention")
    assert "pre-norm block" in attention.instead


def test_the_maintainer_chooses_what_the_module_does_not_say() -> None:
    chosen = Chosen(
        name="mine", dataset="theirs", passes=3, batch_size=32, seed=9, objective="predsim", optimizer={"name": "adamw", "lr": 0.01},
        objectives={"layer1": {"name": "local_ce", "config": {"activation": "gelu"}}},
    )  # fmt: skip
    graph = from_torch(perceptron(), drawn(4, 3, 4), chosen).graph
    assert (graph.data.test, graph.train.passes, graph.train.batch_size, graph.train.seed) == ("dataset:theirs#test", 3, 32, 9)
    stages = {stage.id: stage for stage in stages_of_graph(graph, REGISTRY)}
    assert [(stage.objective, stage.optimizer) for stage in stages.values()] == [("local_ce", "adamw"), ("predsim", "adamw")]
    assert stages["layer1"].objective_config == {"activation": "gelu"}
    with pytest.raises(InvalidInput, match="layer1, layer4"):
        from_torch(perceptron(), drawn(4, 3, 4), Chosen(objectives={"layer2": {}}))


def test_first_weights_are_in_checkpoint_0_and_must_fit() -> None:
    imported = from_torch(settled(perceptron()), drawn(4, 3, 4))
    stage = stages_of_graph(imported.graph, REGISTRY)[0]
    given = dict(imported.weights[stage.id])

    def state(given: dict[str, Any]) -> bytes:
        return initial_state(stage, REGISTRY, seed=1, model="m", graph="", num_batches=4, given=given)

    _, arrays = parse(state(given), schema_of(stage, REGISTRY))
    assert np.array_equal(arrays["w/component.weight"], given["component.weight"])
    _, seeded = parse(state({}), schema_of(stage, REGISTRY))
    assert not np.array_equal(seeded["w/component.weight"], given["component.weight"])
    assert np.array_equal(seeded["w/objective.head.scores.weight"], arrays["w/objective.head.scores.weight"]), (
        "what is not given is the seed's"
    )
    wrong: list[dict[str, Any]] = [
        {"component.weights": given["component.weight"]},
        {"component.weight": given["component.weight"].astype("float64")},
    ]
    for case in wrong:
        with pytest.raises(InvalidInput) as caught:
            state(case)
        assert caught.value.code == "weights_do_not_fit"


class Kept:
    """Takes what is uploaded."""

    def __init__(self) -> None:
        self.states: dict[str, bytes] = {}

    async def write_bytes(self, ref: Any, data: bytes, *, directory: Path) -> None:
        pass

    async def write_file(self, ref: data_pb2.ObjectRef, path: Path, *, size_bytes: int, sha256: str) -> None:
        self.states[ref.owner] = path.read_bytes()


def test_a_job_is_prepared_with_the_weights_that_come_with_it(tmp_path: Path) -> None:
    imported = from_torch(settled(perceptron()), drawn(4, 3, 4), Chosen(name="mine"))
    splits = {"train": 128, "validation": 8, "test": 8}
    wanted = {"input": tensor_spec(imported.graph.input), "target": tensor_spec(imported.graph.target)}
    fields = {name: FieldSpec(spec.dtype, spec.shape, spec.dtype) for name, spec in wanted.items()}
    shards: dict[tuple[str, str], tuple[ShardRef, ...]] = {(name, split): () for name in fields for split in splits}
    plan = planned(imported.graph, REGISTRY, DatasetManifest("mine", 1, fields, splits, shards, "none", "made up"))

    def prepared(weights: Any, from_manifest: str = "") -> Kept:
        kept: Any = Kept()
        options = JobOptions(idempotency_key="k", unit_batches=1, from_manifest=from_manifest)
        request = request_of(imported.graph, plan, options, network_id="n", seconds_per_batch=0.0, now_wall=0.0)
        asyncio.run(
            prepare(imported.graph, plan, request, REGISTRY, kept, scratch=tmp_path, progress=lambda *_: None, weights=weights)
        )
        found: Kept = kept
        return found

    stages = {stage.id: stage for stage in plan.stages}
    for vnode, data in prepared(imported.weights).states.items():
        _, arrays = parse(data, schema_of(stages[vnode], REGISTRY))
        assert all(np.array_equal(arrays[f"w/{name}"], array) for name, array in imported.weights[vnode].items())
    assert set(prepared(None).states) == {"layer1", "layer4"}
    for case in (({"nobody": {}}, ""), (imported.weights, "a" * 64)):
        with pytest.raises(InvalidInput) as caught:
            prepared(*case)
        assert caught.value.code == "weights_do_not_fit"


def test_the_command_writes_a_graph_that_validates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parts.py").write_text("from torch import nn\nWIDTH = 8\n")
    (tmp_path / "net.py").write_text(
        "from torch import nn\nfrom parts import WIDTH\n\n"
        "def Small():\n    return nn.Sequential(nn.Linear(4, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 3))\n\n"
        "def strange():\n    return nn.Sequential(nn.Linear(4, WIDTH), nn.Sigmoid(), nn.Tanh())\n"
    )
    arguments = ["model", "import", "net.py:Small", "--input", "4", "--weights", "first.safetensors", "--lr", "0.05"]
    assert exit_code(command.app, "dcnr", arguments) == 0
    assert "next: dcnr model validate model.toml" in capsys.readouterr().out
    assert exit_code(command.app, "dcnr", ["model", "validate", "model.toml"]) == 0
    assert "small version 1 is valid" in capsys.readouterr().out
    assert set(read_weights(tmp_path / "first.safetensors")) == {"layer0"}
    again = ["model", "import", "net.py:Small", "--input", "4", "--out", "model.toml"]
    assert exit_code(command.app, "dcnr", again) == 0
    assert "weights are not carried over" in capsys.readouterr().out
    assert exit_code(command.app, "dcnr", [*again, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    check_value("dcnr model import", told)
    assert told["vnodes"] == [{"vnode": "layer0", "component": "linear", "operations": ["linear", "relu", "linear_1"]}]
    carried: dict[str, Any] = {}

    class Client:
        async def jobs(self, model: str) -> list[Any]:
            return []

        async def submit(self, graph: Any, keys: Any, options: Any, *, weights: Any, progress: Any) -> Any:
            carried.update(weights)
            return orchestrator_pb2.SubmitJobResponse(job_id="small-1")

    monkeypatch.setattr(Session, "run", lambda _, work: asyncio.run(work(Client())))
    NodeKey.generate().save(tmp_path / "key.pem")
    submit = ["model", "submit", "model.toml", "--key", "key.pem", "--weights", "first.safetensors"]
    assert exit_code(command.app, "dcnr", submit) == 0
    assert "job small-1 accepted" in capsys.readouterr().out
    assert set(carried["layer0"]) == {
        "component.weight", "component.bias", "objective.head.scores.weight", "objective.head.scores.bias",
    }  # fmt: skip
    (tmp_path / "model.toml").write_text("of our own")
    assert exit_code(command.app, "dcnr", again[:-2]) == 5
    told = capsys.readouterr().err
    assert ("graph_exists" in told, "--out model.toml" in told) == (True, True)
    assert (tmp_path / "model.toml").read_text() == "of our own", "only who names it replaces it"
    for taken in ("first.safetensors", "other.toml"):
        kept = (tmp_path / "first.safetensors").read_bytes()
        assert exit_code(command.app, "dcnr", [*again[:-1], "other.toml", "--weights", taken]) == 5
        assert "weights_exist" in capsys.readouterr().err
        assert (tmp_path / "first.safetensors").read_bytes() == kept
        assert not (tmp_path / "other.toml").exists()
    (tmp_path / "model.toml").unlink()
    assert exit_code(command.app, "dcnr", ["model", "import", "net.py:strange", "--input", "4"]) == 2
    told = capsys.readouterr().err
    assert "aten.sigmoid.default" in told
    assert "aten.tanh.default" in told
    for wrong in ("net.py:missing", "gone.py:Small", "net.py"):
        assert exit_code(command.app, "dcnr", ["model", "import", wrong, "--input", "4"]) == 2
    assert exit_code(command.app, "dcnr", ["model", "import", "net.py:Small"]) == 2
    assert "--input 1x28x28" in capsys.readouterr().err
