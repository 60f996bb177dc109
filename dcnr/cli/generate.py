"""``dcnr generate``: the model writes."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dcnr.cli import output
from dcnr.cli.homes import HomeOption, JsonOption
from dcnr.cli.infer import WeightsOption
from dcnr.cli.session import BootstrapOption, NetworkIdOption, NetworkOption, Session
from dcnr.errors import InvalidInput

if TYPE_CHECKING:
    from dcnr.sdk.client import AsyncClient
    from dcnr.texts import Part


def add(app: typer.Typer) -> None:
    """Puts the command into ``app``."""
    app.command()(generate)


def generate(
    model: Annotated[str, typer.Argument(help="Name of the model.")],
    prompt: Annotated[str, typer.Option(help="What the text begins with; -: standard input.")],
    max_tokens: Annotated[int, typer.Option(min=1, max=4096, help="Bytes to be written at most.")] = 128,
    temperature: Annotated[float, typer.Option(min=0, max=10, help="0: the likeliest each time.")] = 0.0,
    top_p: Annotated[float, typer.Option(min=0, max=1, help="Only the likeliest that hold this probability, above 0.")] = 1.0,
    seed: Annotated[int | None, typer.Option(min=0, help="The same seed and version write the same text.", show_default=False)] = None,
    stop: Annotated[list[str] | None, typer.Option(help="The text ends before it. May be repeated.")] = None,
    weights: WeightsOption = "served",
    manifest: Annotated[str, typer.Option(help="Digest of the version for --weights named.")] = "",
    exit_: Annotated[str, typer.Option("--exit", help="VNode whose exit writes; default: the deepest.")] = "",
    full_depth: Annotated[bool, typer.Option("--full-depth", help="Rather no text than one of a shallower exit.")] = False,
    deadline_s: Annotated[float, typer.Option(min=0.1, max=600, help="Seconds for the whole text.")] = 120.0,
    home: HomeOption = None, network: NetworkOption = None, bootstrap: BootstrapOption = None, network_id: NetworkIdOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Let the model write. The text as it comes, then its version and its depth on standard error.

    Example: dcnr generate python-bytes --prompt "def main(" --max-tokens 80
    """
    from dcnr.sdk.writing import Write

    wanted = Write(model, max_tokens, temperature, top_p, seed, tuple(stop or ()), weights, manifest, exit_, full_depth, deadline_s)
    wanted.check()
    begins = _read() if prompt == "-" else os.fsencode(prompt)

    async def work(client: AsyncClient) -> list[Part]:
        parts: list[Part] = []
        async for part in client.generate(begins, wanted):
            parts.append(part)
            if not as_json:
                output.write(part.text)
        return parts

    parts = Session(home, network, bootstrap, network_id).run(work)
    if as_json:
        output.emit(_data(parts), str, as_json=True)
    else:
        output.write("\n")
        output.say(_told(parts[-1]))


def _read() -> bytes:
    from dcnr.limits import MAX_PROMPT_BYTES

    data = sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1)
    if len(data) > MAX_PROMPT_BYTES:
        raise InvalidInput(f"a prompt has at most {MAX_PROMPT_BYTES} bytes", code="bad_generation")
    return data


def _data(parts: list[Part]) -> dict[str, Any]:
    from dcnr.sdk.plain import plain

    last = parts[-1].said
    return {
        "text": "".join(part.text for part in parts), "finish_reason": last.finish_reason, "model": last.model, "manifest": last.manifest_digest,
        "exit": last.exit, "deepest": last.deepest, "degraded": last.degraded, "degraded_reason": last.degraded_reason, "seed": last.seed,
        "num_prompt_tokens": last.num_prompt_tokens, "num_tokens": last.num_tokens, "num_passes": last.num_passes,
        "num_drafted": last.num_drafted, "num_accepted": last.num_accepted, "num_close": last.num_close,
        "stages": [plain(stage) for stage in last.stages],
    }  # fmt: skip


def _told(part: Part) -> str:
    said = part.said
    version = f"version {said.manifest_digest}" if said.manifest_digest else "live weights"
    told = (
        f"{version}, exit {said.exit} of {said.deepest}, {said.num_tokens} tokens in {said.num_passes} passes, {said.finish_reason}"
    )
    return f"{told}; not the exit that was asked for: {said.degraded_reason}" if said.degraded else told
