"""The allow-list of what a graph may name: explicit tables of our own, and outside entry points only where the caller lists
them by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any

from dcnr.errors import InvalidInput, Refused
from dcnr.ids import check_name
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

COMPONENT_GROUP = "dcnr.components"
OBJECTIVE_GROUP = "dcnr.objectives"

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


def registry_with(base: Registry, *, components: Iterable[str] = (), objectives: Iterable[str] = ()) -> Registry:
    """``base`` and the named entry points of `COMPONENT_GROUP` and `OBJECTIVE_GROUP`, loaded from what is installed on this
    machine.

    The names come from the volunteer's own configuration, never from the wire; an entry point's value is the spec itself.
    Raises InvalidInput (bad or
    taken name) and Refused with code ``component_not_installed``.
    """
    return Registry(
        components={**base.components, **_outside(COMPONENT_GROUP, components, base.components)},
        objectives={**base.objectives, **_outside(OBJECTIVE_GROUP, objectives, base.objectives)},
        optimizers=base.optimizers,
    )


def _outside(group: str, names: Iterable[str], taken: Mapping[str, object]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in sorted(set(names)):
        check_name(name)
        if name in taken:
            raise InvalidInput(f"{name!r} is one of our own and cannot be replaced", code="name_taken", field=group)
        matches = list(entry_points(group=group, name=name))
        if len(matches) != 1:
            raise Refused(
                f"{len(matches)} installed packages offer {name!r} in {group}",
                code="component_not_installed",
                remedy="install exactly one package that declares this entry point",
            )
        spec = matches[0].load()
        if getattr(spec, "name", None) != name:
            raise InvalidInput(f"the entry point {name!r} holds a spec of another name", code="bad_entry_point", field=group)
        found[name] = spec
    return found
