"""Whether a staged data set is what a graph was made for. Pure: an orchestrator refuses by it what it is asked to train, a maintainer's machine before that."""

from __future__ import annotations

from typing import Final

from dataservice.dataset_manifest import DatasetManifest
from dcnr.errors import InvalidInput
from dcnr.graph import dataset_refs, tensor_spec
from dcnr.v1 import model_pb2

FIELDS: Final = ("input", "target")


def check_fit(graph: model_pb2.ModelGraph, dataset: DatasetManifest) -> None:
    """The data have the graph's splits, its input and target of the same dtype and shape, and no class that it does not know.

    Raises InvalidInput with ``field`` in its details.
    """
    for use, ref in dataset_refs(graph).items():
        if not dataset.splits.get(ref.split):
            raise _error(
                f"data.{use}", f"data set {dataset.name!r} has no split {ref.split!r}; it has {', '.join(sorted(dataset.splits))}"
            )
    for name, wanted in zip(FIELDS, (tensor_spec(graph.input), tensor_spec(graph.target)), strict=True):
        spec = dataset.fields.get(name)
        if spec is None:
            raise InvalidInput(f"the data set has no field {name!r}", code="wrong_dataset", field=name)
        if (spec.dtype, tuple(spec.shape)) != (wanted.dtype, wanted.shape):
            raise _error(
                f"model.{name}",
                f"{wanted.dtype}{list(wanted.shape)} in the graph, {spec.dtype}{list(spec.shape)} in data set {dataset.name!r}",
            )
    classes = dataset.fields["target"].num_classes
    if classes > graph.num_classes:
        raise _error(
            "model.num_classes", f"{graph.num_classes} in the graph, and data set {dataset.name!r} has {classes} classes",
            f"set model.num_classes to {classes}",
        )  # fmt: skip


def _error(field: str, message: str, remedy: str = "") -> InvalidInput:
    return InvalidInput(f"{field}: {message}", code="bad_graph", remedy=remedy, vnode="", field=field)
