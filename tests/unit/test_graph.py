"""Goal: a graph means the same in TOML, JSON and Python, and every wrong graph is refused by the name of its VNode and field."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from typing import Any

import pytest

from dcnr.errors import InvalidInput
from dcnr.graph import (
    Graph,
    dataset_refs,
    graph_digest,
    graph_from_bytes,
    graph_from_json,
    graph_from_table,
    graph_from_toml,
    graph_to_bytes,
    locate,
    num_batches,
    stages_of_graph,
)
from dcnr.specs import TensorSpec
from vnode.registry import default_registry

TOML = """
[model]
name = "tiny"
version = 1
num_classes = 10
input = { dtype = "float32", shape = [8] }
target = { dtype = "int64", shape = [] }

[data]
train = "dataset:toy#train"
validation = "dataset:toy#validation"
test = "dataset:toy#test"

[train]
passes = 2
batch_size = 4
seed = 7

[[vnode]]
id = "a"
component = "linear"
config = { out_features = 16 }
inputs = ["input"]
objective = { name = "local_ce", config = {} }
optimizer = { name = "sgd", lr = 0.1 }

[[vnode]]
id = "act"
component = "relu"
inputs = ["a"]

[[vnode]]
id = "b"
component = "linear"
config = { out_features = 16 }
inputs = ["act"]
objective = { name = "local_ce", config = {} }
optimizer = { name = "sgd", lr = 0.1, momentum = 0.9 }
"""


def table() -> dict[str, Any]:
    return tomllib.loads(TOML)


def test_three_ways_give_the_same_bytes() -> None:
    from_toml = graph_from_toml(TOML)
    from_json = graph_from_json(json.dumps(table()))
    built = Graph(
        "tiny",
        input=TensorSpec("float32", (8,)),
        target=TensorSpec("int64", ()),
        num_classes=10,
        data=table()["data"],
        train={"passes": 2, "batch_size": 4, "seed": 7},
    )
    ce = {"name": "local_ce", "config": {}}
    built.vnode("a", "linear", {"out_features": 16}, inputs=["input"], objective=ce, optimizer={"name": "sgd", "lr": 0.1})
    built.vnode("act", "relu", inputs=["a"])
    built.vnode(
        "b", "linear", {"out_features": 16}, inputs=["act"], objective=ce, optimizer={"momentum": 0.9, "lr": 0.1, "name": "sgd"}
    )
    assert graph_to_bytes(from_toml) == graph_to_bytes(from_json) == graph_to_bytes(built.build())
    assert graph_digest(graph_from_bytes(graph_to_bytes(from_toml))) == graph_digest(from_toml)


def test_stages_hold_the_stateless_ancestors() -> None:
    stages = stages_of_graph(graph_from_toml(TOML), default_registry())
    assert [stage.id for stage in stages] == ["a", "b"]
    assert [operation.id for operation in stages[1].operations] == ["act"]
    assert [item.id for item in stages[1].inputs] == ["a"]


def test_numbers_of_batches_and_data_sets() -> None:
    graph = graph_from_toml(TOML)
    assert num_batches(graph, 103) == 2 * 25
    assert dataset_refs(graph)["test"].split == "test"
    with pytest.raises(InvalidInput):
        num_batches(graph, 3)


def test_the_line_of_a_vnode_is_found() -> None:
    line = locate(TOML, "act")
    assert line is not None
    assert TOML.splitlines()[line - 1] == 'id = "act"'
    assert locate(TOML, "nobody") is None


def wrong(change: str) -> dict[str, Any]:
    bad = table()
    first, relu, second = bad["vnode"]
    match change:
        case "cycle":
            relu["inputs"] = ["b"]
        case "shape":
            first["component"], first["config"] = "conv_block", {"out_channels": 4}
        case "component":
            relu["component"] = "rely"
        case "objective":
            del second["objective"]
        case "stateless objective":
            relu["objective"] = {"name": "local_ce"}
        case "optimizer":
            second["optimizer"] = {"name": "sgdd", "lr": 0.1}
        case "unknown config":
            first["config"]["out_featuers"] = 3
        case "too large":
            first["config"]["out_features"] = 10**12
        case "missing input":
            second["inputs"] = ["nowhere"]
        case "twice":
            second["id"] = "a"
        case "name":
            relu["id"] = "../act"
            second["inputs"] = ["../act"]
        case "unknown key":
            relu["colour"] = "red"
        case "nan":
            second["optimizer"]["lr"] = float("nan")
        case "data":
            bad["data"]["test"] = "https://example.org/x"
        case "codec":
            bad["train"]["codec"] = "zip"
    return bad


@pytest.mark.parametrize(
    ("change", "vnode", "field"),
    [
        ("cycle", "act", "inputs"), ("shape", "a", "inputs"), ("component", "act", "component"), ("objective", "b", "objective"),
        ("stateless objective", "act", "objective"), ("optimizer", "b", "optimizer"), ("unknown config", "a", "out_featuers"),
        ("too large", "a", "out_features"), ("missing input", "b", "inputs"), ("twice", "a", "id"), ("name", None, None),
        ("unknown key", "act", "colour"), ("nan", "b", "lr"), ("data", "", "data.test"), ("codec", "", "train.codec"),
    ],
)  # fmt: skip
def test_wrong_graphs_name_vnode_and_field(change: str, vnode: str | None, field: str | None) -> None:
    with pytest.raises(InvalidInput) as caught:
        stages_of_graph(graph_from_table(wrong(change)), default_registry())
    if vnode is not None:
        assert (caught.value.details["vnode"], caught.value.details["field"]) == (vnode, field)


@pytest.mark.parametrize("address", ["https://data.example.org/x.npz", "s3://bucket/x.npz", "file:///x.npz"])
def test_data_that_lie_elsewhere_are_to_be_staged_first(address: str) -> None:
    with pytest.raises(InvalidInput, match="no split of a staged data set") as caught:
        graph_from_toml(TOML.replace("dataset:toy#train", address, 1))
    assert caught.value.details["field"] == "data.train"
    assert "dcnr data stage" in caught.value.remedy
    with pytest.raises(InvalidInput, match="no split of a staged data set") as caught:
        graph_from_toml(TOML.replace("dataset:toy#train", "toy", 1))
    assert not caught.value.remedy, "a name alone is a misprint, and no place to fetch from"


DEEP = "[" * 3000 + "]" * 3000
MANY = "9" * 5000


@pytest.mark.parametrize(
    ("parsed", "text"),
    [
        (graph_from_toml, TOML.replace("seed = 7", f"seed = {MANY}")),
        (graph_from_toml, TOML.replace("seed = 7", f"seed = 0x{MANY}")),
        (graph_from_toml, TOML.replace("lr = 0.1", f"lr = 0x{MANY}")),
        (graph_from_toml, TOML.replace("seed = 7", f"seed = {DEEP}")),
        (graph_from_toml, "\udcff" + TOML),
        (graph_from_json, json.dumps(table()).replace('"seed": 7', f'"seed": {MANY}')),
        (graph_from_json, json.dumps(table()).replace('"seed": 7', f'"seed": {DEEP}')),
        (graph_from_json, json.dumps(table()).replace('"lr": 0.1', f'"lr": {DEEP[2500:3500]}')),
        *((graph_from_json, json.dumps(table()).replace(part, '"\\ud800"')) for part in ('"tiny"', '"act"', '"seed"', '"momentum"', '"sgd"')),
        (graph_from_json, "[]"),
    ],
)  # fmt: skip
def test_a_document_that_no_graph_is_written_as_is_refused(parsed: Callable[[str], Any], text: str) -> None:
    """Goal: numbers, depths and texts that a parser or a message stumbles over are refused as any other wrong graph."""
    with pytest.raises(InvalidInput) as caught:
        parsed(text)
    assert caught.value.code == "bad_graph"
    caught.value.message.encode()


def test_bytes_that_are_not_canonical_are_refused() -> None:
    data = graph_to_bytes(graph_from_toml(TOML))
    for bad in (data[:-1], data + data, b"\xff" * 40, data + b"\x08"):
        with pytest.raises(InvalidInput):
            graph_from_bytes(bad)


def test_replicas_are_a_number_or_the_planners_choice() -> None:
    """Nothing said means one, `auto` means the planner's choice, in all three ways of writing a graph."""
    text = TOML.replace('id = "a"\n', 'id = "a"\nreplicas = "auto"\n').replace('id = "b"\n', 'id = "b"\nreplicas = 3\n')
    graph = graph_from_toml(text.replace("seed = 7", "seed = 7\nmerge_every = 20"))
    assert [(vnode.id, vnode.replicas) for vnode in graph.vnodes] == [("a", 0), ("act", 1), ("b", 3)]
    assert graph.train.merge_every == 20
    assert [stage.replicas for stage in stages_of_graph(graph, default_registry())] == [0, 3]
    assert [stage.replicas for stage in stages_of_graph(graph_from_toml(TOML), default_registry())] == [1, 1]
    spec = TensorSpec("float32", (8,))
    built = Graph("g", input=spec, target=TensorSpec("int64", ()), num_classes=10, data=table()["data"], train={"batch_size": 4})
    ce, sgd = {"name": "local_ce"}, {"name": "sgd", "lr": 0.1}
    built.vnode("a", "linear", {"out_features": 4}, inputs=["input"], objective=ce, optimizer=sgd, replicas="auto")
    assert built.build().vnodes[0].replicas == 0


@pytest.mark.parametrize(
    ("line", "field", "says"),
    [
        ('replicas = "many"', "replicas", "'auto'"),
        ("replicas = 0", "replicas", "from 1 to 1024"),
        ("replicas = true", "replicas", "from 1 to 1024"),
        ("replicsa = 2", "replicsa", "nearest: 'replicas'"),
    ],
)
def test_wrong_replicas_name_the_line_and_the_nearest_key(line: str, field: str, says: str) -> None:
    text = TOML.replace('id = "b"\n', f'id = "b"\n{line}\n')
    with pytest.raises(InvalidInput) as caught:
        graph_from_toml(text)
    assert says in caught.value.message
    assert (caught.value.details["vnode"], caught.value.details["field"]) == ("b", field)
    found = locate(text, "b", field)
    assert found is not None
    assert text.splitlines()[found - 1] == line


def test_wrong_keys_of_a_table_are_found_by_line_too() -> None:
    text = TOML.replace("seed = 7", "seed = 7\nmerge_evry = 5")
    with pytest.raises(InvalidInput) as caught:
        graph_from_toml(text)
    assert "nearest: 'merge_every'" in caught.value.message
    found = locate(text, "", caught.value.details["field"])
    assert found is not None
    assert text.splitlines()[found - 1] == "merge_evry = 5"


def test_what_has_no_weights_has_no_replicas_of_its_own() -> None:
    bad = table()
    bad["vnode"][1]["replicas"] = 2
    with pytest.raises(InvalidInput) as caught:
        stages_of_graph(graph_from_table(bad), default_registry())
    assert (caught.value.details["vnode"], caught.value.details["field"]) == ("act", "replicas")


def test_every_output_fits_a_frame_as_a_whole_batch() -> None:
    """What is refused names the VNode, the field and the largest batch."""
    wide = table()
    wide["vnode"][0]["config"] = {"out_features": 65536}  # 256 KiB for each sample
    wide["vnode"][2]["config"] = {"out_features": 65536}
    wide["train"]["batch_size"] = 1024
    assert len(stages_of_graph(graph_from_table(wide), default_registry())) == 2
    wide["train"]["batch_size"] = 1025
    with pytest.raises(InvalidInput, match=r"^a: its output \[65536\] has .* for a batch of 1025") as caught:
        stages_of_graph(graph_from_table(wide), default_registry())
    assert (caught.value.details["vnode"], caught.value.details["field"]) == ("a", "train.batch_size")
    assert "train.batch_size to 1024 or less" in caught.value.remedy


def test_a_batch_of_one_is_refused_where_it_leaves_nothing_to_normalise() -> None:
    lone = table()
    lone["model"]["input"]["shape"] = [3, 4, 4]
    lone["vnode"][0] |= {"component": "conv_block", "config": {"out_channels": 4, "kernel": 5, "stride": 4}}
    lone["vnode"][1]["component"] = "flatten"
    lone["train"]["batch_size"] = 1
    with pytest.raises(InvalidInput, match=r"^a: 'conv_block' does not learn from batches of 1") as caught:
        stages_of_graph(graph_from_table(lone), default_registry())
    assert (caught.value.details["vnode"], caught.value.details["field"]) == ("a", "train.batch_size")
    for config in ({"norm": "none"}, {"stride": 2}):
        fine = lone | {"vnode": [lone["vnode"][0] | {"config": {**lone["vnode"][0]["config"], **config}}, *lone["vnode"][1:]]}
        assert len(stages_of_graph(graph_from_table(fine), default_registry())) == 2
    lone["train"]["batch_size"] = 2
    assert len(stages_of_graph(graph_from_table(lone), default_registry())) == 2
