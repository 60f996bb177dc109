"""``dcnr model import``: a module of torch as a graph. The maintainer's own code runs here, and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dcnr.cli import output
from dcnr.cli.homes import ComponentsOption, HomeOption, JsonOption
from dcnr.errors import InvalidInput, Refused

if TYPE_CHECKING:
    from vnode.importing.model import Chosen, Imported

SEED: Final = 0
"""Of an example that is made here."""
_NUM_SAMPLES: Final = 4


def add(app: typer.Typer) -> None:
    """Puts the command into ``app``."""
    app.command(name="import")(import_model)


def import_model(
    source: Annotated[str, typer.Argument(help="FILE.py:FACTORY, a function without arguments that gives a torch.nn.Module, or (module, example).")],
    out: Annotated[Path | None, typer.Option(help="Where the graph goes; default: model.toml, unless there is one.", show_default=False)] = None,
    weights: Annotated[Path | None, typer.Option(help="New file for the module's weights, for: dcnr model submit --weights.", show_default=False)] = None,
    name: Annotated[str, typer.Option(help="Of the model; default: that of the factory.")] = "",
    dataset: Annotated[str, typer.Option(help="Name of the staged data; default: that of the model.")] = "",
    shape: Annotated[str, typer.Option("--input", help="Shape of one sample, 1x28x28, where the factory gives no example.")] = "",
    as_bytes: Annotated[bool, typer.Option("--bytes", help="The input is bytes of a text.")] = False,
    classes: Annotated[int, typer.Option(min=0, help="0: as many as the module's last dimension.")] = 0,
    objective: Annotated[str, typer.Option(help="Of every VNode with weights.")] = "local_ce",
    optimizer: Annotated[str, typer.Option(help="sgd or adamw; default: adamw for texts, else sgd.")] = "",
    lr: Annotated[float, typer.Option(min=0, help="Learning rate; 0: the usual one.")] = 0.0,
    passes: Annotated[int, typer.Option(min=1, help="Trips through the data.")] = 1,
    batch_size: Annotated[int, typer.Option(min=1)] = 64,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    components: ComponentsOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Turn a torch.nn.Module into a graph. Every operation that no component stands for is named with its line.

    Example: dcnr model import net.py:build --input 1x28x28 --weights net.safetensors && dcnr model validate model.toml
    """
    from dcnr.cli.session import Session
    from vnode.importing.model import Chosen, from_torch  # torch
    from vnode.registry import registry_with

    graph = out or Path("model.toml")
    if out is None and graph.exists():
        raise Refused(
            "there is a model.toml here already", code="graph_exists", remedy="--out model.toml replaces it, or name another file"
        )
    if weights is not None and (weights.exists() or weights.absolute() == graph.absolute()):
        why = "is there already" if weights.exists() else "is where the graph goes"
        raise Refused(f"{weights} {why}: it is not replaced", code="weights_exist", remedy="name another file, or remove that one")
    registry = registry_with(Session(home, None, None, components=components).components)
    file, _, factory = source.rpartition(":")
    module, example = _made(Path(file), factory, shape, as_bytes=as_bytes)
    model = name or re.sub(r"[^a-z0-9_-]", "-", factory.lower()).strip("_-") or "imported"
    chosen = Chosen(
        name=model, dataset=dataset, passes=passes, batch_size=batch_size, seed=seed, objective=objective, num_classes=classes,
        optimizer=_optimizer(optimizer, lr),
    )  # fmt: skip
    _written(from_torch(module, example, chosen, registry=registry), chosen, graph, weights, as_json=as_json)


def _written(imported: Imported, chosen: Chosen, out: Path, weights: Path | None, *, as_json: bool) -> None:
    from dcnr.sdk.weights import write_imported

    write_imported(imported, out, weights)
    rows = [
        (vnode.id, vnode.component.name, ", ".join(vnode.inputs), vnode.objective.name or "-", ", ".join(imported.nodes[vnode.id]))
        for vnode in imported.graph.vnodes
    ]
    data = {
        "model": chosen.name, "graph": str(out), "weights": str(weights) if weights else "", "answer": imported.answer,
        "difference": imported.difference, "notes": list(imported.notes),
        "vnodes": [{"vnode": row[0], "component": row[1], "operations": list(imported.nodes[row[0]])} for row in rows],
    }  # fmt: skip

    def text() -> str:
        carried = (
            f"weights in {weights}"
            if weights
            else "weights are not carried over: training begins from the seed (--weights FILE carries them)"
        )
        lines = [
            output.table(("vnode", "component", "reads", "objective", "operations"), rows),
            f"wrote {out}; {carried}",
            f"the graph computes what the module computes: {imported.difference:.1g} apart at most",
            *(f"note: {note}" for note in imported.notes),
            f"next: dcnr model validate {quote(str(out))}",
        ]
        return "\n".join(lines)

    output.emit(data, text, as_json=as_json)


def _made(file: Path, factory: str, shape: str, *, as_bytes: bool) -> tuple[Any, Any]:
    """The module and an example of its input."""
    made = _factory(file, factory)()
    if isinstance(made, tuple) and len(made) == 2:
        return made
    import numpy as np

    sides = shape.split("x") if shape else []
    if not sides or not all(side.isdecimal() and 0 < int(side) < 2**31 for side in sides):
        raise InvalidInput(
            "the shape of the input is not known", code="bad_example", remedy="let the factory give (module, example), or give --input 1x28x28"
        )  # fmt: skip
    size = (_NUM_SAMPLES, *map(int, sides))
    rng = np.random.default_rng(SEED)
    return made, rng.integers(0, 256, size) if as_bytes else rng.standard_normal(size, dtype=np.float32)


def _factory(file: Path, factory: str) -> Callable[[], Any]:
    """The maintainer's function. Their file is run as ``python FILE`` would: with its own directory to import from."""
    import importlib.util
    import sys

    if not file.is_file() or not factory.isidentifier():
        raise InvalidInput(f"there is no {file}:{factory}", code="no_factory", remedy="give FILE.py:FUNCTION")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"{file} is no Python file", code="no_factory", remedy="give FILE.py:FUNCTION")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent.resolve()))
    spec.loader.exec_module(module)
    found = getattr(module, factory, None)
    if not callable(found):
        raise InvalidInput(f"{file} has no function {factory!r}", code="no_factory", remedy="give FILE.py:FUNCTION")
    return found  # type: ignore[no-any-return]


def _optimizer(name: str, lr: float) -> dict[str, Any] | None:
    from vnode.importing.model import ADAMW, SGD

    if not name and not lr:
        return None
    base = {"": SGD, "sgd": SGD, "adamw": ADAMW}.get(name)
    if base is None:
        raise InvalidInput(f"{name!r} is none of sgd, adamw", code="bad_optimizer")
    return {**base, **({"lr": lr} if lr else {})}
