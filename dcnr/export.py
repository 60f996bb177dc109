"""A trained model as files that outlive the network: plain weights, the graph, and how the stages chain. The same manifest gives the same bytes.

``model.safetensors`` holds ``<vnode>/<parameter or buffer>`` without optimiser and lineage; ``model.json`` lists the VNodes in the order in which they
are computed, with component, configuration and inputs; ``graph.json`` is the maintainer's graph as `dcnr.graph.graph_from_json` reads it. No pickle.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dcnr.crashpoints import reached
from dcnr.errors import Corrupt, Refused
from dcnr.graph import graph_digest, stages_of_graph
from dcnr.graph_text import graph_table, spec_table
from dcnr.ids import Digest, digest_of
from dcnr.specs import Registry
from dcnr.stages import Stage
from dcnr.v1 import model_pb2

FORMAT: Final = "dcnr-export-1"
FILES: Final = ("model.safetensors", "model.json", "graph.json", "README.txt")

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Export:
    """What was written. ``digest`` covers all files: SHA-256 over their names and digests, in the order of `FILES`."""

    directory: Path
    digest: Digest
    files: dict[str, Digest]
    num_parameters: int


@dataclass(frozen=True, slots=True)
class Weights:
    """One VNode's weights with the checkpoint they come from."""

    checkpoint: model_pb2.Checkpoint
    tensors: Mapping[str, Array]


def weights_of_state(data: bytes, stage: Stage, registry: Registry, checkpoint: model_pb2.Checkpoint) -> Weights:
    """The weights and running statistics in a state file, which must be exactly the checkpoint's. Raises Corrupt."""
    from vnode.state import parse
    from vnode.torch_stage import schema_of  # torch: shapes of this stage

    if digest_of(data) != checkpoint.digest:
        raise Corrupt(f"the state of {stage.id} does not match its digest", code="wrong_digest", vnode=stage.id)
    info, arrays = parse(data, schema_of(stage, registry))
    if [[int(i.first), int(i.end)] for i in checkpoint.lineage.intervals] != [list(pair) for pair in info.lineage.pairs()]:
        raise Corrupt(f"the manifest says another lineage of {stage.id} than its state", code="wrong_lineage", vnode=stage.id)
    return Weights(checkpoint, {name[2:]: array for name, array in arrays.items() if name[:2] in ("w/", "b/")})


def write_export(
    directory: Path, graph: model_pb2.ModelGraph, registry: Registry, weights: Mapping[str, Weights], *, manifest_digest: str
) -> Export:
    """Writes the four files into ``directory`` (made if missing): ``model.json`` is that of an earlier export, or absent, until all others are these.

    An export that was interrupted can be written again. Raises Refused where it cannot be written, and as `check_free`.
    """
    from safetensors.numpy import save

    tensors = {
        f"{vnode}/{name}": np.ascontiguousarray(array)
        for vnode, entry in sorted(weights.items())
        for name, array in sorted(entry.tensors.items())
    }
    stages = stages_of_graph(graph, registry)
    contents = {"model.safetensors": save(tensors)}
    model = _model_table(graph, stages, weights, manifest_digest, digest_of(contents["model.safetensors"]))
    contents["model.json"] = _json(model)
    contents["graph.json"] = _json(graph_table(graph))
    contents["README.txt"] = _readme(graph, manifest_digest).encode()
    check_free(directory)
    try:
        _written(directory, contents)
    except OSError as error:
        raise Refused(
            f"{directory} cannot be written: {error.strerror}",
            code="disk_trouble",
            remedy="free disk space, or choose another directory",
        ) from error
    files = {name: digest_of(contents[name]) for name in FILES}
    listing = "".join(f"{name} {files[name]}\n" for name in FILES)
    whole = Digest(hashlib.sha256(listing.encode()).hexdigest())
    parameters = sum(int(array.size) for entry in weights.values() for array in entry.tensors.values() if array.dtype.kind == "f")
    return Export(directory, whole, files, parameters)


def check_free(directory: Path) -> None:
    """Raises Refused (``export_exists``) where a file that is none of an export has the name of one that is to be written."""
    taken = [name for name in FILES if (directory / name).exists()]
    if taken and not _is_export(directory / "model.json") and not _is_export(_draft(directory, "model.json")):
        raise Refused(
            f"there is a {taken[0]} in {directory} already, which no export wrote",
            code="export_exists",
            remedy="choose another directory",
        )


def _is_export(path: Path) -> bool:
    try:
        table = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(table, dict) and table.get("format") == FORMAT


def _draft(directory: Path, name: str) -> Path:
    return directory / f".{name}.draft"


def _written(directory: Path, contents: Mapping[str, bytes]) -> None:
    """All drafts are there before the first file has its name, and that of ``model.json`` is to the end: by it half an export is known as one."""
    directory.mkdir(parents=True, exist_ok=True)
    drafts = {name: _draft(directory, name) for name in FILES}
    try:
        for name, draft in drafts.items():
            draft.write_bytes(contents[name])
    except OSError:
        for draft in drafts.values():
            with contextlib.suppress(OSError):
                draft.unlink()
        raise
    for name in sorted(FILES, key=lambda name: name == "model.json"):
        drafts[name].replace(directory / name)
        reached("export.written")


def _model_table(
    graph: model_pb2.ModelGraph,
    stages: tuple[Stage, ...],
    weights: Mapping[str, Weights],
    manifest_digest: str,
    weights_digest: str,
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "model": graph.name,
        "version": int(graph.version),
        "manifest": manifest_digest,
        "graph": graph_digest(graph),
        "weights": {"file": "model.safetensors", "sha256": weights_digest},
        "input": spec_table(graph.input),
        "target": spec_table(graph.target),
        "num_classes": int(graph.num_classes),
        "vnodes": _chain(stages),
        "exits": [stage.id for stage in stages],
        "checkpoints": {
            vnode: {
                "digest": entry.checkpoint.digest,
                "num_learned": sum(int(i.end - i.first) for i in entry.checkpoint.lineage.intervals),
            }
            for vnode, entry in sorted(weights.items())
        },
    }


def _chain(stages: tuple[Stage, ...]) -> list[dict[str, Any]]:
    """Every VNode once, each after those it reads from; those with weights have an objective, whose head is in the weights too."""
    chain: dict[str, dict[str, Any]] = {}
    for stage in stages:
        for operation in (*stage.operations, None, *stage.sinks):
            if operation is not None:
                chain.setdefault(
                    operation.id,
                    {
                        "id": operation.id, "component": operation.component, "config": dict(operation.config),
                        "inputs": list(operation.inputs), "output": spec_table(operation.output),
                    },
                )  # fmt: skip
                continue
            chain[stage.id] = {
                "id": stage.id, "component": stage.component, "config": dict(stage.config), "inputs": list(stage.component_inputs),
                "objective": {"name": stage.objective, "config": dict(stage.objective_config)}, "output": spec_table(stage.output),
            }  # fmt: skip
    return list(chain.values())


def _json(table: Mapping[str, Any]) -> bytes:
    return (json.dumps(table, indent=2, sort_keys=False, ensure_ascii=False) + "\n").encode()


def _readme(graph: model_pb2.ModelGraph, manifest_digest: str) -> str:
    return f"""{graph.name}, version {graph.version}: weights of manifest {manifest_digest}

model.safetensors  weights and running statistics, named <vnode>/<parameter>
model.json         the VNodes in the order in which they are computed: component, configuration, inputs, output shape;
                   the names under "exits" have a head of their own (<vnode>/objective.head.*), the last is the deepest
graph.json         the graph as its maintainers signed it

Load the weights with plain PyTorch:

    from safetensors.torch import load_file
    weights = load_file("model.safetensors")

For each VNode, values[id] = component(values of its inputs); "input" is the batch itself. Images come as in the data set; while a model is used,
batch normalisation takes the running statistics and random_shift and dropout do nothing. The examples' use_export.py is such a loader.
"""
