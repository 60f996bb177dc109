"""``dcnr model``: checks a graph, shows where it would run, submits it signed, takes the trained model home."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dcnr import limits
from dcnr.cli import import_model, output, release
from dcnr.cli.files import text_in, write_whole
from dcnr.cli.homes import ComponentsOption, HomeOption, JsonOption
from dcnr.cli.session import BootstrapOption, KeyOption, NetworkIdOption, NetworkOption, Session
from dcnr.cli.unnoticed import told_of_release
from dcnr.errors import InvalidInput

if TYPE_CHECKING:
    from dcnr.export import Export
    from dcnr.ids import Digest
    from dcnr.sdk.client import AsyncClient
    from dcnr.sdk.signing import Draft
    from dcnr.sdk.submission import JobOptions
    from dcnr.sdk.weights import FirstWeights
    from dcnr.stages import Stage
    from dcnr.v1 import ledger_pb2, model_pb2, orchestrator_pb2
    from trust.identity import NodeKey
    from vnode.reference import Exit

app = typer.Typer(help="Models as graphs: check, plan, submit, export, release.", no_args_is_help=True, rich_markup_mode=None)

import_model.add(app)
release.add(app)

WITH_DRAFT: Final = frozenset(("draft", "components", "home", "network", "bootstrap", "network_id", "as_json"))
"""What `submit` may be told beside a draft: how it reaches the network, and how it says what came of it."""

GraphArgument = Annotated[Path, typer.Argument(help="The graph, model.toml or model.json.")]


@app.command()
def validate(
    graph: GraphArgument, components: ComponentsOption = None, home: HomeOption = None, as_json: JsonOption = False
) -> None:
    """Check a graph; errors name the VNode, the field and the line."""
    from dcnr.graph import graph_digest

    message, stages = _graph(graph, Session(home, None, None, components=components))
    rows = [
        (stage.id, stage.component, ", ".join(item.id for item in stage.inputs), "x".join(map(str, stage.output.shape)), stage.num_parameters)
        for stage in stages
    ]  # fmt: skip
    data = {
        "model": message.name,
        "graph_digest": graph_digest(message),
        "num_parameters": sum(stage.num_parameters for stage in stages),
        "stages": [
            {
                "vnode": stage.id, "component": stage.component, "inputs": [item.id for item in stage.inputs],
                "output": {"dtype": stage.output.dtype, "shape": list(stage.output.shape)}, "num_parameters": stage.num_parameters,
                "forward_flops": stage.forward_flops, "activation_bytes": stage.activation_bytes, "replicas": stage.replicas,
            }
            for stage in stages
        ],
    }  # fmt: skip

    def text() -> str:
        head = f"{message.name} version {message.version} is valid: {len(stages)} VNodes with weights, {data['num_parameters']} parameters"
        return f"{head}\n{output.table(('vnode', 'component', 'reads', 'gives', 'parameters'), rows)}"

    output.emit(data, text, as_json=as_json)


@app.command()
def plan(
    graph: GraphArgument, components: ComponentsOption = None, home: HomeOption = None, network: NetworkOption = None,
    bootstrap: BootstrapOption = None, network_id: NetworkIdOption = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Where the graph would run now, and why. How long it would take and what it would cost. Changes nothing."""
    from dcnr.sdk.plain import plain

    session = Session(home, network, bootstrap, network_id, components)
    message, _ = _graph(graph, session)

    async def work(client: AsyncClient) -> tuple[orchestrator_pb2.PreviewPlanResponse, ledger_pb2.CostQuote]:
        return await client.plan(message), await client.quote(message)

    answer, quote = session.run(work)
    told = f"cost: {quote.vnode_batches} batches of VNodes to clear, {quote.num_batches} batches of {quote.num_vnodes} VNodes each; no money"
    output.emit({**plain(answer), "quote": plain(quote)}, lambda: f"{_plan_text(answer)}\n{told}", as_json=as_json)


@app.command()
def submit(
    context: typer.Context,
    graph: Annotated[Path | None, typer.Argument(help="The graph; leave it out with --draft.")] = None,
    key: KeyOption = None,
    idempotency_key: Annotated[str, typer.Option(help="Two submissions with one key are one job; default: a new one.")] = "",
    draft: Annotated[Path | None, typer.Option(help="Submit a draft that has its signatures.", show_default=False)] = None,
    save_draft: Annotated[Path | None, typer.Option(help="Prepare and sign, but write a draft for others to sign.", show_default=False)] = None,
    checkpoint_s: Annotated[float, typer.Option(min=1, help="Seconds between checkpoints.")] = limits.CHECKPOINT_S,
    checkpoint_steps: Annotated[int, typer.Option(min=1, help="Batches between checkpoints.")] = limits.CHECKPOINT_STEPS,
    unit_batches: Annotated[int, typer.Option(min=0, help="Grain of work; 0: about 5 s of the slowest stage.")] = 0,
    lead_batches: Annotated[int, typer.Option(min=1, help="How far sources may be ahead.")] = limits.LEAD_BATCHES,
    batches_per_s: Annotated[float, typer.Option(help="Learn no more on average, and catch up after faults; 0: as fast as the network can.")] = 0.0,
    settling_deadline_s: Annotated[float, typer.Option(min=1, help="Then the job ends as expired.")] = limits.SETTLING_DEADLINE_S,
    expires_after_s: Annotated[float, typer.Option(min=0, help="A job still queued then ends as expired; 0: never.")] = 0.0,
    from_manifest: Annotated[str, typer.Option(help="Go on from this manifest, which dcnr job watch names; empty: from checkpoint 0.")] = "",
    anew: Annotated[bool, typer.Option("--anew", help="Begin at checkpoint 0 although the model is trained.")] = False,
    weights: Annotated[Path | None, typer.Option(help="Safetensors with first weights, as dcnr model import writes them.", show_default=False)] = None,
    components: ComponentsOption = None,
    home: HomeOption = None, network: NetworkOption = None, bootstrap: BootstrapOption = None, network_id: NetworkIdOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Sign a job and ask the network to train the model. Makes checkpoint 0 first; returns when the job is safely stored.

    Example: dcnr model submit model.toml && dcnr job watch
    """
    import secrets

    from dcnr.sdk.plain import plain
    from dcnr.sdk.submission import JobOptions
    from dcnr.sdk.weights import read_weights

    if (graph is None) == (draft is None):
        raise InvalidInput("give either a graph or --draft", code="bad_arguments", remedy="dcnr model submit model.toml")
    session = Session(home, network, bootstrap, network_id, components)
    if graph is None:
        signed = _alone(context, draft)
        answer = session.run(lambda client: client.submit_draft(signed))
    else:
        message, _ = _graph(graph, session)
        keys = session.keys(key)
        if not (anew or from_manifest or idempotency_key):  # with a key it may be the job that is there
            _check_untrained(session, message.name)
        options = JobOptions(
            idempotency_key=idempotency_key or secrets.token_hex(8), unit_batches=unit_batches, lead_batches=lead_batches,
            settling_deadline_s=settling_deadline_s, checkpoint_s=checkpoint_s, checkpoint_steps=checkpoint_steps, from_manifest=from_manifest,
            expires_after_s=expires_after_s, batches_per_s=batches_per_s,
        )  # fmt: skip
        first = read_weights(weights) if weights is not None else None
        if save_draft is not None:
            prepared, (_, missing) = session.run(lambda client: _prepared(client, message, keys, options, first))
            _write_draft(save_draft, prepared)
            then = f"dcnr model {'sign' if missing else 'submit --draft'} {quote(str(save_draft))}"
            output.emit({"draft": str(save_draft)}, lambda: f"draft written to {save_draft}; next: {then}", as_json=as_json)
            return
        answer = session.run(lambda client: client.submit(message, keys, options, weights=first, progress=output.Steps()))
    known = " (it was there before)" if answer.existed else ""
    output.emit(
        plain(answer), lambda: f"job {answer.job_id} accepted{known}\nnext: dcnr job watch {answer.job_id}", as_json=as_json
    )


@app.command()
def sign(
    draft: Annotated[Path, typer.Argument(help="Draft made by: dcnr model submit --save-draft.")],
    key: KeyOption = None, home: HomeOption = None, network: NetworkOption = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Add a maintainer's signature to a draft. Says what is still missing."""
    session = Session(home, network, None)
    policy = session.policy()
    signed = _read_draft(draft).sign(policy, *session.keys(key))
    _write_draft(draft, signed)
    what, missing = signed.missing(policy)
    request = signed.request
    data = {"draft": str(draft), "job_id": request.job_id, "model": request.model, "missing": missing, "on": what}

    def text() -> str:
        head = f"signed {request.model}: job {request.job_id}, {request.num_batches} batches of {request.dataset_name}"
        return f"{head}\nnext: " + (
            f"{missing} more maintainers sign the {what}" if missing else f"dcnr model submit --draft {quote(str(draft))}"
        )

    output.emit(data, text, as_json=as_json)


@app.command()
def export(
    model: Annotated[str, typer.Argument(help="Name of the model.")],
    out: Annotated[Path, typer.Option(help="Directory to write.")],
    manifest: Annotated[str, typer.Option(help="Digest of a manifest; default: the released one, or the newest.")] = "",
    components: ComponentsOption = None,
    home: HomeOption = None, network: NetworkOption = None, bootstrap: BootstrapOption = None, network_id: NetworkIdOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Write the trained weights as safetensors. With the graph and a description; the same manifest gives the same bytes."""

    async def work(client: AsyncClient) -> tuple[Digest, Export, dict[str, Any] | None, str]:
        digest, written = await client.export(model, out, manifest=manifest, progress=output.Steps())
        return digest, written, *await told_of_release(client, model, digest)

    digest, written, unnoticed, told = Session(home, network, bootstrap, network_id, components).run(work)
    data = {
        "manifest": digest, "directory": str(written.directory), "digest": written.digest, "files": dict(written.files),
        "num_parameters": written.num_parameters, "unnoticed": unnoticed,
    }  # fmt: skip
    output.emit(
        data,
        lambda: (
            f"wrote {written.directory} ({written.num_parameters} parameters)\n"
            f"  manifest {digest}\n  digest   {written.digest}\n  {told}"
        ),
        as_json=as_json,
    )


@app.command()
def evaluate(
    model: Annotated[str, typer.Argument(help="Name of the model.")],
    split: Annotated[str, typer.Option(help="test, validation or train, as the graph names them.")] = "test",
    manifest: Annotated[str, typer.Option(help="Digest of a manifest; default: the released one, or the newest.")] = "",
    components: ComponentsOption = None,
    home: HomeOption = None, network: NetworkOption = None, bootstrap: BootstrapOption = None, network_id: NetworkIdOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Judge the model on this machine, at every depth. Loss and accuracy."""
    if split not in ("train", "validation", "test"):
        raise InvalidInput(f"{split!r} is none of train, validation, test", code="bad_split")

    async def work(client: AsyncClient) -> tuple[Digest, tuple[Exit, ...]]:
        return await client.evaluate(model, use=split, manifest=manifest, progress=output.Steps())

    digest, exits = Session(home, network, bootstrap, network_id, components).run(work)
    rows = [(number, e.vnode, f"{e.loss:.4f}", f"{100 * e.accuracy:.2f} %", e.count) for number, e in enumerate(exits, 1)]
    data = {
        "manifest": digest, "split": split,
        "exits": [{"vnode": e.vnode, "loss": e.loss, "accuracy": e.accuracy, "count": e.count} for e in exits],
    }  # fmt: skip
    output.emit(
        data, lambda: f"manifest {digest}\n{output.table(('depth', 'exit', 'loss', 'accuracy', 'count'), rows)}", as_json=as_json
    )


def _check_untrained(session: Session, model: str) -> None:
    """Raises Refused (``already_trained``); says so where another job of the model is still to end."""
    from dcnr.cli.trained import check_untrained

    if note := session.run(lambda client: check_untrained(client, model)):
        output.say(note)


async def _prepared(
    client: AsyncClient, graph: model_pb2.ModelGraph, keys: list[NodeKey], options: JobOptions, weights: FirstWeights | None
) -> tuple[Draft, tuple[str, int]]:
    """The uploaded job with these maintainers' signatures on what is due, and what is still missing. Manifest 0 is stored where nothing is missing on it,
    so that the signed request can be submitted by whoever has it.
    """
    from dcnr.sdk.signing import check_maintainers
    from dcnr.sdk.submission import store_manifest

    check_maintainers(client.policy, keys)  # before anything is uploaded
    draft = (await client.prepare(graph, options, weights=weights, progress=output.Steps())).sign(client.policy, *keys)
    await store_manifest(draft, client.policy, client.objects, scratch=client.scratch)
    return draft, draft.missing(client.policy)


def _graph(path: Path, session: Session) -> tuple[model_pb2.ModelGraph, tuple[Stage, ...]]:
    """The validated graph in a file; errors name the line."""
    from dcnr.graph import graph_from_json, graph_from_toml, locate, stages_of_graph
    from vnode.registry import registry_with

    registry = registry_with(session.components)
    text = text_in(path, limits.MAX_GRAPH_BYTES, code="bad_graph", remedy="name a graph in TOML or JSON")
    try:
        message = graph_from_json(text) if path.suffix == ".json" else graph_from_toml(text)
        return message, stages_of_graph(message, registry)
    except InvalidInput as error:
        line = locate(text, error.details.get("vnode", ""), error.details.get("field", ""))
        where = f"{path}:{line}" if line else str(path)
        raise InvalidInput(f"{where}: {error.message}", code=error.code, remedy=error.remedy, **error.details) from error


def _plan_text(answer: orchestrator_pb2.PreviewPlanResponse) -> str:
    from dcnr.sdk.plain import word
    from dcnr.v1 import model_pb2

    crowds = Counter(a.vnode for a in answer.plan.assignments)
    rows = [
        (
            a.vnode, f"{a.replica} ({word(model_pb2.Role, a.role)})" if crowds[a.vnode] > 1 else a.replica, output.short(a.pnode_id),
            f"{1000 * a.predicted_step_s:.3g} ms", output.size(a.memory_bytes), a.reason,
        )
        for a in answer.plan.assignments
    ]  # fmt: skip
    lines = [output.table(("vnode", "replica", "node", "step", "memory", "reason"), rows)]
    lines += [f"waiting: {vnode} fits no node that is here" for vnode in answer.plan.waiting]
    lines += [f"waiting: {r.vnode}: {r.reason}" for r in answer.plan.rejections if not r.pnode_id]
    lines += [f"not on {output.short(r.pnode_id)}: {r.vnode}: {r.reason}" for r in answer.plan.rejections if r.pnode_id]
    if answer.plan.lead_reason:
        lines.append(f"lead {answer.plan.lead_batches} batches: {answer.plan.lead_reason}")
    if answer.plan.waiting:
        lines.append(
            "it would not start: what waits needs other machines, or larger ones (pnode start --memory-mb), or another graph"
        )
    elif answer.estimate_s:
        lines.append(
            f"estimate: {output.duration(answer.estimate_s)} of computation ({1000 * answer.seconds_per_batch:.3g} ms per batch of the slowest stage)"
        )
    return "\n".join(lines)


def _alone(context: typer.Context, draft: Path | None) -> Draft:
    """The draft to be submitted. Raises InvalidInput where an option was given that says how a job is made, or signed: with ``--draft`` it is both."""
    assert draft is not None
    for option in context.command.params:
        name = option.name or ""
        source = context.get_parameter_source(name)
        if name not in WITH_DRAFT and source is not None and source.name == "COMMANDLINE":
            raise InvalidInput(
                f"{option.opts[0]} can change nothing about a draft", code="bad_arguments",
                remedy="dcnr model submit --draft FILE sends it as it is, dcnr model sign FILE adds a signature, dcnr model submit model.toml makes a job",
            )  # fmt: skip
    return _read_draft(draft)


def _read_draft(path: Path) -> Draft:
    from dcnr.sdk.signing import MAX_DRAFT_BYTES, Draft

    return Draft.from_json(text_in(path, MAX_DRAFT_BYTES, code="bad_draft", remedy="name a file that --save-draft wrote"))


def _write_draft(path: Path, draft: Draft) -> None:
    write_whole(path, draft.to_json().encode(), remedy="choose another path for the draft")
