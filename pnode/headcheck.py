"""Confirms claims by reading the head: through this PNode's own grant, or by a second listed orchestrator's fresh statement. Never by gossip."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from dataservice import keys
from dataservice.addresses import AddressRule
from dataservice.transfer import fetch_small
from dcnr import limits
from dcnr.client import Orchestrators
from dcnr.errors import Corrupt, DcnrError, Refused
from dcnr.ids import NodeId, check_name
from dcnr.v1 import identity_pb2, model_pb2, orchestrator_pb2
from dcnr.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from pnode.authority import Source
from trust.envelope import open_single, parse, parse_envelope
from trust.network import NetworkPolicy

HeadRead = Callable[[identity_pb2.Envelope, Source], Awaitable[None]]


class HeadCheck:
    """Reads heads of models. ``grant`` URLs come from orchestrators, so each is checked to mean exactly the head object at the network's store."""

    def __init__(
        self, *, policy: Callable[[], NetworkPolicy], orchestrators: Orchestrators, rule: Callable[[], AddressRule]
    ) -> None:
        self._policy, self._orchestrators, self._rule = policy, orchestrators, rule
        self._urls: dict[str, str] = {}

    def granted(self, model: str, url: str) -> None:
        """Remembers a grant for the head of ``model`` if it is one; others are refused (Refused ``bad_head_grant``)."""
        document = self._policy().document
        self._rule().check(url)  # its grammar is narrower than that of `urlsplit`, which raises for some texts
        parts = urlsplit(url)
        wanted_path = f"/{document.store_bucket}/{keys.head(check_name(model))}"
        if (
            parts.path != wanted_path
            or parts.netloc != document.store_address
            or parts.scheme != (document.store_scheme or "https")
        ):
            raise Refused("a grant that is not for the head at the network's store", code="bad_head_grant", path=parts.path[:200])
        if any(word in parts.query for word in ("versionId", "partNumber", "response-", "Range")):
            raise Refused("a grant for a version or a part of the head", code="bad_head_grant")
        self._urls[model] = url

    async def read(self, model: str, claimant: NodeId | None) -> tuple[identity_pb2.Envelope, Source]:
        """The head's envelope (signature not yet judged) with where it came from. Raises Unavailable or Corrupt if nobody can show it."""
        try:
            if model in self._urls:
                data, _ = await fetch_small(self._urls[model], max_bytes=limits.MAX_HEAD_BYTES, rule=self._rule())
                return parse_envelope(data, limits.MAX_HEAD_BYTES), Source.OWN_GET
        except DcnrError as error:
            first = error
        else:
            first = Corrupt("no grant for the head is known", code="no_head_grant")
        nonce = secrets.token_bytes(32)
        for node_id, addresses in self._orchestrators.known():
            if node_id == claimant or not self._policy().is_orchestrator(node_id):
                continue
            try:
                connection = await self._orchestrators.connection(node_id, addresses)
                answer = await connection.call(
                    OrchestratorServiceStub(connection.channel).ConfirmHead,
                    orchestrator_pb2.ConfirmHeadRequest(model=model, nonce=nonce),
                    timeout_s=limits.CALL_TIMEOUT_S,
                )
                return self._statement(answer.statement, node_id, model, nonce), Source.SECOND_STATEMENT
            except DcnrError as error:
                first = error
        raise first

    def _statement(self, envelope: identity_pb2.Envelope, asked: NodeId, model: str, nonce: bytes) -> identity_pb2.Envelope:
        payload, signer = open_single(envelope, identity_pb2.DOMAIN_HEAD_STATEMENT)
        statement = parse(model_pb2.HeadStatement, payload)
        if signer.node_id != asked or statement.nonce != nonce or statement.model != model:
            raise Corrupt("a statement of the head that does not answer the question", code="bad_statement")
        _, holder = open_single(statement.head, identity_pb2.DOMAIN_HEAD, max_bytes=limits.MAX_HEAD_BYTES)
        if holder.node_id == asked:
            raise Corrupt("a holder's own word does not confirm its term", code="own_word", holder=asked)
        return statement.head
