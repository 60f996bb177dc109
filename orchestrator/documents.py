"""Opens the signed documents of a model as the store holds them: nothing is used before signer, network and model are found right."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from dcnr import limits
from dcnr.errors import Corrupt, DcnrError, InvalidInput, Unavailable, for_others
from dcnr.groups import apart, first_cause
from dcnr.ids import Digest, digest_of
from dcnr.ports import ObjectStore
from dcnr.v1 import identity_pb2, model_pb2
from orchestrator.changes import MAX_OUTCOME_BYTES, TERMINAL
from trust.envelope import open_single, parse, parse_envelope, seal
from trust.identity import NodeKey
from trust.network import NetworkPolicy

WRITES_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class Stored:
    """The bytes of an envelope with their digest."""

    data: bytes
    digest: Digest

    @property
    def envelope(self) -> identity_pb2.Envelope:
        """As a message."""
        return identity_pb2.Envelope.FromString(self.data)


def sealed(domain: identity_pb2.Domain.ValueType, message: object, key: NodeKey) -> Stored:
    """A message signed by this orchestrator, ready for the store."""
    data = seal(domain, message, key).SerializeToString(deterministic=True)  # type: ignore[arg-type]
    return Stored(data, digest_of(data))


def open_head(data: bytes, policy: NetworkPolicy, model: str) -> model_pb2.Head:
    """A head of this model, signed by the listed orchestrator that it names. Raises Corrupt."""
    return _head(data, policy, model, policy.is_orchestrator)


def open_stored_head(data: bytes, policy: NetworkPolicy, model: str, before: model_pb2.Head | None) -> model_pb2.Head:
    """As `open_head`, for the one who reads the store after ``before``: also by an orchestrator removed since, until a listed one has taken over from it.

    Without that nobody could take over from a removed holder; and whoever is removed and has still access to the store does not get a term back in front of
    those who saw it lost.
    """
    taken_over = before is not None and policy.is_orchestrator(before.holder)
    return _head(data, policy, model, policy.is_orchestrator if taken_over else policy.has_listed)


def _head(data: bytes, policy: NetworkPolicy, model: str, may_sign: Callable[[str], bool]) -> model_pb2.Head:
    payload, signer = open_single(parse_envelope(data, limits.MAX_HEAD_BYTES), identity_pb2.DOMAIN_HEAD)
    head = parse(model_pb2.Head, payload)
    _belongs(head.network_id, head.model, policy, model, "head")
    _in_own_name(signer.node_id, head.holder, may_sign, "head")
    return head


def open_plan(data: bytes, policy: NetworkPolicy, model: str) -> model_pb2.Plan:
    """A plan of this model by an orchestrator that some version of the network document listed. Raises Corrupt."""
    envelope = parse_envelope(data, limits.MAX_PLAN_BYTES)
    payload, signer = open_single(envelope, identity_pb2.DOMAIN_PLAN, max_bytes=limits.MAX_PLAN_BYTES)
    plan = parse(model_pb2.Plan, payload, limits.MAX_PLAN_BYTES)
    _belongs(plan.network_id, plan.model, policy, model, "plan")
    _in_own_name(signer.node_id, plan.holder, policy.has_listed, "plan")
    return plan


def open_desired(data: bytes, policy: NetworkPolicy, model: str) -> model_pb2.DesiredState:
    """A desired state of this model by a listed orchestrator. Raises Corrupt."""
    payload, signer = open_single(parse_envelope(data), identity_pb2.DOMAIN_DESIRED_STATE)
    desired = parse(model_pb2.DesiredState, payload)
    _belongs(desired.network_id, desired.model, policy, model, "desired state")
    _in_own_name(signer.node_id, desired.holder, policy.is_orchestrator, "desired state")
    return desired


def open_manifest(data: bytes, policy: NetworkPolicy, model: str) -> model_pb2.Manifest:
    """A manifest of this model. Raises as `trust.network.NetworkPolicy.open_manifest`."""
    return policy.open_manifest(parse_envelope(data, limits.MAX_MANIFEST_BYTES), model)


def open_end(data: bytes, policy: NetworkPolicy, model: str, job_id: str) -> tuple[model_pb2.Outcome, str]:
    """The outcome that the `end` of that job repeats, and who signed it. Raises Corrupt, also for the end of another job: whoever has the store's credentials
    can copy one to any place.
    """
    payload, signer = open_single(parse_envelope(data), identity_pb2.DOMAIN_JOB_END)
    if not policy.has_listed(signer.node_id):
        raise Corrupt("a job's end that no orchestrator of any version of the network document signed", code="wrong_signer")
    end = parse(model_pb2.JobEnd, payload)
    if (end.outcome.job_id, end.network_id or policy.network_id, end.model or model) != (job_id, policy.network_id, model):
        raise Corrupt(f"what lies in the place of the end of job {job_id} is the end of another one", code="wrong_job")
    if end.outcome.state not in TERMINAL or end.outcome.ByteSize() > MAX_OUTCOME_BYTES:
        raise Corrupt(f"the end of job {job_id} tells no outcome that a head can hold", code="bad_end")
    return end.outcome, signer.node_id


async def get_exact(store: ObjectStore, key: str, digest: str, *, max_bytes: int) -> bytes:
    """An immutable object whose bytes have that digest. Raises Corrupt, NotFound, Unavailable."""
    data = (await store.get(key, max_bytes=max_bytes)).data
    if digest_of(data) != digest:
        raise Corrupt(f"{key} does not have the digest it is named by", code="wrong_digest")
    return data


async def put_once(store: ObjectStore, key: str, data: bytes) -> bytes:
    """Creates ``key`` and returns its bytes, which are others' where it existed: whatever the answer was, the object is read back if unsure.

    Raises Unavailable where neither writing nor reading gave a plain answer.
    """
    try:
        await store.put(key, data, if_none_match=True)
        return data
    except InvalidInput:
        raise
    except DcnrError as error:
        try:
            return (await store.get(key, max_bytes=max(len(data), limits.MAX_ENVELOPE_BYTES))).data
        except DcnrError as unread:
            raise Unavailable(
                f"whether {key} was written is not known: {error.message}; {unread.message}", code="write_unknown"
            ) from None


async def put_all(store: ObjectStore, objects: Sequence[tuple[str, bytes]]) -> None:
    """Every object is in the store when this returns. Raises Unavailable."""
    gate = asyncio.Semaphore(WRITES_AT_ONCE)

    async def put(name: str, data: bytes) -> None:
        async with gate:
            if await put_once(store, name, data) != data:
                raise Unavailable(f"{name} holds other bytes", code="object_differs")

    async def put_each() -> None:
        async with asyncio.TaskGroup() as group:
            for name, data in objects:
                group.create_task(put(name, data))

    try:
        await apart(put_each())
    except* DcnrError as errors:
        raise Unavailable(
            f"the store did not take all objects: {for_others(first_cause(errors))}", code="store_unavailable"
        ) from None


def _belongs(network_id: str, found: str, policy: NetworkPolicy, model: str, what: str) -> None:
    if network_id != policy.network_id or found != model:
        raise Corrupt(f"a {what} of another network or model", code="wrong_network")


def _in_own_name(signer: str, holder: str, may_sign: Callable[[str], bool], what: str) -> None:
    if signer != holder or not may_sign(signer):
        raise Corrupt(f"a {what} that no listed orchestrator signed in its own name", code="wrong_signer")
