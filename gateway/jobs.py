"""The routes that ask for something: a job, its end, its result. What is signed is passed on as it came; orchestrators judge the signatures."""

from __future__ import annotations

import base64
import json
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, Header, Response
from google.protobuf.message import Message
from pydantic import BaseModel, ConfigDict, Field

from dcnr import limits
from dcnr.errors import Corrupt, InvalidInput
from dcnr.ids import job_id_of
from dcnr.tracing import of_job
from dcnr.v1 import data_pb2, identity_pb2, model_pb2, orchestrator_pb2
from gateway import bodies
from gateway.context import Context, answer
from gateway.errors import RestError
from gateway.reading import JobId
from gateway.schema import JSON, message
from gateway.shapes import shown
from gateway.stats import ENDED
from trust.envelope import MAX_SIGNATURES, open_envelope, parse, parse_envelope

M = TypeVar("M", bound=Message)
MAX_INLINE_BYTES: Final = limits.MIB
MAX_TEXT: Final = 4 * (limits.MAX_ENVELOPE_BYTES // 3) + 1024
"""Characters of base64 that the largest envelope has."""
MAX_RETRY_S: Final = 60
SHOWN_MESSAGES: Final = (
    orchestrator_pb2.SubmitJobResponse.DESCRIPTOR, orchestrator_pb2.CancelJobResponse.DESCRIPTOR, orchestrator_pb2.PauseJobResponse.DESCRIPTOR,
    model_pb2.Outcome.DESCRIPTOR, data_pb2.ObjectRef.DESCRIPTOR,
)  # fmt: skip
SUBMITTED: Final = {**JSON(message("SubmitJobResponse"), 201), **JSON(message("SubmitJobResponse"))}
_REF: Final = {
    "type": "object", "properties": {"object": message("ObjectRef"), "size_bytes": {"type": "integer"}}, "required": ["object", "size_bytes"],
}  # fmt: skip
RESULT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "job_id": {"type": "string"}, "model": {"type": "string"}, "state": {"type": "string"}, "outcome": message("Outcome"),
        "manifest_digest": {"type": "string"}, "manifest": message("Manifest"), "manifest_ref": _REF,
    },
    "required": ["job_id", "model", "state", "outcome", "manifest_digest"],
}  # fmt: skip


class SignatureIn(BaseModel):
    """One signature; both parts base64."""

    model_config = ConfigDict(extra="forbid")
    public_key: str = Field(max_length=256)
    signature: str = Field(max_length=256)


class EnvelopeIn(BaseModel):
    """A signed envelope in JSON; ``domain`` is its name in the contract, ``payload`` base64."""

    model_config = ConfigDict(extra="forbid")
    domain: str = Field(max_length=64)
    payload: str = Field(max_length=MAX_TEXT)
    signatures: list[SignatureIn] = Field(max_length=MAX_SIGNATURES)


class SignedIn(BaseModel):
    """A signed statement: its envelope as base64 of the bytes, or in JSON."""

    model_config = ConfigDict(extra="forbid")
    envelope: Annotated[str, Field(max_length=MAX_TEXT)] | EnvelopeIn


IdempotencyKey = Annotated[
    str, Header(alias="Idempotency-Key", max_length=255, description="The text that the job's id was made from: refused where it was another.")
]  # fmt: skip


def routes(context: Context) -> APIRouter:
    """The routes over one network."""
    router, views = bodies.router(), context.views

    @router.post("/v1/jobs", summary="Submit a signed job", status_code=201, responses=SUBMITTED)
    async def submit(body: SignedIn, idempotency_key: IdempotencyKey = "") -> Response:
        envelope, request = opened(body, identity_pb2.DOMAIN_JOB_REQUEST, model_pb2.JobRequest)
        if idempotency_key and request.job_id != job_id_of(request.model, idempotency_key):
            raise InvalidInput(
                "the signed request is for another job than this Idempotency-Key", code="idempotency_key_mismatch",
                remedy="sign a request whose job id is made from the key, as the SDK does",
            )  # fmt: skip
        with context.tracer.span("submit", of_job(request.job_id)):
            accepted = await views.submit(envelope)
        response = answer(shown(accepted), 200 if accepted.existed else 201)
        response.headers["Location"] = f"/v1/jobs/{accepted.job_id}"
        return response

    @router.post("/v1/jobs/{job_id}/cancel", summary="Call a job off, signed", responses=JSON(message("CancelJobResponse")))
    async def cancel(job_id: JobId, body: SignedIn) -> Response:
        envelope, wanted = opened(body, identity_pb2.DOMAIN_JOB_CANCEL, model_pb2.JobCancel)
        if wanted.job_id != job_id:
            raise InvalidInput("the signed statement calls another job off", code="wrong_job")
        await views.job(job_id)
        return answer(shown(await views.cancel(envelope)))

    @router.post("/v1/jobs/{job_id}/pause", summary="Call a job to a halt, signed", responses=JSON(message("PauseJobResponse")))
    async def pause(job_id: JobId, body: SignedIn) -> Response:
        return await _say(context, job_id, body, paused=True)

    @router.post("/v1/jobs/{job_id}/resume", summary="Let a paused job go on, signed", responses=JSON(message("PauseJobResponse")))
    async def resume(job_id: JobId, body: SignedIn) -> Response:
        return await _say(context, job_id, body, paused=False)

    @router.get(
        "/v1/jobs/{job_id}/result", summary="How a job ended, and the manifest with its checkpoints", responses=JSON(RESULT)
    )
    async def result(job_id: JobId) -> Response:
        job = await views.job(job_id)
        if job.state not in ENDED:
            raise RestError(
                "JOB_NOT_READY",
                f"job {job_id} is {model_pb2.JobState.Name(job.state)}",
                headers={"Retry-After": again_in(job.eta_s)},
            )
        return answer(await _result(context, job))

    return router


def again_in(eta_s: float) -> str:
    """Whole seconds after which it is worth asking again, of any estimate."""
    return str(round(min(MAX_RETRY_S, max(1.0, eta_s))))


async def _say(context: Context, job_id: str, body: SignedIn, *, paused: bool) -> Response:
    envelope, wanted = opened(body, identity_pb2.DOMAIN_JOB_PAUSE, model_pb2.JobPause)
    if (wanted.job_id, wanted.paused) != (job_id, paused):
        raise InvalidInput("the signed statement is about another job, or says something else than the route", code="wrong_job")
    await context.views.job(job_id)
    return answer(shown(await context.views.pause(envelope)))


def opened(
    body: SignedIn, domain: identity_pb2.Domain.ValueType, kind: type[M]
) -> tuple[identity_pb2.Envelope, M]:  # fmt: skip
    """The envelope and its payload; each signature is valid, whose they are is for orchestrators to judge. Raises InvalidInput."""
    try:
        envelope = parse_envelope(_bytes(body.envelope)) if isinstance(body.envelope, str) else _from_json(body.envelope)
        return envelope, parse(kind, open_envelope(envelope, domain).payload)
    except Corrupt as error:
        raise InvalidInput(error.message, code=error.code, **error.details) from error


def _from_json(given: EnvelopeIn) -> identity_pb2.Envelope:
    known = identity_pb2.Domain.DESCRIPTOR.values_by_name.get(given.domain)
    if known is None:
        raise InvalidInput("domain is no name of the contract's Domain", code="bad_envelope")
    signatures = [
        identity_pb2.Signature(public_key=_bytes(one.public_key), signature=_bytes(one.signature)) for one in given.signatures
    ]
    return identity_pb2.Envelope(domain=known.number, payload=_bytes(given.payload), signatures=signatures)  # type: ignore[arg-type]


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise InvalidInput("an envelope, a payload or a signature is not base64", code="bad_envelope") from error


async def _result(context: Context, job: orchestrator_pb2.JobView) -> dict[str, Any]:
    found: dict[str, Any] = {
        "job_id": job.job_id, "model": job.model, "state": model_pb2.JobState.Name(job.state), "outcome": shown(job.outcome),
        "manifest_digest": job.manifest_digest,
    }  # fmt: skip
    if not job.manifest_digest:
        return found
    digest, manifest = await context.views.manifest(job.model, job.manifest_digest)
    whole = shown(manifest)
    size = len(json.dumps(whole, ensure_ascii=False).encode())
    if size <= MAX_INLINE_BYTES:
        return {**found, "manifest": whole}
    ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_MANIFEST, model=job.model, digest=digest)
    return {**found, "manifest_ref": {"object": shown(ref), "size_bytes": manifest.ByteSize()}}
