"""The next version of a network document on its way to its signatures: maintainers sign one after the other, each on their own machine. Pure.

What is signed is the document before with a few changes and the next number. It is in force once k maintainers of the version before, and k of its own, have
signed; `Amendment.lacking` says of whom signatures are awaited. It travels as a JSON file that holds no secret.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dcnr.errors import Corrupt, InvalidInput, Refused, Stale
from dcnr.ids import check_name, check_node_id, node_id_of
from dcnr.v1 import identity_pb2
from trust.envelope import envelope_in_text, merge_signatures, open_envelope, parse, text_of_envelope
from trust.identity import NodeKey
from trust.network import MAX_DOCUMENT_BYTES, MAX_HISTORY, NetworkPolicy, draft_successor, sign_document, verify_chain

FORMAT: Final = "dcnr-network-draft-1"
MAX_DRAFT_BYTES: Final = 2 * (MAX_HISTORY + 1) * MAX_DOCUMENT_BYTES


@dataclass(frozen=True, slots=True)
class Changes:
    """What the next version has otherwise; None leaves a value as it is."""

    add_orchestrators: Sequence[str] = ()
    remove_orchestrators: Sequence[str] = ()
    add_bootstrap: Sequence[str] = ()
    remove_bootstrap: Sequence[str] = ()
    trust: Sequence[str] = ()
    """PNodes, until ``trusted_until_unix_ms``; one that is trusted already is trusted until then."""
    untrust: Sequence[str] = ()
    trusted_until_unix_ms: int = 0
    audits: str | None = None
    store: tuple[str, str] | None = None
    """Scheme and host:port."""
    add_data_hosts: Sequence[str] = ()
    """HOST or HOST:PORT, from which data sets may be fetched over https."""
    remove_data_hosts: Sequence[str] = ()
    add_components: Sequence[str] = ()
    """What models may be built from; where none is named, from all that there are."""
    remove_components: Sequence[str] = ()
    add_maintainers: Sequence[bytes] = ()
    """Public keys (DER)."""
    remove_maintainers: Sequence[str] = ()
    """Ids of keys."""
    threshold: int | None = None
    """How many of the maintainers must sign from then on."""


@dataclass(frozen=True, slots=True)
class Lacking:
    """Signatures that one version's maintainers have still to give: any ``count`` of ``waiting``, by id."""

    version: int
    count: int
    waiting: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Amendment:
    """The version before, as policy, and the signed draft of the next one."""

    before: NetworkPolicy
    envelope: identity_pb2.Envelope

    @property
    def document(self) -> identity_pb2.NetworkDocument:
        """What is to be in force."""
        opened = open_envelope(self.envelope, identity_pb2.DOMAIN_NETWORK_DOCUMENT, max_bytes=MAX_DOCUMENT_BYTES)
        return parse(identity_pb2.NetworkDocument, opened.payload)

    def lacking(self) -> tuple[Lacking, ...]:
        """Whose signatures it lacks: of the version before's maintainers, of its own; empty when it can be in force."""
        signed, found = self._signed(), list[Lacking]()
        for one in (self.before.document, self.document):
            keys = set(one.maintainer_keys)
            if len(signed & keys) < one.threshold:
                waiting = tuple(sorted(node_id_of(key) for key in keys - signed))
                found.append(Lacking(int(one.version), int(one.threshold) - len(signed & keys), waiting))
        return tuple(found)

    def missing(self) -> int:
        """How many signatures it lacks at least; who maintains both versions signs for both."""
        found = self.lacking()
        both = set[str].intersection(*(set(one.waiting) for one in found)) if len(found) == 2 else set[str]()
        return sum(one.count for one in found) - min([len(both), *(one.count for one in found)])

    def _signed(self) -> set[bytes]:
        opened = open_envelope(self.envelope, identity_pb2.DOMAIN_NETWORK_DOCUMENT, max_bytes=MAX_DOCUMENT_BYTES)
        return {signer.public_der for signer in opened.signers}

    def sign(self, *keys: NodeKey) -> Amendment:
        """With these maintainers' signatures. Raises Refused (``not_a_maintainer``), InvalidInput."""
        known = {*self.before.document.maintainer_keys, *self.document.maintainer_keys}
        for key in keys:
            if key.public_der not in known:
                raise Refused(
                    f"key {key.node_id} is not a maintainer's of this network", code="not_a_maintainer", remedy="give another --key"
                )
        return replace(self, envelope=merge_signatures([self.envelope, sign_document(self.document, *keys)]))

    def policy(self) -> NetworkPolicy:
        """What is in force with it. Raises Refused (``too_few_signatures``, ``chain_full``)."""
        return self.before.successor(_fitting([*self.before.history, self.envelope]))

    def to_json(self) -> str:
        """As a file."""
        documents = [text_of_envelope(envelope) for envelope in self.before.history]
        summary = {
            "network_id": self.before.network_id,
            "version": int(self.document.version),
            "signatures_missing": self.missing(),
            "signatures_of": [{"version": one.version, "missing": one.count, "of": one.waiting} for one in self.lacking()],
        }
        return (
            json.dumps(
                {"format": FORMAT, "summary": summary, "documents": documents, "draft": text_of_envelope(self.envelope)}, indent=2
            )
            + "\n"
        )

    @classmethod
    def from_json(cls, text: str) -> Amendment:
        """The draft in a file, its chain verified. Raises InvalidInput."""
        if len(text) > MAX_DRAFT_BYTES:
            raise InvalidInput(f"a draft of more than {MAX_DRAFT_BYTES} bytes", code="bad_draft")
        try:
            table = json.loads(text)
            if not isinstance(table, dict) or table.get("format") != FORMAT or not isinstance(table.get("documents"), list):
                raise InvalidInput(f"not a draft of format {FORMAT}", code="bad_draft")
            history = [envelope_in_text(one, MAX_DOCUMENT_BYTES) for one in table["documents"][: MAX_HISTORY + 1]]
            made = cls(verify_chain(history), envelope_in_text(table.get("draft"), MAX_DOCUMENT_BYTES))
            document = made.document
        except (ValueError, RecursionError, Corrupt, Refused, Stale) as error:
            raise InvalidInput(f"the draft is damaged: {error}", code="bad_draft") from error
        if (document.network_id, document.version) != (made.before.network_id, made.before.document.version + 1):
            raise InvalidInput("the draft is not of the next version of the chain beside it", code="bad_draft")
        return made


def amend(policy: NetworkPolicy, changes: Changes, keys: Sequence[NodeKey], *, now_wall: float) -> Amendment:
    """The next version, signed by ``keys``. Raises InvalidInput for changes that change nothing or do not fit, Refused (``not_a_maintainer``)."""
    document = draft_successor(policy)
    _apply(document, changes)
    same = draft_successor(policy)
    if not document.orchestrator_ids:
        raise InvalidInput("nobody would be left to decide", code="no_orchestrator_left", remedy="add another orchestrator")
    if document == same:
        raise InvalidInput("nothing would change", code="nothing_to_change", remedy="dcnr network amend --help")
    document.created_unix_ms = int(now_wall * 1000)
    if not keys:
        raise InvalidInput("a draft is signed by at least one maintainer", code="no_key")
    return Amendment(policy, sign_document(document, *keys)).sign(*keys)


def _apply(document: identity_pb2.NetworkDocument, changes: Changes) -> None:
    added = [check_node_id(name) for name in changes.add_orchestrators]
    document.orchestrator_ids[:] = _swapped(document.orchestrator_ids, added, changes.remove_orchestrators, "orchestrator")
    document.bootstrap[:] = _swapped(document.bootstrap, changes.add_bootstrap, changes.remove_bootstrap, "bootstrap entry")
    document.data_hosts[:] = _swapped(document.data_hosts, changes.add_data_hosts, changes.remove_data_hosts, "data host")
    named = [check_name(name) for name in changes.add_components]
    document.components[:] = _swapped(document.components, named, changes.remove_components, "component")
    trusted = {one.node_id: int(one.expires_unix_ms) for one in document.trusted_pnodes}
    for node_id in changes.untrust:
        if trusted.pop(node_id, None) is None:
            raise InvalidInput(f"{node_id} is not a trusted PNode", code="not_there")
    trusted.update((check_node_id(node_id), changes.trusted_until_unix_ms) for node_id in changes.trust)
    del document.trusted_pnodes[:]
    document.trusted_pnodes.extend(
        identity_pb2.TrustedPNode(node_id=name, expires_unix_ms=until) for name, until in trusted.items()
    )
    _rotate(document, changes)
    if changes.audits is not None:
        document.audits = changes.audits
    if changes.store is not None:
        document.store_scheme, document.store_address = changes.store


def _rotate(document: identity_pb2.NetworkDocument, changes: Changes) -> None:
    keys: dict[str, bytes] = {node_id_of(key): key for key in document.maintainer_keys}
    for node_id in changes.remove_maintainers:
        if keys.pop(node_id, None) is None:
            raise InvalidInput(f"{node_id} is no maintainer of this network", code="not_there", remedy="dcnr network show")
    keys.update((node_id_of(key), key) for key in changes.add_maintainers)
    document.maintainer_keys[:] = keys.values()
    if changes.threshold is not None:
        document.threshold = changes.threshold


def _fitting(chain: list[identity_pb2.Envelope]) -> list[identity_pb2.Envelope]:
    """The chain, without one old version where it is too long: one that took as few keys and orchestrators as possible with it, and that the next one can
    do without. Raises Refused (``chain_full``) where the keys were changed so often that there is none.
    """
    if len(chain) <= MAX_HISTORY:
        return chain
    shorter: list[tuple[tuple[int, int], list[identity_pb2.Envelope]]] = []
    for index in range(1, len(chain) - 1):
        rest = [*chain[:index], *chain[index + 1 :]]
        with contextlib.suppress(Refused):
            found = verify_chain(rest)
            keys = {key for one in (*found.past, found.document) for key in one.maintainer_keys}
            shorter.append(((len(keys), len(found.ever_listed)), rest))
    if not shorter:
        raise Refused(
            f"a chain holds {MAX_HISTORY} versions, and every one of these is needed to prove the next",
            code="chain_full",
            remedy="let maintainers of an older version sign too, so that the versions between can be left out",
        )
    return max(shorter, key=lambda item: item[0])[1]


def _swapped(names: Iterable[str], add: Iterable[str], remove: Sequence[str], what: str) -> list[str]:
    found = list(names)
    for name in remove:
        if name not in found:
            raise InvalidInput(f"{name} is no {what} of the network document", code="not_there", remedy="dcnr network show")
        found.remove(name)
    return [*found, *(name for name in dict.fromkeys(add) if name not in found)]
