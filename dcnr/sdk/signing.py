"""A job on its way to k of n signatures: maintainers sign one after the other, each on their own machine, and know what they sign. Pure.

Manifest 0 is signed first, because the request names the digest of its envelope, signatures included. `Draft.sign` signs whatever is due: manifest 0
until k have signed it, then the request. A draft travels as a JSON file that holds no secret.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from dcnr.errors import Corrupt, DcnrError, InvalidInput, Refused
from dcnr.graph import graph_from_bytes
from dcnr.ids import Digest, digest_of
from dcnr.limits import MAX_GRAPH_BYTES, MAX_MANIFEST_BYTES
from dcnr.v1 import identity_pb2, model_pb2
from trust.envelope import digest_of_envelope, merge_signatures, open_envelope, parse, parse_envelope, seal
from trust.identity import NodeKey
from trust.network import NetworkPolicy

FORMAT: Final = "dcnr-request-1"
MAX_DRAFT_BYTES: Final = 2 * (MAX_GRAPH_BYTES + 2 * MAX_MANIFEST_BYTES)


def check_maintainers(policy: NetworkPolicy, keys: Sequence[NodeKey]) -> None:
    """Raises Refused (``not_a_maintainer``) for a key whose signature nobody would count."""
    for key in keys:
        if key.public_der not in policy.document.maintainer_keys:
            raise Refused(
                f"key {key.node_id} is not a maintainer's of this network", code="not_a_maintainer", remedy="give another --key"
            )


@dataclass(frozen=True, slots=True)
class Draft:
    """A job that waits for signatures. ``manifest`` is None where the job goes on from an existing manifest."""

    graph: bytes
    request: model_pb2.JobRequest
    """Without ``initial_manifest_digest`` until manifest 0 has its signatures."""
    manifest_0: model_pb2.Manifest | None
    manifest: identity_pb2.Envelope | None = None
    signed_request: identity_pb2.Envelope | None = None

    def sign(self, policy: NetworkPolicy, *keys: NodeKey) -> Draft:
        """The draft with these maintainers' signatures on all that is due. Raises Refused (``not_a_maintainer``, ``wrong_network``)."""
        check_maintainers(policy, keys)
        if self.request.network_id != policy.network_id:
            raise Refused(
                "the draft belongs to another network", code="wrong_network", wanted=policy.network_id, got=self.request.network_id
            )
        draft = self._sign_manifest(policy, keys) if self.manifest_0 is not None and not self._manifest_signed(policy) else self
        return draft._sign_request(keys) if draft._manifest_signed(policy) else draft

    def missing(self, policy: NetworkPolicy) -> tuple[str, int]:
        """(``manifest`` or ``request``, signatures still missing on it); (``""``, 0) when the job can be submitted."""
        if not self._manifest_signed(policy):
            return "manifest", int(policy.document.threshold) - _num_signers(policy, self.manifest)
        missing = int(policy.document.threshold) - _num_signers(policy, self.signed_request)
        return ("request", missing) if missing > 0 else ("", 0)

    def require(self, policy: NetworkPolicy) -> identity_pb2.Envelope:
        """The signed request. Raises Refused (``too_few_signatures``)."""
        what, missing = self.missing(policy)
        if missing or self.signed_request is None:
            raise Refused(
                f"{missing} more maintainers must sign the {what}",
                code="too_few_signatures",
                remedy="let them run: dcnr model sign FILE",
            )
        return self.signed_request

    def to_json(self) -> str:
        """The draft as a file: what is signed in readable form, and the bytes that count."""
        table = {
            "format": FORMAT,
            "summary": {
                "network_id": self.request.network_id, "job_id": self.request.job_id, "model": self.request.model,
                "graph_digest": self.request.graph_digest, "dataset": self.request.dataset_name, "num_batches": self.request.num_batches,
                "signatures": {name: len(e.signatures) if e else 0 for name, e in (("manifest", self.manifest), ("request", self.signed_request))},
            },
            "graph": _text(self.graph),
            "request": _text(self.request.SerializeToString(deterministic=True)),
            "manifest_0": _text(self.manifest_0.SerializeToString(deterministic=True)) if self.manifest_0 is not None else "",
            "manifest": _text(self.manifest.SerializeToString(deterministic=True)) if self.manifest is not None else "",
            "signed_request": _text(self.signed_request.SerializeToString(deterministic=True)) if self.signed_request is not None else "",
        }  # fmt: skip
        return json.dumps(table, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Draft:
        """The draft in a file, its parts checked against each other. Raises InvalidInput."""
        if len(text) > MAX_DRAFT_BYTES:
            raise InvalidInput(f"a draft of more than {MAX_DRAFT_BYTES} bytes", code="bad_draft")
        try:
            table = json.loads(text)
            if not isinstance(table, dict) or table.get("format") != FORMAT:
                raise InvalidInput(f"not a draft of format {FORMAT}", code="bad_draft")
            draft = cls._from_table(table)
            draft._check()
        except (ValueError, RecursionError) as error:
            raise InvalidInput("the draft is damaged", code="bad_draft") from error
        except Corrupt as error:
            raise InvalidInput(f"the draft is damaged: {error.message}", code="bad_draft") from error
        return draft

    @classmethod
    def _from_table(cls, table: dict[str, Any]) -> Draft:
        parts = {name: _bytes(table, name) for name in ("graph", "request", "manifest_0", "manifest", "signed_request")}
        return cls(
            graph=parts["graph"],
            request=parse(model_pb2.JobRequest, parts["request"]),
            manifest_0=parse(model_pb2.Manifest, parts["manifest_0"], MAX_MANIFEST_BYTES) if parts["manifest_0"] else None,
            manifest=parse_envelope(parts["manifest"], MAX_MANIFEST_BYTES) if parts["manifest"] else None,
            signed_request=parse_envelope(parts["signed_request"]) if parts["signed_request"] else None,
        )

    def _check(self) -> None:
        """What is shown to a signer is what is signed."""
        graph_from_bytes(self.graph)
        same = digest_of(self.graph) == self.request.graph_digest
        if self.manifest_0 is not None:
            same &= self.manifest_0.graph_digest == self.request.graph_digest and self.manifest_0.model == self.request.model
        if self.manifest is not None:
            opened = open_envelope(self.manifest, identity_pb2.DOMAIN_MANIFEST, max_bytes=MAX_MANIFEST_BYTES)
            same &= self.manifest_0 is not None and opened.payload == self.manifest_0.SerializeToString(deterministic=True)
        if self.signed_request is not None:
            opened = open_envelope(self.signed_request, identity_pb2.DOMAIN_JOB_REQUEST)
            same &= opened.payload == self._final_request().SerializeToString(deterministic=True)
        if not same:
            raise InvalidInput("the parts of the draft do not belong together", code="bad_draft")

    def _sign_manifest(self, policy: NetworkPolicy, keys: tuple[NodeKey, ...]) -> Draft:
        if self.manifest_0 is None:
            return self
        manifest = self.manifest
        for key in keys:  # no more signatures than needed: one added later would change the digest that the request names
            if _num_signers(policy, manifest) < policy.document.threshold:
                manifest = _added(manifest, seal(identity_pb2.DOMAIN_MANIFEST, self.manifest_0, key))
        return replace(self, manifest=manifest)

    def _sign_request(self, keys: tuple[NodeKey, ...]) -> Draft:
        signed = seal(identity_pb2.DOMAIN_JOB_REQUEST, self._final_request(), *keys)
        return replace(self, signed_request=_added(self.signed_request, signed))

    def _manifest_signed(self, policy: NetworkPolicy) -> bool:
        return self.manifest_0 is None or _num_signers(policy, self.manifest) >= policy.document.threshold

    def _final_request(self) -> model_pb2.JobRequest:
        request = model_pb2.JobRequest()
        request.CopyFrom(self.request)
        if self.manifest is not None:
            request.initial_manifest_digest = digest_of_envelope(self.manifest)
        return request

    @property
    def manifest_digest(self) -> Digest | None:
        """Digest of manifest 0 as it is signed now; None where the job goes on from an existing manifest."""
        return digest_of_envelope(self.manifest) if self.manifest is not None else None


def _num_signers(policy: NetworkPolicy, envelope: identity_pb2.Envelope | None) -> int:
    if envelope is None:
        return 0
    try:
        opened = open_envelope(envelope, envelope.domain, max_bytes=MAX_MANIFEST_BYTES)
    except DcnrError:
        return 0
    return len({signer.public_der for signer in opened.signers} & set(policy.document.maintainer_keys))


def _added(before: identity_pb2.Envelope | None, more: identity_pb2.Envelope) -> identity_pb2.Envelope:
    return more if before is None else merge_signatures([before, more])


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(table: dict[str, Any], name: str) -> bytes:
    text = table.get(name)
    if not isinstance(text, str):
        raise InvalidInput(f"the draft has no {name!r}", code="bad_draft")
    return base64.b64decode(text, validate=True)
