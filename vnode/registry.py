"""The allow-list of what a graph may name: explicit tables of our own, and what is outside the tree only where the caller names the file or module."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dcnr.errors import InvalidInput
from dcnr.specs import ComponentSpec, ObjectiveSpec, Registry
from vnode.components import (
    add,
    average_pool,
    byte_embedding,
    concat,
    conv_block,
    dropout,
    flatten,
    gelu,
    linear,
    linear_block,
    random_shift,
    relu,
    reshape,
    transformer_block,
)
from vnode.objectives import local_ce, predsim
from vnode.optimizers import AdamW, Sgd
from vnode.outside import is_component, outside_specs

_COMPONENTS: tuple[ComponentSpec, ...] = (
    add.SPEC,
    average_pool.SPEC,
    byte_embedding.SPEC,
    concat.SPEC,
    conv_block.SPEC,
    dropout.SPEC,
    flatten.SPEC,
    gelu.SPEC,
    linear.SPEC,
    linear_block.SPEC,
    random_shift.SPEC,
    relu.SPEC,
    reshape.SPEC,
    transformer_block.SPEC,
)
_OBJECTIVES: tuple[ObjectiveSpec, ...] = (local_ce.SPEC, predsim.SPEC)


def default_registry() -> Registry:
    """What ships with this package. Imports no torch."""
    return Registry(
        components={spec.name: spec for spec in _COMPONENTS},
        objectives={spec.name: spec for spec in _OBJECTIVES},
        optimizers={"sgd": Sgd(), "adamw": AdamW()},
    )


def registry_with(sources: Iterable[str]) -> Registry:
    """`default_registry` and the specs in ``sources``: files and modules that this machine's own configuration names, never the wire.

    Raises InvalidInput: ``name_taken``, and what `vnode.outside.outside_specs` raises.
    """
    base = default_registry()
    tables: dict[str, dict[str, Any]] = {"component": dict(base.components), "objective": dict(base.objectives)}
    places: dict[tuple[str, str], str] = {}
    for source, spec in outside_specs(sources):
        kind = "component" if is_component(spec) else "objective"
        if spec.name in tables[kind]:
            owner = places.get((kind, spec.name), "")
            raise InvalidInput(
                f"components: {source!r} has the {kind} {spec.name!r}, a name that {owner or 'one of our own'} has already", code="name_taken",
                remedy="give it another name: what a name means must be the same on every machine", source=source,
            )  # fmt: skip
        tables[kind][spec.name], places[kind, spec.name] = spec, source
    return Registry(components=tables["component"], objectives=tables["objective"], optimizers=base.optimizers)
