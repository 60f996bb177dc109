"""Confirms claims by reading the head: through this PNode's own grant, or by a second listed orchestrator's fresh statement. Never by gossip."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from urllib.parse import urlsplit

from dataservice import keys
from dataservice.addresses import AddressRule
from dataservice.objects import OUT_OF_REACH_S
from dataservice.transfer import fetch_small
from dcnr import limits
from dcnr.client import Orchestrators
from dcnr.errors import Corrupt, DcnrError, Refused, TimedOut
from dcnr.ids import NodeId, check_name
from dcnr.v1 import identity_pb2, model_pb2, orchestrator_pb2
from dcnr.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from pnode.authority import Source
from trust.envelope import open_single, parse, parse_envelope
from trust.network import NetworkPolicy

Found = tuple[identity_pb2.Envelope, Source]
HeadRead = Callable[[identity_pb2.Envelope, Source], Awaitable[None]]


class HeadCheck:
    """Reads heads of models. ``grant`` URLs come from orchestrators, so each is checked to mean exactly the head object at the network's store."""

    def __init__(
        self, *, policy: Callable[[], NetworkPolicy], orchestrators: Orchestrators, rule: Callable[[], AddressRule]
    ) -> None:
        self._policy, self._orchestrators, self._rule = policy, orchestrators, rule
        self._urls: dict[str, str] = {}
        self._store_from_s = -math.inf
        """On the loop's clock: until then the store is asked last."""

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

    async def read(self, model: str, claimant: NodeId | None) -> Found:
        """The head's envelope (signature not yet judged) with where it came from. Raises Unavailable or Corrupt if nobody can show it.

        The store is asked first; one that did not answer in time only after the orchestrators, for `OUT_OF_REACH_S`.
        """
        ways: list[Callable[[], Awaitable[Found | None]]] = [partial(self._fetched, model), partial(self._told, model, claimant)]
        if asyncio.get_running_loop().time() < self._store_from_s:
            ways.reverse()
        failed: DcnrError = Corrupt("no grant for the head is known", code="no_head_grant")
        for way in ways:
            try:
                found = await way()
            except DcnrError as error:
                failed = error
            else:
                if found is not None:
                    return found
        raise failed

    async def _fetched(self, model: str) -> Found | None:
        """By this PNode's own grant; None where it has none."""
        if model not in self._urls:
            return None
        now_s = asyncio.get_running_loop().time
        try:
            data, _ = await fetch_small(self._urls[model], max_bytes=limits.MAX_HEAD_BYTES, rule=self._rule())
        except TimedOut:
            self._store_from_s = now_s() + OUT_OF_REACH_S
            raise
        self._store_from_s = -math.inf
        return parse_envelope(data, limits.MAX_HEAD_BYTES), Source.OWN_GET

    async def _told(self, model: str, claimant: NodeId | None) -> Found | None:
        """By the fresh statement of another orchestrator than ``claimant``; None where none is known."""
        failed: DcnrError | None = None
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
                failed = error
        if failed is not None:
            raise failed
        return None

    def _statement(self, envelope: identity_pb2.Envelope, asked: NodeId, model: str, nonce: bytes) -> identity_pb2.Envelope:
        payload, signer = open_single(envelope, identity_pb2.DOMAIN_HEAD_STATEMENT)
        statement = parse(model_pb2.HeadStatement, payload)
        if signer.node_id != asked or statement.nonce != nonce or statement.model != model:
            raise Corrupt("a statement of the head that does not answer the question", code="bad_statement")
        _, holder = open_single(statement.head, identity_pb2.DOMAIN_HEAD, max_bytes=limits.MAX_HEAD_BYTES)
        if holder.node_id == asked:
            raise Corrupt("a holder's own word does not confirm its term", code="own_word", holder=asked)
        return statement.head
