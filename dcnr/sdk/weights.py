"""First weights that a maintainer brings instead of what the seed gives, and an imported module as files: its graph, its weights as safetensors."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dataservice.staging import read_safetensors
from dcnr.crashpoints import reached
from dcnr.errors import InvalidInput, Refused
from dcnr.graph_text import graph_to_toml

if TYPE_CHECKING:
    from vnode.importing.model import Imported

Array = npt.NDArray[Any]
FirstWeights = Mapping[str, Mapping[str, Array]]
"""By VNode, then by the name of a parameter or buffer: what checkpoint 0 holds instead of what the seed gives."""


def write_imported(imported: Imported, graph: Path, weights: Path | None) -> None:
    """Writes the graph as TOML, and unless None the weights for ``submit``. Raises Refused (``disk_trouble``)."""
    from safetensors.numpy import save

    remarks = [f"Imported from a torch.nn module: {imported.graph.name}.", *imported.notes]
    _write(graph, graph_to_toml(imported.graph, remarks=tuple(remarks)).encode())
    if weights is not None:
        named = {
            f"{vnode}/{name}": np.ascontiguousarray(array) for vnode, own in imported.weights.items() for name, array in own.items()
        }
        _write(weights, save(named))


def _write(path: Path, data: bytes) -> None:
    """Whole, or as it was before."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_bytes(data)
        reached("import.drafted")
        draft.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # where no directory is there is no draft
            draft.unlink()
        raise Refused(f"{path} cannot be written: {error.strerror}", code="disk_trouble") from error


def read_weights(path: Path) -> dict[str, dict[str, Array]]:
    """What `write_imported` wrote, or any safetensors file with names ``<vnode>/<parameter>``. Raises Corrupt, InvalidInput."""
    found: dict[str, dict[str, Array]] = {}
    for name, array in read_safetensors(path).items():
        vnode, separator, own = name.partition("/")
        if not separator:
            raise InvalidInput(f"{name!r} in {path} is not named <vnode>/<parameter>", code="weights_do_not_fit")
        found.setdefault(vnode, {})[own] = array
    return found
