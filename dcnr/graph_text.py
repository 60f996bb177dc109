"""A graph as its author would write it: tables for JSON, and TOML. `dcnr.graph` reads both back to the same bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dcnr.graph import AUTO, config_dict
from dcnr.specs import TensorSpec
from dcnr.v1 import model_pb2


def graph_table(graph: model_pb2.ModelGraph) -> dict[str, Any]:
    """The graph as the tables of its TOML and JSON form; `dcnr.graph.graph_from_table` gives the same message again."""
    train = graph.train
    return {
        "model": {
            "name": graph.name, "version": int(graph.version), "num_classes": int(graph.num_classes),
            "input": spec_table(graph.input), "target": spec_table(graph.target),
        },
        "data": {"train": graph.data.train, "validation": graph.data.validation, "test": graph.data.test},
        "train": {
            "passes": int(train.passes), "batch_size": int(train.batch_size), "seed": int(train.seed), "codec": train.codec,
            "evaluate_every": int(train.evaluate_every), "merge_every": int(train.merge_every),
        },
        "vnode": [_vnode_table(vnode) for vnode in graph.vnodes],
    }  # fmt: skip


def _vnode_table(vnode: model_pb2.VNodeSpec) -> dict[str, Any]:
    table: dict[str, Any] = {
        "id": vnode.id, "component": vnode.component.name, "config": config_dict(vnode.component.config), "inputs": list(vnode.inputs),
    }  # fmt: skip
    if vnode.objective.name:
        table["objective"] = {"name": vnode.objective.name, "config": config_dict(vnode.objective.config)}
    if vnode.optimizer.name:
        table["optimizer"] = {"name": vnode.optimizer.name, **config_dict(vnode.optimizer.config)}
    if vnode.replicas != 1:
        table["replicas"] = int(vnode.replicas) or AUTO
    if vnode.redundancy:
        table["redundancy"] = int(vnode.redundancy)
    return table


def graph_to_toml(graph: model_pb2.ModelGraph, *, remarks: tuple[str, ...] = ()) -> str:
    """The graph as `dcnr.graph.graph_from_toml` reads it, with ``remarks`` as comments on top."""
    table = graph_table(graph)
    lines = [f"# {line}" for remark in remarks for line in remark.splitlines()]
    for section in ("model", "data", "train"):
        lines += [f"[{section}]", *(f"{name} = {_toml(value)}" for name, value in table[section].items()), ""]
    for vnode in table["vnode"]:
        lines += ["[[vnode]]", *(f"{name} = {_toml(value)}" for name, value in vnode.items() if value != {}), ""]
    return "\n".join(lines)


def spec_table(spec: Any) -> dict[str, Any]:
    """Of a `TensorSpec` or of the message of that name."""
    shape = spec.shape if isinstance(spec, TensorSpec) else [int(size) for size in spec.shape]
    return {"dtype": spec.dtype, "shape": list(shape)}


def _toml(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list() | tuple():
            return f"[{', '.join(_toml(item) for item in value)}]"
        case Mapping():
            return f"{{ {', '.join(f'{name} = {_toml(item)}' for name, item in value.items() if item != {})} }}"
        case _:
            return repr(value)
