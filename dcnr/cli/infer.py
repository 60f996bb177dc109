"""``dcnr infer``: asks the model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dcnr import limits
from dcnr.cli import output
from dcnr.cli.completion import among
from dcnr.cli.homes import HomeOption, JsonOption
from dcnr.cli.session import BootstrapOption, NetworkIdOption, NetworkOption, Session
from dcnr.errors import Corrupt, InvalidInput, Unavailable

if TYPE_CHECKING:
    from dcnr.sdk.asking import Answer
    from dcnr.sdk.client import AsyncClient

MAX_FILE_BYTES: Final = 16 * limits.MIB
ZIP: Final = b"PK"
"""With which an npz file begins."""
NPY: Final = b"\x93NUMPY"
MIN_DEADLINE_S: Final = 0.1
MAX_SHOWN: Final = 16
FIRST_VALUES: Final = 6
WeightsOption = Annotated[
    str,
    typer.Option(
        help="served: the newest released version; live: as they train now; named: --manifest.",
        autocompletion=among("served", "live", "named"),
    ),
]


def add(app: typer.Typer) -> None:
    """Puts the command into ``app``."""
    app.command()(infer)


def infer(
    model: Annotated[str, typer.Argument(help="Name of the model.")],
    source: Annotated[str, typer.Option("--input", help="Array, batch dimension first, as .npy; one for each source VNode: .npz; -: standard input.")],
    weights: WeightsOption = "served",
    manifest: Annotated[str, typer.Option(help="Digest of the version for --weights named.")] = "",
    exit_: Annotated[str, typer.Option("--exit", help="VNode whose readout is wanted; default: the deepest.")] = "",
    full_depth: Annotated[bool, typer.Option("--full-depth", help="Rather no answer than one of a shallower exit.")] = False,
    deadline_s: Annotated[float, typer.Option(min=MIN_DEADLINE_S, max=120, help="Seconds to wait.")] = 30.0,
    redundancy: Annotated[int, typer.Option(min=1, max=4, help="Independent ways that have to agree.")] = 1,
    exact: Annotated[bool, typer.Option("--exact", help="No lossy codec between stages, whatever the model's edges declare.")] = False,
    home: HomeOption = None, network: NetworkOption = None, bootstrap: BootstrapOption = None, network_id: NetworkIdOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Ask the model. The answer comes with its version, its depth, and who computed it.

    Example: dcnr infer mnist --input images.npy
    """
    from dataclasses import replace

    from dcnr.sdk.asking import WAITED_FOR, Ask

    array = read_arrays(source)
    asked = Ask(model, weights, manifest, exit_, full_depth, deadline_s, redundancy, exact, patient=True)

    async def work(client: AsyncClient) -> Answer:
        try:
            return await client.forward(array, replace(asked, patient=False))
        except Unavailable as error:
            if error.code not in WAITED_FOR:
                raise
            output.say(f"{error.message}: asked again for at most {deadline_s:g} s")
        return await client.forward(array, asked)

    answer = Session(home, network, bootstrap, network_id).run(work)
    output.emit(_data(answer), lambda: _text(answer), as_json=as_json)


def read_arrays(source: str) -> Any:
    """The array in a file (`-`: standard input), or its arrays by name. Raises InvalidInput."""
    import io

    import numpy as np

    from dataservice.staging import BAD_ARRAY, npz_in

    try:
        if source == "-":
            data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            with Path(source).open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise InvalidInput(f"{source} has more than {MAX_FILE_BYTES} bytes", code="input_too_large")
        return npz_in(io.BytesIO(data), source) if data.startswith(ZIP) else np.load(io.BytesIO(data), allow_pickle=False)
    except Corrupt as error:
        raise InvalidInput(error.message, code="bad_input", remedy="numpy.savez(FILE, NAME=array)") from None
    except (OSError, EOFError, *BAD_ARRAY) as error:
        why = (
            error if isinstance(error, OSError) or data.startswith(NPY) else "it does not begin as one"
        )  # numpy takes it for a pickle then
        raise InvalidInput(f"{source} cannot be read as .npy: {why}", code="bad_input", remedy="numpy.save(FILE, array)") from None


def _data(answer: Answer) -> dict[str, Any]:
    from dcnr.sdk.plain import plain

    return {
        "model": answer.model, "manifest": answer.manifest, "exit": answer.exit, "deepest": answer.deepest, "degraded": answer.degraded,
        "degraded_reason": answer.degraded_reason, "dtype": answer.output.dtype.name, "shape": list(answer.output.shape),
        "output": answer.output.tolist(), "stages": [plain(stage) for stage in answer.stages], "total_s": answer.total_s,
        "num_ways": answer.num_ways, "num_agreeing": answer.num_agreeing,
    }  # fmt: skip


def _text(answer: Answer) -> str:
    rows = answer.output.reshape(len(answer.output), -1)
    lines = [
        f"{number}: {int(row.argmax())}  ({', '.join(f'{value:.4g}' for value in row[:FIRST_VALUES])}{', ...' if len(row) > FIRST_VALUES else ''})"
        for number, row in enumerate(rows[:MAX_SHOWN])
    ]
    if len(rows) > MAX_SHOWN:
        lines.append(f"... {len(rows) - MAX_SHOWN} more: --json has them all")
    version = f"version {answer.manifest}" if answer.manifest else "live weights"
    lines.append(f"{version}, exit {answer.exit} of {answer.deepest}, {1000 * answer.total_s:.0f} ms")
    if answer.degraded:
        lines.append(f"not the exit that was asked for: {answer.degraded_reason}")
    if answer.num_agreeing > 1:
        lines.append(f"{answer.num_agreeing} independent ways agree")
    table = [
        (stage.vnode, output.short(stage.pnode_id), stage.step, f"{1000 * stage.computed_s:.1f} ms") for stage in answer.stages
    ]
    lines.append(output.table(("vnode", "node", "step", "computed"), table))
    return "\n".join(lines)
