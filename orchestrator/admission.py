"""Takes a job in: nothing is answered yes before the request is in the store, and nothing is stored that could not run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from dataservice import keys
from dataservice.dataset_manifest import DatasetManifest, parse_manifest
from dataservice.fit import check_fit
from dcnr import limits
from dcnr.crashpoints import reached
from dcnr.errors import Corrupt, DcnrError, InvalidInput, NotFound, Refused, Stale
from dcnr.graph import dataset_refs, num_batches
from dcnr.ids import check_name
from dcnr.ports import ObjectStore
from dcnr.tempo import check_rate
from dcnr.v1 import identity_pb2, model_pb2
from orchestrator.access import MAX_DATASET_MANIFEST_BYTES
from orchestrator.documents import get_exact, put_once
from orchestrator.job_words import is_of_earlier_job
from orchestrator.taken_back import in_force, taken_back
from orchestrator.view import JobFacts, ViewLoader
from trust.envelope import parse_envelope
from trust.folding import AUDITS_DRAWN
from trust.network import NetworkPolicy

SIGNED_ANEW: Final = frozenset(("created_unix_ms", "expires_unix_ms", "initial_manifest_digest"))
"""What differs when the same wish is signed once more: when, and the signatures on manifest 0. Life and first states are compared instead."""
LIFE_SLACK_MS: Final = 1000
MAX_NAMED: Final = 8
"""VNodes in an error."""
KEPT: Final = (
    "component", "config", "component_input_specs", "objective", "objective_config", "optimizer", "output", "target", "num_classes",
)  # fmt: skip
"""What a stage has in common with the one whose state it goes on from; the optimiser's rates, say, may differ."""


async def admit(
    envelope: identity_pb2.Envelope,
    *,
    policy: NetworkPolicy,
    store: ObjectStore,
    loader: ViewLoader,
    wall_unix_ms: int,
    check_room: Callable[[str], None] = lambda _: None,
) -> tuple[model_pb2.JobRequest, bool]:
    """The stored request and whether it was there before. ``check_room`` raises Unavailable where nobody here could decide about a job of that model.

    Raises Refused (``unsigned_job``, ``wrong_network``, ``component_not_allowed``, ``not_cleared``, ``taken_back``, ``condemned``), InvalidInput, NotFound (an
    object it names is not in the store), Stale (``job_id_taken``), Unavailable.
    """
    request = policy.open_job_request(envelope)
    check_name(request.job_id)
    check_name(request.model)
    stored = await _stored(store, policy, request, loader)
    if stored is not None:
        return stored, True
    if request.expires_unix_ms and request.expires_unix_ms <= wall_unix_ms:
        raise InvalidInput("the request has expired", code="request_expired")
    data = envelope.SerializeToString(deterministic=True)
    facts = await _facts(loader, data)
    await _check(facts, policy, store, loader)
    check_room(request.model)
    await store.put(keys.model_index(request.model), b"")
    reached("index.stored")
    found = await put_once(store, keys.job_request(request.model, request.job_id), data)
    reached("request.stored")
    if found == data:
        return request, False
    other = policy.read_job_request(parse_envelope(found))
    await _require_same(other, request, loader)
    return other, True


async def _stored(
    store: ObjectStore, policy: NetworkPolicy, request: model_pb2.JobRequest, loader: ViewLoader
) -> model_pb2.JobRequest | None:
    try:
        found = await store.get(keys.job_request(request.model, request.job_id), max_bytes=limits.MAX_ENVELOPE_BYTES)
    except NotFound:
        return None
    other = policy.read_job_request(parse_envelope(found.data))
    await _require_same(other, request, loader)
    return other


async def _require_same(stored: model_pb2.JobRequest, request: model_pb2.JobRequest, loader: ViewLoader) -> None:
    """Everything that is signed is the same, but for what `SIGNED_ANEW` says."""
    different = [
        field.name
        for field in request.DESCRIPTOR.fields
        if field.name not in SIGNED_ANEW and getattr(stored, field.name) != getattr(request, field.name)
    ]
    if abs(_life_ms(stored) - _life_ms(request)) > LIFE_SLACK_MS:
        different.append("expires_unix_ms")
    if not await _begin_alike(stored, request, loader):
        different.append("initial_manifest_digest")
    if different:
        raise Stale(
            f"job {request.job_id} exists with another {', '.join(different)}", code="job_id_taken", remedy="use another idempotency key",
            field=",".join(different),
        )  # fmt: skip


def _life_ms(request: model_pb2.JobRequest) -> int:
    """How long it may wait; 0: for ever."""
    return int(request.expires_unix_ms - request.created_unix_ms) if request.expires_unix_ms else 0


async def _begin_alike(stored: model_pb2.JobRequest, request: model_pb2.JobRequest, loader: ViewLoader) -> bool:
    """Whether both begin with the same manifest, whoever signed it."""
    if stored.initial_manifest_digest == request.initial_manifest_digest:
        return True
    try:
        return (await loader.manifest(stored.model, stored.initial_manifest_digest))[0] == (
            await loader.manifest(request.model, request.initial_manifest_digest)
        )[0]
    except (NotFound, Corrupt, InvalidInput, Refused):
        return False


async def _facts(loader: ViewLoader, data: bytes) -> JobFacts:
    try:
        return await loader.job_from_bytes(data)
    except NotFound as error:
        raise NotFound("the graph is not in the store", code="no_graph", remedy="upload it before the request") from error


async def _check(facts: JobFacts, policy: NetworkPolicy, store: ObjectStore, loader: ViewLoader) -> None:
    request, graph = facts.request, facts.graph
    if graph.name != request.model:
        raise InvalidInput(f"the graph is of model {graph.name!r}, the request of {request.model!r}", code="wrong_model")
    allowed = set(policy.document.components)
    for vnode in graph.vnodes:
        if allowed and vnode.component.name not in allowed:
            raise Refused(
                f"{vnode.id} uses {vnode.component.name!r}, which the network does not allow", code="component_not_allowed",
                remedy=f"use one of {', '.join(sorted(allowed))}; or its maintainers allow it: dcnr network amend --add-component",
            )  # fmt: skip
    _check_redundancy(graph, policy)
    bound = int(policy.document.max_vnode_state_bytes) or limits.MAX_OBJECT_BYTES
    for cost in facts.costs:
        if cost.state_bytes > bound:
            raise Refused(f"{cost.vnode} has {cost.state_bytes} bytes of state, {bound} are allowed", code="vnode_too_large")
    if request.unit_batches < 1 or request.num_batches < 1:
        raise InvalidInput("a job has at least one batch and a unit of at least one", code="bad_request")
    check_rate(request.batches_per_s)
    await _check_manifest(facts, policy, store, loader)
    _check_dataset(facts, await _dataset(facts, store))


def _check_redundancy(graph: model_pb2.ModelGraph, policy: NetworkPolicy) -> None:
    """Only audits repeat what was executed: what none of them would ever do is not promised."""
    for vnode in graph.vnodes:
        if vnode.redundancy > limits.MAX_REDUNDANCY:
            raise InvalidInput(
                f"{vnode.id} asks for {vnode.redundancy} executions, at most {limits.MAX_REDUNDANCY} are made", code="bad_redundancy",
                vnode=vnode.id, field="redundancy",
            )  # fmt: skip
        if vnode.redundancy > 1 and not policy.audits_drawn:
            raise InvalidInput(
                f"{vnode.id} asks for {vnode.redundancy} executions, and nothing is repeated in this network: its document says audits = none",
                code="bad_redundancy", remedy="leave redundancy out; or its maintainers turn audits on: dcnr network amend --audits drawn",
                vnode=vnode.id, field="redundancy",
            )  # fmt: skip


async def _check_manifest(facts: JobFacts, policy: NetworkPolicy, store: ObjectStore, loader: ViewLoader) -> None:
    request = facts.request
    try:
        manifest, _ = await loader.manifest(request.model, request.initial_manifest_digest)
    except NotFound as error:
        raise NotFound("the initial manifest is not in the store", code="no_manifest") from error
    wanted, found = {cost.vnode for cost in facts.costs}, {entry.vnode for entry in manifest.entries if entry.working}
    if wanted != found:
        raise InvalidInput(f"the initial manifest does not fit the graph: {sorted(wanted ^ found)}", code="wrong_manifest")
    if any(entry.working[0].job_id == request.job_id for entry in manifest.entries):
        raise InvalidInput(
            f"manifest {manifest.number} names what a job {request.job_id} has learned: a new one of that name would be over before it begins",
            code="own_beginning", remedy="use another idempotency key",
        )  # fmt: skip
    _check_cleared(manifest)
    await _check_stays(request, manifest, policy, store, loader)
    await _check_weights(facts, manifest, loader)
    for entry in manifest.entries:
        checkpoint = entry.working[0]
        try:
            info = await store.head(keys.state(request.model, entry.vnode, checkpoint.digest))
        except NotFound as error:
            raise NotFound(f"the first state of {entry.vnode} is not in the store", code="no_state") from error
        if info.size_bytes != checkpoint.size_bytes:
            raise InvalidInput(f"the first state of {entry.vnode} has another size than the manifest says", code="wrong_size")


def _check_cleared(manifest: model_pb2.Manifest) -> None:
    """What a job begins with counts as cleared from then on, so nothing may be in it that its own audits have not cleared."""
    if manifest.audits != AUDITS_DRAWN:
        return
    waiting = [entry.vnode for entry in manifest.entries if entry.cleared.digest != entry.working[0].digest]
    if waiting:
        raise Refused(
            f"manifest {manifest.number} holds training that no audit has cleared: of {', '.join(waiting[:MAX_NAMED])}", code="not_cleared",
            remedy="go on from that with which a job completed: dcnr job list names jobs, dcnr job watch JOB prints its manifest whole", vnode=waiting[0],
        )  # fmt: skip


async def _check_stays(
    request: model_pb2.JobRequest, manifest: model_pb2.Manifest, policy: NetworkPolicy, store: ObjectStore, loader: ViewLoader
) -> None:
    """What the manifest under the head condemns is deleted at any moment, though it may still be there; what it, or the end of a job before it, takes back is
    not gone on from.
    """
    known = await in_force(request.model, policy, store, loader)
    back = taken_back(known)
    condemned = {digest: int(one.number) for one in known[:1] for digest in one.condemned}
    for gone, code, said in ((back, "taken_back", "taken back"), (condemned, "condemned", "condemned")):
        found = [entry for entry in manifest.entries if entry.working[0].digest in gone]
        if not found:
            continue
        number = gone[found[0].working[0].digest]
        raise Refused(
            f"manifest {number}, which is in force, has {said} what the job would begin with: states of {', '.join(one.vnode for one in found[:MAX_NAMED])}",
            code=code, remedy="go on from a newer manifest (dcnr job list --json names that of each job), or give the graph another seed",
            vnode=found[0].vnode,
        )  # fmt: skip


async def _check_weights(facts: JobFacts, manifest: model_pb2.Manifest, loader: ViewLoader) -> None:
    """A job that goes on from another graph's states needs VNodes of the same weights, slots and statistics."""
    if manifest.graph_digest in ("", facts.request.graph_digest):
        return
    _, _, stages = await loader.graph(manifest.graph_digest)
    before = {stage.id: stage for stage in stages}
    for stage in facts.stages:
        changed = [name for name in KEPT if getattr(stage, name) != getattr(before[stage.id], name)]
        if changed:
            raise InvalidInput(
                f"{stage.id} differs in {', '.join(changed)} from the graph that its state was made for", code="wrong_manifest",
                remedy="leave --from-manifest out, or keep what the states depend on", vnode=stage.id, field=changed[0],
            )  # fmt: skip


async def _dataset(facts: JobFacts, store: ObjectStore) -> DatasetManifest:
    request = facts.request
    key = keys.dataset_manifest(request.dataset_name, request.dataset_digest)
    try:
        return parse_manifest(await get_exact(store, key, request.dataset_digest, max_bytes=MAX_DATASET_MANIFEST_BYTES))
    except NotFound as error:
        raise NotFound(f"data set {request.dataset_name} is not staged", code="no_dataset", remedy="dcnr data stage") from error


def _check_dataset(facts: JobFacts, dataset: DatasetManifest) -> None:
    request, graph = facts.request, facts.graph
    refs = dataset_refs(graph)
    if refs["train"].name != request.dataset_name:
        raise InvalidInput(
            f"the graph reads {refs['train'].name!r}, the request names {request.dataset_name!r}", code="wrong_dataset"
        )
    check_fit(graph, dataset)
    count = num_batches(graph, int(dataset.splits[refs["train"].split]))
    if count != request.num_batches:
        raise InvalidInput(f"the data give {count} batches, the request says {request.num_batches}", code="wrong_num_batches")


async def record_cancel(
    envelope: identity_pb2.Envelope, *, policy: NetworkPolicy, store: ObjectStore
) -> tuple[model_pb2.JobCancel, bool]:
    """The cancel object is in the store; False where one was there before. One of an earlier job of that name, which the store has lost, gives way. Raises
    Refused (``cancel_before_job``, ``cancel_taken``), NotFound, Unavailable.
    """
    cancel = policy.open_cancel(envelope)
    check_name(cancel.job_id)
    try:
        stored = await store.get(keys.job_request(check_name(cancel.model), cancel.job_id), max_bytes=limits.MAX_ENVELOPE_BYTES)
    except NotFound as error:
        raise NotFound(f"there is no job {cancel.job_id}", code="job_not_found", remedy="dcnr job list shows all jobs") from error
    request = model_pb2.JobRequest()
    with contextlib.suppress(Corrupt, Refused, InvalidInput):  # whatever lies there may be called off
        request = policy.read_job_request(parse_envelope(stored.data))
    if is_of_earlier_job(cancel, request):
        raise Refused(
            f"this was signed before job {cancel.job_id} was asked for", code="cancel_before_job",
            remedy="look at the clock of the machine that signs, then call the job off again",
        )  # fmt: skip
    data = envelope.SerializeToString(deterministic=True)
    key = keys.job_cancel(cancel.model, cancel.job_id)
    found = await put_once(store, key, data)
    if found != data and _is_of_earlier_job(found, request, policy):
        found = await _put_over(store, key, found, data)
    reached("cancel.stored")
    if found != data:
        _require_cancel(found, cancel, policy)
    return cancel, found == data


def _is_of_earlier_job(found: bytes, request: model_pb2.JobRequest, policy: NetworkPolicy) -> bool:
    with contextlib.suppress(Corrupt, Refused, InvalidInput):
        return is_of_earlier_job(policy.read_cancel(parse_envelope(found)), request)
    return False


async def _put_over(store: ObjectStore, key: str, before: bytes, data: bytes) -> bytes:
    """What is there then, whatever the answer was: ``data`` where nobody was faster. Raises NotFound, Unavailable."""
    stored = await store.get(key, max_bytes=limits.MAX_ENVELOPE_BYTES)
    if stored.data != before:
        return stored.data
    with contextlib.suppress(DcnrError):
        await store.put(key, data, if_match=stored.etag)
    return (await store.get(key, max_bytes=limits.MAX_ENVELOPE_BYTES)).data


def _require_cancel(found: bytes, cancel: model_pb2.JobCancel, policy: NetworkPolicy) -> None:
    """Raises Refused (``cancel_taken``): an object is written once, so whoever has the store's credentials can keep its place from others."""
    with contextlib.suppress(Corrupt, Refused, InvalidInput):
        other = policy.read_cancel(parse_envelope(found))
        if (other.model, other.job_id) == (cancel.model, cancel.job_id):
            return
    key = keys.job_cancel(cancel.model, cancel.job_id)
    raise Refused(
        f"job {cancel.job_id} is not called off: in the place of that lies something that no maintainers signed for this job", code="cancel_taken",
        remedy=f"whoever runs the store: delete {key}, change the store's credentials; then call the job off again",
    )  # fmt: skip
