"""``dcnr job``: where jobs stand, why, pausing one, and calling one off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dcnr.cli import output
from dcnr.cli.homes import HomeOption, JsonOption
from dcnr.cli.session import BootstrapOption, KeyOption, NetworkIdOption, NetworkOption, Session
from dcnr.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from pathlib import Path

    from dcnr.sdk.client import AsyncClient
    from dcnr.v1 import orchestrator_pb2

app = typer.Typer(help="Training jobs: follow, explain, pause, cancel.", no_args_is_help=True, rich_markup_mode=None)

ModelOption = Annotated[str, typer.Option("--model", help="Name of the model; empty: look through all.")]
FAILED_EXIT = 1


@app.command("list")
def list_jobs(
    model: ModelOption = "", home: HomeOption = None, network: NetworkOption = None, bootstrap: BootstrapOption = None,
    network_id: NetworkIdOption = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """All jobs, newest first. The manifest of each, and which of a model's is the newest: that one answers, unless another is released."""
    from dcnr.cli.trained import newest_made
    from dcnr.sdk.plain import plain, word
    from dcnr.v1 import model_pb2

    async def work(client: AsyncClient) -> list[orchestrator_pb2.JobView]:
        return await client.jobs(model)

    jobs = Session(home, network, bootstrap, network_id).run(work)
    made = newest_made(jobs)

    def running(job: orchestrator_pb2.JobView) -> str:
        return output.duration(job.running_s) if job.running_s else "-"

    def manifest(job: orchestrator_pb2.JobView) -> str:
        return f"{job.manifest_digest[:12] or '-'}{' (newest)' if made.get(job.model) == job.job_id else ''}"

    def text() -> str:
        rows = [
            (
                job.job_id, job.model, word(model_pb2.JobState, job.state), int(job.num_batches), running(job), manifest(job),
                job.outcome.reason or job.held_up,
            )
            for job in jobs
        ]  # fmt: skip
        return output.table(("job", "model", "state", "batches", "running", "manifest", "reason"), rows)

    output.emit([plain(job) for job in jobs], text, as_json=as_json)


@app.command()
def watch(
    job: Annotated[str, typer.Argument(help="Id of the job; default: the newest.")] = "",
    model: ModelOption = "",
    interval: Annotated[float, typer.Option(min=0.2, max=60.0, help="Seconds between views.")] = 1.0,
    home: HomeOption = None, network: NetworkOption = None, bootstrap: BootstrapOption = None, network_id: NetworkIdOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Follow a job until it ends. Who holds what, batches, losses, accuracy per depth, events with reasons, ETA. Exits with 1 unless it completed.

    With --json: one view per line, newest last. In a pipe: plain lines.
    """
    import json

    from dcnr.cli.trained import told_of_released, told_of_unfinished
    from dcnr.cli.unnoticed import told_of_release
    from dcnr.cli.watching import Watcher, watcher
    from dcnr.sdk.plain import plain
    from dcnr.v1 import model_pb2, orchestrator_pb2

    async def work(client: AsyncClient) -> int:
        job_id = job or await _newest(client, model)
        view: Watcher = watcher(silent=as_json)
        newest = orchestrator_pb2.JobView()
        with view:
            async for message in client.watch(job_id, model=model, interval_s=interval):
                newest = message.job
                if as_json:
                    print(json.dumps(plain(message), ensure_ascii=False), flush=True)  # noqa: T201
                view.show(message)
        view.finish()
        if newest.outcome.manifest_digest and not as_json:
            unnoticed, told = await told_of_release(client, newest.model, newest.outcome.manifest_digest)
            jobs = await client.jobs(newest.model) if newest.state != model_pb2.JOB_STATE_COMPLETED else []
            then = told_of_released(await client.released(newest.model), newest.outcome.manifest_digest)
            then = then or told_of_unfinished(jobs, newest, audits_drawn=client.policy.audits_drawn)
            for line in filter(None, (told if unnoticed is not None else "", then)):
                print(line, flush=True)  # noqa: T201
        return int(newest.state)

    ended = Session(home, network, bootstrap, network_id).run(work)
    if ended != model_pb2.JOB_STATE_COMPLETED:
        raise typer.Exit(FAILED_EXIT)


@app.command()
def cancel(
    job: Annotated[str, typer.Argument(help="Id of the job.")],
    reason: Annotated[str, typer.Option(help="Why, for the record.")] = "",
    key: KeyOption = None, model: ModelOption = "", home: HomeOption = None, network: NetworkOption = None,
    bootstrap: BootstrapOption = None, network_id: NetworkIdOption = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Call a job off, signed by maintainers. It is recorded at once; how the job ended is what its end says.

    What it has learned by then stays the newest manifest, which answers and is exported unless another is released: dcnr job watch says the ways on and back.
    """
    from dcnr.sdk.plain import plain

    session = Session(home, network, bootstrap, network_id)
    keys = session.keys(key)

    async def work(client: AsyncClient) -> orchestrator_pb2.CancelJobResponse:
        return await client.cancel(job, keys, model=model, reason=reason)

    answer = session.run(work)
    output.emit(
        plain(answer),
        lambda: _cancelled_text(job, answer.state),
        as_json=as_json,
    )


@app.command()
def pause(
    job: Annotated[str, typer.Argument(help="Id of the job.")],
    reason: Annotated[str, typer.Option(help="Why, for the record.")] = "",
    key: KeyOption = None, model: ModelOption = "", home: HomeOption = None, network: NetworkOption = None,
    bootstrap: BootstrapOption = None, network_id: NetworkIdOption = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Call a job to a halt, signed by maintainers: nobody learns, no deadline runs, it still answers. Pausing it again changes nothing.

    Example: dcnr job pause mnist-1 --reason "the data are looked at"
    """
    _say(Session(home, network, bootstrap, network_id), key, job, model, reason, paused=True, as_json=as_json)


@app.command()
def resume(
    job: Annotated[str, typer.Argument(help="Id of the job.")],
    reason: Annotated[str, typer.Option(help="Why, for the record.")] = "",
    key: KeyOption = None, model: ModelOption = "", home: HomeOption = None, network: NetworkOption = None,
    bootstrap: BootstrapOption = None, network_id: NetworkIdOption = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Let a paused job go on, signed by maintainers, from where it stood."""
    _say(Session(home, network, bootstrap, network_id), key, job, model, reason, paused=False, as_json=as_json)


@app.command()
def explain(
    subject: Annotated[str, typer.Argument(help="A VNode's name, or a node's id, whole or its first 8 digits.")],
    batch: Annotated[int | None, typer.Option(min=0, help="Who needs this batch, from whom, since when.", show_default=False)] = None,
    model: ModelOption = "", home: HomeOption = None, network: NetworkOption = None, bootstrap: BootstrapOption = None,
    network_id: NetworkIdOption = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Why a VNode or a node is as it is. Where a VNode is and what it waits for; why a node is in its state, and hosts none of a VNode.

    Example: dcnr job explain conv2 --batch 118
    """
    from dcnr.sdk.plain import plain
    from dcnr.v1 import orchestrator_pb2

    async def work(client: AsyncClient) -> list[orchestrator_pb2.Explanation]:
        node_id = await _node_of(client, subject)
        if not node_id:
            newest = model or await _newest_model(client)
            asked = orchestrator_pb2.ExplainRequest(model=newest, vnode=subject, batch=batch or 0, with_batch=batch is not None)
        elif batch is None:
            asked = orchestrator_pb2.ExplainRequest(node_id=node_id)
        else:
            raise InvalidInput("--batch is about a VNode, not about a node", code="bad_arguments")
        return await client.explain(asked)

    lines = Session(home, network, bootstrap, network_id).run(work)

    def text() -> str:
        shown: list[str] = []
        for line in lines:
            shown.append(f"{line.subject}: {line.verdict}" + (f": {line.reason}" if line.reason else ""))
            shown += [f"  {key} = {line.inputs[key]}" for key in sorted(line.inputs)]
        return "\n".join(shown) or "nothing is known about it"

    output.emit([plain(line) for line in lines], text, as_json=as_json)


def _say(
    session: Session, key: list[Path] | None, job: str, model: str, reason: str, *, paused: bool, as_json: bool
) -> None:  # fmt: skip
    from dcnr.sdk.plain import plain, word
    from dcnr.v1 import model_pb2

    keys = session.keys(key)

    async def work(client: AsyncClient) -> orchestrator_pb2.PauseJobResponse:
        return await (client.pause if paused else client.resume)(job, keys, model=model, reason=reason)

    answer = session.run(work)
    wish = "it pauses" if paused else "it goes on"
    output.emit(
        plain(answer),
        lambda: f"recorded: {wish}; the job is {word(model_pb2.JobState, answer.state)} at the moment\nnext: dcnr job watch {job}",
        as_json=as_json,
    )


async def _newest(client: AsyncClient, model: str) -> str:
    """The newest job. Raises NotFound."""
    jobs = await client.jobs(model)
    if not jobs:
        raise _no_job(model)
    return jobs[0].job_id


async def _node_of(client: AsyncClient, subject: str) -> str:
    """The id of the node that ``subject`` means: an id, or the 8 digits of one that screens show. Empty: it means a VNode."""
    import re

    if re.fullmatch(r"[0-9a-f]{40}", subject):
        return subject
    if not re.fullmatch(r"[0-9a-f]{8}", subject):
        return ""
    found = [node.node_id for node in await client.nodes() if node.node_id.startswith(subject)]
    return found[0] if len(found) == 1 else ""


async def _newest_model(client: AsyncClient) -> str:
    """The model of the newest job. Raises NotFound."""
    jobs = await client.jobs()
    if not jobs:
        raise _no_job()
    return jobs[0].model


def _no_job(model: str = "") -> NotFound:
    if model:
        return NotFound(f"there is no job of a model {model}", code="no_job", remedy="dcnr job list shows all jobs")
    return NotFound("there is no job yet", code="no_job", remedy="dcnr model submit model.toml")


def _cancelled_text(job: str, state: int) -> str:
    from dcnr.sdk.plain import word
    from dcnr.v1 import model_pb2

    name = word(model_pb2.JobState, state)
    if state in (
        model_pb2.JOB_STATE_COMPLETED,
        model_pb2.JOB_STATE_CANCELLED,
        model_pb2.JOB_STATE_FAILED,
        model_pb2.JOB_STATE_EXPIRED,
    ):
        return f"the job had ended before: {name}; the wish is recorded, nothing changes"
    kept = "what it has learned by then, half-trained as it may be, answers questions and is exported; the ways on and back are told when it has ended"
    lines = [f"recorded; the job is {name} for a moment more", f"next: dcnr job watch {job}"]
    if state != model_pb2.JOB_STATE_QUEUED:
        lines.insert(1, kept)
    return "\n".join(lines)
