"""Goal: a graph is cut exactly at its stateful VNodes, and every wrong graph is refused with the VNode and field at fault."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dcnr.errors import InvalidInput
from dcnr.graph import graph_from_toml, stages_of_graph
from dcnr.limits import MIB
from dcnr.specs import TensorSpec
from dcnr.stages import VNodeSpec, all_behind, stages_of
from vnode.costs import replica_cost
from vnode.registry import default_registry

IMAGE, LABEL = TensorSpec("float32", (1, 8, 8)), TensorSpec("int64", ())


def conv(name: str, *inputs: str, channels: int = 4) -> VNodeSpec:
    return VNodeSpec(name, "conv_block", {"out_channels": channels}, inputs, "local_ce", {"pool": 2}, "sgd", {"lr": 0.1})


def plain(name: str, component: str, *inputs: str, **config: float) -> VNodeSpec:
    return VNodeSpec(name, component, config, inputs)


def cut(*vnodes: VNodeSpec) -> dict[str, tuple[list[str], list[str], list[str]]]:
    stages = stages_of(vnodes, default_registry(), IMAGE, LABEL, 10)
    return {s.id: ([i.id for i in s.inputs], [o.id for o in s.operations], [o.id for o in s.sinks]) for s in stages}


def test_behind_a_stage_is_all_that_reads_from_it_directly_or_not() -> None:
    reads = {"a": ["input"], "b": ["a"], "side": ["input"], "c": ["a", "b"], "d": ["c", "side"]}
    behind = {name: "".join(sorted(others)) for name, others in all_behind(reads, reads).items()}
    assert behind == {"a": "abcd", "b": "bcd", "side": "dside", "c": "cd", "d": "d"}


def test_what_is_behind_one_stage_of_a_long_chain_costs_no_more_than_the_chain() -> None:
    """A daemon asks for each replica that it hosts, and of its successors alone."""
    reads = {f"s{number}": [f"s{number - 1}" if number else "input"] for number in range(4096)}
    tracemalloc.start()
    try:
        behind = all_behind(reads, ["s1"])
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()
    assert (list(behind), len(behind["s1"]), "s0" in behind["s1"]) == (["s1"], 4095, False)


def test_stateless_vnodes_go_to_every_stage_that_reads_them() -> None:
    graph = cut(
        conv("d", "join"),
        plain("join", "add", "act", "c"),
        plain("act", "relu", "b"),
        conv("c", "act"),
        conv("b", "shift"),
        plain("shift", "random_shift", "input", pixels=1),
    )
    assert graph == {"b": (["input"], ["shift"], []), "c": (["b"], ["act"], []), "d": (["b", "c"], ["act", "join"], [])}
    assert list(graph) == ["b", "c", "d"]


def test_a_sink_follows_its_only_stage() -> None:
    graph = cut(conv("a", "input"), plain("act", "relu", "a"), plain("flat", "flatten", "act"))
    assert graph == {"a": (["input"], [], ["act", "flat"])}


def test_the_outputs_of_operations_and_sinks_are_memory_of_their_stage() -> None:
    """Each is held until the pass is over: six by element on a large image took four times what the replica was admitted at."""
    names = [("relu", "gelu", "add")[number % 3] for number in range(6)]
    reads = ["input", *(f"o{number}" for number in range(5))]
    inside = [
        plain(f"o{number}", name, *([read] * (1 + (name == "add"))))
        for number, (name, read) in enumerate(zip(names, reads, strict=True))
    ]
    behind = [plain("act", "relu", "a"), plain("drop", "dropout", "act", dropout=0.5), plain("flat", "flatten", "drop")]
    image = TensorSpec("float32", (64, 64, 64))
    bare, whole = (
        stages_of([*operations, conv("a", source), *sinks], default_registry(), image, LABEL, 10, batch_size=128)[0]
        for operations, source, sinks in (([], "input", []), (inside, "o5", behind))
    )
    outputs = [one.output for one in (*whole.operations, *whole.sinks)]
    assert len(outputs) == 9
    costs = [replica_cost(stage, default_registry(), 128).memory_bytes for stage in (bare, whole)]
    assert costs[1] - costs[0] >= 128 * sum(output.bytes_per_sample for output in outputs) >= 768 * MIB


def test_what_a_shift_pads_is_memory_too() -> None:
    (stage,) = stages_of([plain("s", "random_shift", "input", pixels=64), conv("a", "s")], default_registry(), IMAGE, LABEL, 10)
    assert stage.activation_bytes >= 4 * (8 + 2 * 64) ** 2


def test_what_becomes_larger_than_any_tensor_is_refused_by_name() -> None:
    """Three lines of a graph that join forty times the same ask for gigabytes."""
    chain = [plain(f"c{number}", "concat", *([read] * 40)) for number, read in enumerate(["input", "c0", "c1"])]
    for vnodes in ([*chain, conv("a", "c2")], [conv("a", "input"), *chain]):
        with pytest.raises(InvalidInput, match=r"c2: its output \[64000, 8, 8\] has 524288000 bytes for a batch of 32") as refused:
            stages_of(vnodes, default_registry(), IMAGE, LABEL, 10, batch_size=32)
        assert (refused.value.details["vnode"], refused.value.details["field"]) == ("c2", "train.batch_size")
        assert "set train.batch_size to 16 or less" in refused.value.remedy
    graph = graph_from_toml((Path(__file__).parents[2] / "examples/mnist/model.toml").read_text())
    graph.train.batch_size = 65_536
    with pytest.raises(InvalidInput, match="for a batch of 65536"):
        stages_of_graph(graph, default_registry())


def test_comparing_samples_with_one_another_costs_the_square_of_the_batch() -> None:
    vnode = VNodeSpec("a", "linear", {"out_features": 8}, ("input",), "predsim", {}, "sgd", {"lr": 0.1})
    (stage,) = stages_of([vnode], default_registry(), TensorSpec("float32", (8,)), LABEL, 10)
    small, large = (replica_cost(stage, default_registry(), batch).memory_bytes for batch in (8, 65_536))
    assert small < 64 * MIB
    assert large > 3 * 4 * 65_536**2, "two matrices and what lies between them"


@pytest.mark.parametrize(
    ("vnodes", "vnode", "field"),
    [
        ((conv("a", "b"), conv("b", "a")), "a", "inputs"),
        ((conv("a", "nobody"),), "a", "inputs"),
        ((conv("a", "input"), conv("a", "input")), "a", "id"),
        ((conv("input", "input"),), "input", "id"),
        ((VNodeSpec("a", "linear", {"out_features": 2}, ()),), "a", "inputs"),
        ((VNodeSpec("a", "os.system", {}, ("input",)),), "a", "component"),
        ((VNodeSpec("a", "conv_block", {"out_channels": 4}, ("input",)),), "a", "objective"),
        ((VNodeSpec("a", "relu", {}, ("input",), objective="local_ce"),), "a", "objective"),
        (
            (VNodeSpec("a", "conv_block", {"out_channels": 4, "kernel": 2}, ("input",), "local_ce", {}, "sgd", {"lr": 0.1}),),
            "a",
            "kernel",
        ),
        (
            (VNodeSpec("a", "conv_block", {"out_channels": 4}, ("input",), "local_ce", {"pool": 5}, "sgd", {"lr": 0.1}),),
            "a",
            "pool",
        ),
        ((VNodeSpec("a", "conv_block", {"out_channels": 4}, ("input",), "local_ce", {}, "sgd", {"lr": 0.1, "x": 1}),), "a", "x"),
        ((conv("a", "input"), conv("b", "input", channels=5), plain("s", "add", "a", "b")), "s", "inputs"),
        ((conv("a", "input"), conv("b", "a"), plain("s", "add", "a", "b")), "s", "inputs"),
        ((conv("a", "input"), plain("s", "relu", "input")), "s", "inputs"),
        ((plain("s", "relu", "input"),), "", "component"),
    ],
)
def test_wrong_graphs_are_refused_with_vnode_and_field(vnodes: tuple[VNodeSpec, ...], vnode: str, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        cut(*vnodes)
    assert (caught.value.details["vnode"], caught.value.details["field"]) == (vnode, field)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"config": {"out_feature": 2}}, "field 'out_features' is missing; nearest of those given: 'out_feature'"),
        ({"config": {"units": 2}}, "field 'out_features' is missing"),
        ({"config": {"out_features": 2, "bais": True}}, "unknown field 'bais', nearest: 'bias'; known: "),
        ({"objective_config": {"poll": 2}}, "unknown field 'poll', nearest: 'pool'; known: "),
        ({"optimizer_config": {"lr": 0.1, "momentun": 0.9}}, "unknown field 'momentun', nearest: 'momentum'; known: "),
        ({"inputs": ("falt",)}, "there is no VNode 'falt', nearest: 'flat'"),
        ({"component": "linaer"}, "unknown component 'linaer', nearest: 'linear'; known: "),
        ({"objective": "local_ec"}, "not 'local_ec', nearest: 'local_ce'"),
    ],
)
def test_what_is_misspelt_is_told_with_the_nearest_name(wrong: dict[str, Any], told: str) -> None:
    right = VNodeSpec("b", "linear", {"out_features": 2}, ("flat",), "local_ce", {}, "sgd", {"lr": 0.1})
    with pytest.raises(InvalidInput) as caught:
        cut(plain("flat", "flatten", "input"), replace(right, **wrong))
    assert told in caught.value.message
    assert ("nearest" in caught.value.message) == ("nearest" in told)


def test_a_long_chain_is_cut_without_recursion() -> None:
    chain = [plain(f"r{i}", "relu", f"r{i - 1}" if i else "input") for i in range(3000)]
    assert len(cut(*chain, conv("a", "r2999"))["a"][1]) == 3000


def test_graphs_that_would_multiply_are_refused() -> None:
    chain = [plain(f"r{i}", "relu", f"r{i - 1}" if i else "input") for i in range(900)]
    with pytest.raises(InvalidInput, match="stateless VNodes between them"):
        cut(*chain, *(conv(f"a{i}", "r899") for i in range(20)))


def test_a_long_tail_of_sinks_is_placed_in_order() -> None:
    tail = [plain(f"r{i}", "relu", f"r{i - 1}" if i else "a") for i in range(3000)]
    assert cut(conv("a", "input"), *tail)["a"][2] == [f"r{i}" for i in range(3000)]
