"""Components and objectives from outside the tree, from the files and modules that the configuration of this machine names.

Whatever is named is run with all that its process may do, so the names come from whoever runs the process and from nobody else: a job names only what a
registry holds already. Like our own, a spec imports torch nowhere but in ``build``.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from dcnr.errors import InvalidInput
from dcnr.ids import check_name
from dcnr.specs import ComponentSpec, ObjectiveSpec

ATTRIBUTE: Final = "SPEC"
"""What a file or module must have: a spec, or a tuple of them."""
_REMEDY: Final = f"end it with {ATTRIBUTE} = YourSpec(), or a tuple of them; see docs/reference/components.md"

Found = tuple[str, ComponentSpec | ObjectiveSpec]


def outside_specs(sources: Iterable[str]) -> list[Found]:
    """The specs of each source with its source, in that order. A source is a path (it ends with ``.py``) or the name of an importable module.

    Raises InvalidInput: ``component_not_found``, ``bad_component``.
    """
    return [(source, _checked(spec, source)) for source in dict.fromkeys(sources) for spec in _specs(source)]


def is_component(spec: ComponentSpec | ObjectiveSpec) -> bool:
    """Whether it stands among the components: those say whether they have weights."""
    return isinstance(getattr(spec, "stateful", None), bool)


def _specs(source: str) -> tuple[Any, ...]:
    had_torch = "torch" in sys.modules
    module = _from_file(source) if source.endswith(".py") else _from_name(source)
    if "torch" in sys.modules and not had_torch:
        raise _bad(
            source, "imports torch as soon as it is loaded", "import torch inside build(): the daemon reads specs and has no torch"
        )
    held = getattr(module, ATTRIBUTE, None)
    specs = tuple(held) if isinstance(held, tuple | list) else (held,)
    if held is None or not specs:
        raise _bad(source, f"has no {ATTRIBUTE}", _REMEDY)
    return specs


def _from_file(source: str) -> ModuleType:
    path = Path(source).expanduser().absolute()
    if not path.is_file():
        raise _not_found(source, f"there is no file {path}")
    name = f"dcnr_outside_{sha256(str(path).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # it ends with .py
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # somebody else's code: whatever it raises, the one who named it is told
        del sys.modules[name]
        raise _failed(source, error) from error
    return module


def _from_name(source: str) -> ModuleType:
    if not all(part.isidentifier() for part in source.split(".")):
        raise _not_found(source, "it is neither a path that ends with .py nor the name of a module")
    try:
        return importlib.import_module(source)
    except ModuleNotFoundError as error:
        if error.name and (source == error.name or source.startswith(f"{error.name}.")):
            raise _not_found(source, f"this Python finds no module {error.name!r}") from error
        raise _failed(source, error) from error
    except Exception as error:  # as above
        raise _failed(source, error) from error


def _checked(spec: Any, source: str) -> ComponentSpec | ObjectiveSpec:
    if isinstance(spec, type):
        raise _bad(source, f"has the class {spec.__name__} where a spec must be", f"write {spec.__name__}()")
    missing = [name for name in ("check", "build") if not callable(getattr(spec, name, None))]
    if missing or not isinstance(getattr(spec, "name", None), str):
        raise _bad(source, f"has a {type(spec).__name__} without {' and '.join(missing or ['name'])} where a spec must be", _REMEDY)
    try:
        check_name(spec.name)
    except InvalidInput as error:
        raise _bad(source, f"has a spec whose name nobody could use: {error.message}", "give it another name") from error
    return spec  # type: ignore[no-any-return]


def _not_found(source: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"components: {source!r} cannot be loaded: {why}", code="component_not_found",
        remedy="name a file that ends with .py, or a module that is installed for this Python, or take it out of the setting components", source=source,
    )  # fmt: skip


def _failed(source: str, error: Exception) -> InvalidInput:
    alone = f"python {source}" if source.endswith(".py") else f"python -c 'import {source}'"
    return _bad(source, f"fails while it is loaded: {type(error).__name__}: {error}", f"{alone} shows where; mend it")


def _bad(source: str, why: str, remedy: str) -> InvalidInput:
    return InvalidInput(f"components: {source!r} {why}", code="bad_component", remedy=remedy, source=source)
