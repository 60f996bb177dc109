"""Goal: a graph means the same in TOML, JSON and Python, and every wrong graph is refused by the name of its VNode and field."""

from __future__ import annotations

import json
import tomllib
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


def test_bytes_that_are_not_canonical_are_refused() -> None:
    data = graph_to_bytes(graph_from_toml(TOML))
    for bad in (data[:-1], data + data, b"\xff" * 40, data + b"\x08"):
        with pytest.raises(InvalidInput):
            graph_from_bytes(bad)
