"""A maintainer's model graph: one protobuf message, written as TOML, as JSON or with the Python builder, and validated without torch.

All three ways give the same bytes (configuration entries are sorted by name), so a graph's digest names it. Every refusal is an InvalidInput whose
details name the VNode and the field; `locate` finds the line of a VNode in the TOML text.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from dcnr import limits
from dcnr.batch_bounds import check_batch_size
from dcnr.errors import InvalidInput
from dcnr.ids import Digest, check_name, digest_of
from dcnr.nearest import told_nearest
from dcnr.specs import DTYPE_BYTES, Config, ConfigValue, Registry, TensorSpec
from dcnr.stages import Stage, VNodeSpec, stages_of
from dcnr.v1 import model_pb2

CODECS = ("auto", "raw", "fp16", "bf16", "int8")
AUTO = "auto"
"""In place of a number of replicas: as many as the planner finds useful. On the wire it is 0."""
MAX_REPLICAS = 1024
_MAX_TEXT = 256
_MAX_LIST = 64
_STAGE = "stage it first, then name it: dcnr data stage ADDRESS --sha256 DIGEST --name NAME --licence LICENCE, and dataset:NAME#SPLIT in the graph"


@dataclass(frozen=True, slots=True)
class DatasetRef:
    """``dataset:<name>#<split>``."""

    name: str
    split: str


class Graph:
    """Builds a graph in Python: ``Graph("tiny", input=..., target=...).vnode("a", "linear", {...}, objective=(...))``. Returns itself."""

    def __init__(
        self, name: str, *, input: TensorSpec, target: TensorSpec, num_classes: int, train: Mapping[str, Any], data: Mapping[str, str],
        version: int = 1,
    ) -> None:  # fmt: skip
        self._table: dict[str, Any] = {
            "model": {
                "name": name, "version": version, "num_classes": num_classes,
                "input": {"dtype": input.dtype, "shape": list(input.shape)}, "target": {"dtype": target.dtype, "shape": list(target.shape)},
            },
            "data": dict(data), "train": dict(train), "vnode": [],
        }  # fmt: skip

    def vnode(
        self, vnode_id: str, component: str, config: Mapping[str, Any] | None = None, *, inputs: Sequence[str],
        objective: Mapping[str, Any] | None = None, optimizer: Mapping[str, Any] | None = None, replicas: int | str = 1,
    ) -> Graph:  # fmt: skip
        """Adds a VNode; ``objective`` is ``{"name", "config"}`` and ``optimizer`` ``{"name", ...fields}`` as in the TOML form.

        ``replicas`` is a number or `AUTO`.
        """
        entry: dict[str, Any] = {"id": vnode_id, "component": component, "config": dict(config or {}), "inputs": list(inputs)}
        if objective is not None:
            entry["objective"] = dict(objective)
        if optimizer is not None:
            entry["optimizer"] = dict(optimizer)
        if replicas != 1:
            entry["replicas"] = replicas
        self._table["vnode"].append(entry)
        return self

    def build(self) -> model_pb2.ModelGraph:
        """The message. Raises InvalidInput."""
        return graph_from_table(self._table)


def graph_from_toml(text: str) -> model_pb2.ModelGraph:
    """The graph that ``text`` describes (docs/reference/graph.md). Raises InvalidInput."""
    return _graph_from(text, tomllib.loads, "TOML")


def graph_from_json(text: str) -> model_pb2.ModelGraph:
    """The graph that a JSON document with the same tables describes. Raises InvalidInput."""
    return _graph_from(text, json.loads, "JSON")


def graph_from_bytes(data: bytes) -> model_pb2.ModelGraph:
    """The graph in its stored form; canonical bytes only, so that a digest names one graph. Raises InvalidInput."""
    _bounded(len(data))
    graph = model_pb2.ModelGraph()
    try:
        graph.ParseFromString(data)
    except DecodeError as error:
        raise InvalidInput("not a serialised graph", code="bad_graph", vnode="", field="") from error
    if graph_to_bytes(graph) != data:
        raise InvalidInput("the graph's bytes are not in canonical form", code="bad_graph", vnode="", field="")
    return graph


def graph_to_bytes(graph: model_pb2.ModelGraph) -> bytes:
    """The stored form of a graph."""
    return graph.SerializeToString(deterministic=True)


def graph_digest(graph: model_pb2.ModelGraph) -> Digest:
    """What names a graph."""
    return digest_of(graph_to_bytes(graph))


def dataset_refs(graph: model_pb2.ModelGraph) -> dict[str, DatasetRef]:
    """Data set and split for each of train, validation and test; all three are of one data set."""
    refs = {use: _dataset_ref(use, getattr(graph.data, use)) for use in ("train", "validation", "test")}
    if len({ref.name for ref in refs.values()}) != 1:
        raise _bad("", "data", "train, validation and test must be splits of one data set")
    return refs


def num_batches(graph: model_pb2.ModelGraph, num_samples: int) -> int:
    """N = passes x floor(samples / batch_size); each pass leaves out its remainder. Raises InvalidInput if that is 0."""
    count = int(graph.train.passes) * (num_samples // int(graph.train.batch_size))
    if count < 1:
        raise _bad("", "train.batch_size", f"{num_samples} samples do not fill one batch of {graph.train.batch_size}")
    return count


def stages_of_graph(graph: model_pb2.ModelGraph, registry: Registry) -> tuple[Stage, ...]:
    """The validated stages in topological order. Raises InvalidInput with ``vnode`` and ``field`` in its details."""
    _check_head(graph)
    vnodes, batch_size = [_vnode_spec(vnode) for vnode in graph.vnodes], int(graph.train.batch_size)
    stages = stages_of(vnodes, registry, tensor_spec(graph.input), tensor_spec(graph.target), int(graph.num_classes), batch_size)
    check_batch_size(stages, registry, batch_size)
    return stages


def tensor_spec(message: Any) -> TensorSpec:
    """A TensorSpec message as the kernel's dataclass. Raises InvalidInput."""
    shape = tuple(int(size) for size in message.shape)
    if message.dtype not in DTYPE_BYTES:
        raise _bad("", "dtype", f"unknown dtype {message.dtype!r}; known: {', '.join(sorted(DTYPE_BYTES))}")
    if len(shape) > limits.MAX_TENSOR_RANK or any(not 0 < size < 2**31 for size in shape):
        raise _bad("", "shape", f"shape {list(shape)} is not at most {limits.MAX_TENSOR_RANK} positive sizes")
    spec = TensorSpec(message.dtype, shape)
    if spec.bytes_per_sample > limits.MAX_TENSOR_BYTES:
        raise _bad("", "shape", f"one sample has {spec.bytes_per_sample} bytes, more than {limits.MAX_TENSOR_BYTES}")
    return spec


def config_dict(entries: Sequence[Any]) -> dict[str, ConfigValue]:
    """Configuration entries as a plain mapping. Raises InvalidInput on doubles."""
    result: dict[str, ConfigValue] = {}
    for entry in entries:
        if entry.name in result:
            raise _bad("", entry.name, f"field {entry.name!r} is given twice")
        result[entry.name] = _plain(entry.value)
    return result


def locate(text: str, vnode: str, field: str = "") -> int | None:
    """The line (from 1) in a TOML text of a VNode's ``field``, or else of its id; without a VNode, of a field named ``table.key``."""
    lines = text.splitlines()
    if vnode:
        own = re.compile(rf"""^\s*id\s*=\s*["']{re.escape(vnode)}["']""")
        start = next((index for index, line in enumerate(lines) if own.match(line)), None)
        head = (
            next((index for index in range(start, -1, -1) if lines[index].lstrip().startswith("[[")), 0)
            if start is not None
            else None
        )
    else:
        table, _, field = field.partition(".")
        start = None
        head = next((index for index, line in enumerate(lines) if line.strip() == f"[{table}]"), None)
    if head is None:
        return None
    key = re.compile(rf"^\s*{re.escape(field)}\s*=")
    for index in range(head + 1, len(lines)):
        if lines[index].lstrip().startswith("["):
            break
        if field and key.match(lines[index]):
            return index + 1
    return (start if start is not None else head) + 1


# ---- from tables ----------------------------------------------------------------------------------------------------------------


def _graph_from(text: str, parsed: Callable[[str], Any], form: str) -> model_pb2.ModelGraph:
    try:
        _bounded(len(text.encode()))
        table = parsed(text)
        json.dumps(table, ensure_ascii=False, default=str).encode()  # JSON can write half a character, which is no text
        if isinstance(table, dict):
            return graph_from_table(table)
    except (ValueError, RecursionError) as error:  # also of numbers of thousands of digits
        raise InvalidInput(f"not valid {form}: {error}", code="bad_graph", vnode="", field="") from error
    raise InvalidInput("a graph is an object with model, data, train and vnode", code="bad_graph", vnode="", field="")


def graph_from_table(table: Mapping[str, Any]) -> model_pb2.ModelGraph:
    """The graph of a parsed TOML or JSON document. Raises InvalidInput; unknown keys are refused."""
    _known("", table, {"model", "data", "train", "vnode"})
    model = _section(table, "model", {"name", "version", "input", "target", "num_classes"})
    data = _section(table, "data", {"train", "validation", "test"})
    train = _section(table, "train", {"passes", "batch_size", "seed", "codec", "evaluate_every", "merge_every"})
    graph = model_pb2.ModelGraph(
        name=_text("", "model.name", model.get("name")),
        version=_integer("", "model.version", model.get("version", 1), 1, 2**31),
        num_classes=_integer("", "model.num_classes", model.get("num_classes"), 2, 2**24),
    )
    for field in ("input", "target"):
        spec = _section(model, field, {"dtype", "shape"})
        message = getattr(graph, field)
        message.dtype = _text("", f"model.{field}.dtype", spec.get("dtype"))
        shape = spec.get("shape", [])
        if not isinstance(shape, list):
            raise _bad("", f"model.{field}.shape", "a shape is a list of sizes")
        message.shape.extend(_integer("", f"model.{field}.shape", size, 1, 2**31 - 1) for size in shape)
    for use in ("train", "validation", "test"):
        setattr(graph.data, use, _text("", f"data.{use}", data.get(use)))
    graph.train.passes = _integer("", "train.passes", train.get("passes", 1), 1, 10_000)
    graph.train.batch_size = _integer("", "train.batch_size", train.get("batch_size"), 1, 65_536)
    graph.train.seed = _integer("", "train.seed", train.get("seed", 0), 0, 2**63 - 1)
    graph.train.codec = _text("", "train.codec", train.get("codec", "auto"))
    graph.train.evaluate_every = _integer("", "train.evaluate_every", train.get("evaluate_every", 0), 0, 2**31)
    graph.train.merge_every = _integer("", "train.merge_every", train.get("merge_every", 0), 0, 65_536)
    entries = table.get("vnode", [])
    if not isinstance(entries, list) or len(entries) > limits.MAX_GRAPH_VNODES:
        raise _bad("", "vnode", f"vnode is a list of at most {limits.MAX_GRAPH_VNODES} tables")
    for entry in entries:
        _add_vnode(graph, entry)
    _check_head(graph)
    return graph


def _add_vnode(graph: model_pb2.ModelGraph, entry: Any) -> None:
    if not isinstance(entry, dict):
        raise _bad("", "vnode", "each vnode is a table")
    vnode_id = _text("", "vnode.id", entry.get("id"))
    known = {"id", "component", "config", "inputs", "objective", "optimizer", "replicas", "redundancy"}
    _known(vnode_id, entry, known)
    inputs = entry.get("inputs", [])
    if not isinstance(inputs, list) or len(inputs) > _MAX_LIST:
        raise _bad(vnode_id, "inputs", f"inputs is a list of at most {_MAX_LIST} names")
    vnode = graph.vnodes.add(id=vnode_id, inputs=[_text(vnode_id, "inputs", name) for name in inputs])
    vnode.component.name = _text(vnode_id, "component", entry.get("component"))
    _fill(vnode_id, vnode.component, entry.get("config", {}))
    if (objective := entry.get("objective")) is not None:
        if not isinstance(objective, dict):
            raise _bad(vnode_id, "objective", "an objective is a table with name and config")
        _known(vnode_id, objective, {"name", "config"})
        vnode.objective.name = _text(vnode_id, "objective", objective.get("name"))
        _fill(vnode_id, vnode.objective, objective.get("config", {}))
    if (optimizer := entry.get("optimizer")) is not None:
        if not isinstance(optimizer, dict):
            raise _bad(vnode_id, "optimizer", "an optimizer is a table with name and its fields")
        vnode.optimizer.name = _text(vnode_id, "optimizer", optimizer.get("name"))
        _fill(vnode_id, vnode.optimizer, {name: value for name, value in optimizer.items() if name != "name"})
    vnode.replicas = _replicas(vnode_id, entry.get("replicas", 1))
    if "redundancy" in entry:
        vnode.redundancy = _integer(vnode_id, "redundancy", entry["redundancy"], 1, limits.MAX_REDUNDANCY)


def _replicas(vnode_id: str, value: Any) -> int:
    """The number as it travels: 0 for `AUTO`."""
    if isinstance(value, str) and value != AUTO:
        raise _bad(vnode_id, "replicas", f"'replicas' must be a whole number from 1 to {MAX_REPLICAS} or {AUTO!r}, not {value!r}")
    return 0 if value == AUTO else _integer(vnode_id, "replicas", value, 1, MAX_REPLICAS)


def _fill(vnode: str, named: model_pb2.Named, config: Any) -> None:
    if not isinstance(config, dict) or len(config) > _MAX_LIST:
        raise _bad(vnode, "config", f"a configuration is a table of at most {_MAX_LIST} fields")
    for name in sorted(config):
        entry = named.config.add(name=name)
        _set(vnode, name, entry.value, config[name])


def _set(vnode: str, field: str, target: model_pb2.ConfigValue, value: Any) -> None:
    match value:
        case bool():
            target.flag = value
        case int() if -(2**63) <= value < 2**63:
            target.integer = value
        case float() if value - value == 0.0:
            target.number = value
        case str() if len(value) <= _MAX_TEXT:
            target.text = value
        case list() | tuple() if len(value) <= _MAX_LIST and not any(isinstance(item, list | tuple) for item in value):
            target.list.SetInParent()
            for item in value:
                _set(vnode, field, target.list.values.add(), item)
        case _:
            raise _bad(vnode, field, f"{str(value)[:80]!r} is not a flag, a finite number, a short text or a flat list of these")


def _plain(value: model_pb2.ConfigValue) -> ConfigValue:
    match value.WhichOneof("value"):
        case "flag":
            return value.flag
        case "integer":
            return int(value.integer)
        case "number":
            return value.number
        case "text":
            return value.text
        case "list":
            return tuple(_plain(item) for item in value.list.values)
        case _:
            raise _bad("", "config", "a configuration value is empty")


def _vnode_spec(vnode: model_pb2.VNodeSpec) -> VNodeSpec:
    check_name(vnode.id)
    configs: list[Config] = []
    for named in (vnode.component, vnode.objective, vnode.optimizer):
        try:
            configs.append(config_dict(named.config))
        except InvalidInput as error:
            raise _bad(vnode.id, error.details.get("field", "config"), error.message) from error
    return VNodeSpec(
        id=vnode.id, component=vnode.component.name, config=configs[0], inputs=tuple(vnode.inputs),
        objective=vnode.objective.name, objective_config=configs[1], optimizer=vnode.optimizer.name, optimizer_config=configs[2],
        replicas=int(vnode.replicas), redundancy=int(vnode.redundancy) or 1,
    )  # fmt: skip


def _check_head(graph: model_pb2.ModelGraph) -> None:
    _bounded(graph.ByteSize())
    check_name(graph.name)
    if not graph.vnodes:
        raise _bad("", "vnode", "the graph has no VNode")
    if len(graph.vnodes) > limits.MAX_GRAPH_VNODES:
        raise _bad("", "vnode", f"more than {limits.MAX_GRAPH_VNODES} VNodes")
    for vnode in graph.vnodes:
        check_name(vnode.id)
        if vnode.replicas > MAX_REPLICAS:
            raise _bad(vnode.id, "replicas", f"{vnode.replicas} replicas are more than {MAX_REPLICAS}")
    tensor_spec(graph.input)
    tensor_spec(graph.target)
    if graph.train.codec not in CODECS:
        raise _bad("", "train.codec", f"codec must be one of {', '.join(CODECS)}, not {graph.train.codec!r}")
    if graph.train.passes < 1 or graph.train.batch_size < 1 or graph.num_classes < 2:
        raise _bad("", "train", "passes and batch_size must be at least 1, num_classes at least 2")
    dataset_refs(graph)


def _dataset_ref(use: str, text: str) -> DatasetRef:
    match = re.fullmatch(r"dataset:([a-z0-9][a-z0-9_-]{0,62})#([a-z0-9][a-z0-9_-]{0,62})", text)
    if match is None:
        raise _bad(
            "", f"data.{use}", f"{text!r} is no split of a staged data set, dataset:<name>#<split>", _STAGE if "://" in text else ""
        )
    return DatasetRef(match[1], match[2])


def _section(table: Mapping[str, Any], name: str, known: set[str]) -> Mapping[str, Any]:
    section = table.get(name)
    if not isinstance(section, dict):
        raise _bad("", name, f"the table [{name}] is missing")
    for key in section:
        if key not in known:
            raise _bad("", f"{name}.{key}", f"[{name}]: {_unknown(str(key), known)}")
    return section


def _known(vnode: str, table: Mapping[str, Any], known: set[str]) -> None:
    for key in table:
        if key not in known:
            raise _bad(vnode, str(key), _unknown(str(key), known))


def _unknown(key: str, known: set[str]) -> str:
    return f"unknown key {key[:_MAX_TEXT]!r}{told_nearest(key, known)}; known: {', '.join(sorted(known))}"


def _text(vnode: str, field: str, value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_TEXT:
        raise _bad(vnode, field, f"{field!r} must be a text of 1 to {_MAX_TEXT} characters")
    return value


def _integer(vnode: str, field: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _bad(vnode, field, f"{field!r} must be a whole number from {low} to {high}, not {value!r}")
    return value


def _bounded(num_bytes: int) -> None:
    if num_bytes > limits.MAX_GRAPH_BYTES:
        raise _bad("", "", f"the graph has {num_bytes} bytes, more than {limits.MAX_GRAPH_BYTES}")


def _bad(vnode: str, field: str, message: str, remedy: str = "") -> InvalidInput:
    return InvalidInput(f"{vnode}: {message}" if vnode else message, code="bad_graph", remedy=remedy, vnode=vnode, field=field)
