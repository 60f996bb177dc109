"""A torch module traced with `torch.export` on one example: the operations that it computes while it answers (no dropout, running statistics)."""

from __future__ import annotations

import contextlib
import io
import logging
import operator
import re
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind

from dcnr.errors import InvalidInput
from vnode.importing.operations import Array, Operation, Ref, Traced

_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+), in [^\n]*\n\s+([^\n]*)')
_TORCH: Final = str(Path(torch.__file__).parent)
_OURS: Final = str(Path(__file__).parent)
_MAX_LINE: Final = 120


def traced(module: nn.Module, example: Tensor) -> Traced:
    """What ``module`` computes for ``example``, batch first.

    Raises InvalidInput: ``module_failed`` where the module itself cannot take the example, ``not_traceable`` where what it does depends on the values
    (or torch.export knows another reason), ``bad_module`` for more than one result.
    """
    with _answering(module), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            module(example)
        except Exception as error:  # the maintainer's own code: whatever it raises is theirs to read
            raise InvalidInput(
                f"the module fails on the example: {_said(error)}", code="module_failed", where=_line_of(error)
            ) from error
        try:
            with _silence():
                program = torch.export.export(module, (example,), strict=False)
        except Exception as error:  # torch.export raises classes of a dozen private modules
            raise InvalidInput(
                f"torch.export cannot trace the module: {_said(error)} (at {_line_of(error)})", code="not_traceable", where=_line_of(error),
                remedy="let what is computed depend on shapes only: torch.where instead of if, and no .item()",
            ) from error  # fmt: skip
        return _records(program, example)


def _records(program: torch.export.ExportedProgram, example: Tensor) -> Traced:
    kept: dict[str, Tensor] = {}
    source = ""
    for spec in program.graph_signature.input_specs:
        name = str(getattr(spec.arg, "name", ""))
        if spec.kind is InputKind.USER_INPUT:
            source = name
        elif spec.target is not None:
            found = program.state_dict.get(spec.target, program.constants.get(spec.target))
            if isinstance(found, Tensor):
                kept[name] = found.detach()
    outputs = [value for node in program.graph.nodes if node.op == "output" for value in node.args[0]]
    if len(outputs) != 1 or not isinstance(outputs[0], fx.Node) or len(kept) != len(program.graph_signature.input_specs) - 1:
        raise InvalidInput(
            f"the module gives {len(outputs)} results; one tensor is wanted", code="bad_module", remedy="wrap it so that it takes and gives one tensor"
        )  # fmt: skip
    recorder = _Recorder(program.graph_module)
    recorder.run(*(kept.get(node.name, example) for node in program.graph.nodes if node.op == "placeholder"))
    fixed = set(kept)
    operations = []
    for node in program.graph.nodes:
        if node.op not in ("output", "get_attr"):
            drawn = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
            if node.op != "placeholder" and not drawn and all(parent.name in fixed for parent in node.all_input_nodes):
                fixed.add(node.name)
            operations.append(_operation(node, recorder.seen, fixed=node.name in fixed))
    values: dict[str, Array] = {name: value.numpy() for name, value in recorder.seen.items() if value.dtype is not torch.bfloat16}
    identities = {name: value.untyped_storage().data_ptr() for name, value in kept.items()}
    return Traced(tuple(operations), values, source, outputs[0].name, identities)


class _Recorder(fx.Interpreter):
    """Runs a graph and keeps every tensor as it was made: what is changed in place later is a copy here."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.seen: dict[str, Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Computes one node."""
        value = super().run_node(n)
        if isinstance(value, Tensor):
            self.seen[n.name] = value.detach().clone()
        return value


def _operation(node: fx.Node, seen: dict[str, Tensor], *, fixed: bool) -> Operation:
    value = seen.get(node.name)
    schema = getattr(node.target, "_schema", None)
    target = "getitem" if node.target is operator.getitem else str(node.target)
    return Operation(
        name=node.name, target=target, arguments=_arguments(node, schema), shape=tuple(value.shape) if value is not None else (),
        dtype=str(value.dtype).removeprefix("torch.") if value is not None else "", owner=_owner(node),
        where=_line(node.meta.get("stack_trace") or ""), fixed=fixed, in_place=bool(schema is not None and schema.is_mutable),
    )  # fmt: skip


def _arguments(node: fx.Node, schema: Any) -> dict[str, Any]:
    if node.op == "placeholder":
        return {}
    if schema is None:
        named = {str(index): value for index, value in enumerate(node.args)}
        return {name: _plain(value) for name, value in {**named, **node.kwargs}.items()}
    found: dict[str, Any] = {}
    for index, argument in enumerate(schema.arguments):
        if index < len(node.args):
            found[argument.name] = _plain(node.args[index])
        elif argument.name in node.kwargs:
            found[argument.name] = _plain(node.kwargs[argument.name])
        elif argument.has_default_value():
            found[argument.name] = _plain(argument.default_value)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, fx.Node):
        return Ref(value.name)
    if isinstance(value, list | tuple):
        return tuple(_plain(item) for item in value)
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)


def _owner(node: fx.Node) -> str:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]).removeprefix("L['self']").lstrip(".") if stack else ""


def _line(trace: str) -> str:
    """The last line of the maintainer's own source in a stack trace."""
    own = [found.groups() for found in _FRAME.finditer(trace) if not found[1].startswith((_TORCH, _OURS))]
    return f"{_shown(own[-1][0])}:{own[-1][1]}: {own[-1][2].strip()[:_MAX_LINE]}" if own else ""


def _line_of(error: BaseException) -> str:
    """The innermost line of the maintainer's own source that an error came through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith((_TORCH, _OURS, "<"))]
    return (
        f"{_shown(frames[-1].filename)}:{frames[-1].lineno}: {(frames[-1].line or '')[:_MAX_LINE]}" if frames else "an unknown line"
    )


def _shown(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else path.name


def _said(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


@contextmanager
def _silence() -> Iterator[None]:
    """What torch prints and logs of a graph that it cannot trace is in the error."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


@contextmanager
def _answering(module: nn.Module) -> Iterator[None]:
    """The module and all its parts in the mode in which they answer; afterwards as they were."""
    before = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, was in before.items():
            part.training = was
