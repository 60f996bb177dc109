"""Which manifest of a model serves, as k of n maintainers signed it; and the next such statement, signed and brought to an orchestrator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dcnr.client import Orchestrators
from dcnr.errors import Corrupt, Stale
from dcnr.ids import check_digest
from dcnr.v1 import identity_pb2, model_pb2, orchestrator_pb2
from dcnr.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from trust.envelope import open_envelope, seal
from trust.identity import NodeKey
from trust.network import NetworkPolicy


@dataclass(frozen=True, slots=True)
class Released:
    """The statement in force. ``number`` 0: nobody ever made one. ``manifest`` empty: what training brings is followed."""

    model: str
    number: int = 0
    manifest: str = ""
    reason: str = ""
    created_unix_ms: int = 0
    signers: tuple[str, ...] = ()
    """Ids of the maintainers who signed it."""


def released_of(policy: NetworkPolicy, model: str, envelope: identity_pb2.Envelope | None) -> Released:
    """What an orchestrator shows to be in force, verified. Raises Corrupt, Refused (``unsigned_job``, ``wrong_network``)."""
    if envelope is None:
        return Released(model)
    release = policy.read_release(envelope)
    if release.model != model:
        raise Corrupt(f"a statement about {release.model!r:.80} was shown for {model}", code="wrong_model")
    maintainers = {key for one in (policy.document, *policy.past) for key in one.maintainer_keys}
    signers = open_envelope(envelope, identity_pb2.DOMAIN_RELEASE).signers
    names = tuple(sorted(one.node_id for one in signers if one.public_der in maintainers))
    return Released(model, release.number, release.manifest_digest, release.reason, release.created_unix_ms, names)


async def say(
    orchestrators: Orchestrators, policy: NetworkPolicy, before: Released, keys: Sequence[NodeKey], *, manifest: str, reason: str,
    now_wall: float,
) -> Released:  # fmt: skip
    """Records that ``manifest`` serves; empty: that training is followed. What is in force then.

    At most the two numbers after ``before`` are signed, whatever orchestrators say is next. Raises Refused, NotFound, Stale (``release_not_next``: see
    what is in force anew).
    """
    wish = model_pb2.Release(
        network_id=policy.network_id, model=before.model, number=before.number + 1, manifest_digest=check_digest(manifest) if manifest else "",
        reason=reason, created_unix_ms=int(now_wall * 1000),
    )  # fmt: skip
    try:
        return await _told(orchestrators, policy, wish, keys)
    except Stale as error:
        if error.code != "release_not_next" or error.details.get("number") != str(wish.number + 1):
            raise  # a signature for a later number could be used when that is next
        wish.number += 1
        return await _told(orchestrators, policy, wish, keys)


async def _told(
    orchestrators: Orchestrators, policy: NetworkPolicy, wish: model_pb2.Release, keys: Sequence[NodeKey]
) -> Released:  # fmt: skip
    envelope = seal(identity_pb2.DOMAIN_RELEASE, wish, *keys)
    policy.open_release(envelope)  # too few signatures are noticed here, with the remedy
    request = orchestrator_pb2.ReleaseModelRequest(release=envelope)
    answer = await orchestrators.call(OrchestratorServiceStub, "ReleaseModel", request)
    return released_of(policy, wish.model, answer.release if answer.HasField("release") else None)
