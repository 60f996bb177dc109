"""Manifests as a client reads them: believed only when signed by a listed orchestrator, or, number 0, by k maintainers. Pure."""

from __future__ import annotations

from dcnr.errors import Corrupt, NotFound
from dcnr.limits import MAX_MANIFEST_BYTES
from dcnr.v1 import identity_pb2, model_pb2
from trust.envelope import open_envelope, parse
from trust.network import NetworkPolicy


def open_manifest(policy: NetworkPolicy, envelope: identity_pb2.Envelope, model: str) -> model_pb2.Manifest:
    """The manifest in an envelope. Raises Corrupt, Refused (``too_few_signatures``)."""
    opened = open_envelope(envelope, identity_pb2.DOMAIN_MANIFEST, max_bytes=MAX_MANIFEST_BYTES)
    manifest = parse(model_pb2.Manifest, opened.payload, MAX_MANIFEST_BYTES)
    if manifest.network_id != policy.network_id or manifest.model != model:
        raise Corrupt("the manifest is of another network or model", code="wrong_network")
    if manifest.number == 0:
        policy.check_threshold(envelope, identity_pb2.DOMAIN_MANIFEST, max_bytes=MAX_MANIFEST_BYTES)
    elif not any(policy.is_orchestrator(signer.node_id) and signer.node_id == manifest.holder for signer in opened.signers):
        raise Corrupt("the manifest is not signed by a listed orchestrator", code="wrong_signer")
    return manifest


def released(manifest: model_pb2.Manifest) -> dict[str, model_pb2.Checkpoint]:
    """The checkpoint of each VNode that serving, export and credit use: the newest cleared one.

    Where the manifest says that there are no audits, every sane durable checkpoint counts as cleared. Raises NotFound (``not_cleared``).
    """
    result: dict[str, model_pb2.Checkpoint] = {}
    for entry in manifest.entries:
        if manifest.audits == "none" and entry.working:
            result[entry.vnode] = entry.working[0]
        elif entry.HasField("cleared"):
            result[entry.vnode] = entry.cleared
        else:
            raise NotFound(
                f"{entry.vnode} has no cleared checkpoint in this manifest", code="not_cleared", remedy="name another manifest"
            )
    return result
