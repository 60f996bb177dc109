"""The network document: who maintains, who decides, what is allowed; believed only as an unbroken chain of threshold signatures from version 1 on.

Network id = first 160 bits of SHA-256 over version 1 as it was signed (the envelope's payload, so that further signatures do not change the id). Every
later version is signed by k of n keys of the version before it *and* by k of n of its own; versions only grow; the newest must not have expired. Who knows
a version follows only what that version's own keys signed: keys that were taken out lead nobody past the version which took them out.
Ours, after The Update Framework's root rotation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Final, TypeVar

from dcnr.errors import Corrupt, DcnrError, InvalidInput, Refused, Stale
from dcnr.ids import NetworkId, check_name, check_node_id, network_id_of
from dcnr.limits import MAX_BOOTSTRAP_ENTRIES, MAX_MANIFEST_BYTES
from dcnr.v1 import common_pb2, identity_pb2, model_pb2
from trust.addresses import split_address
from trust.envelope import MAX_SIGNATURES, Opened, open_envelope, parse, seal
from trust.identity import NodeKey, check_public_key
from trust.standing import FIRST_QUARANTINE_S, LONGEST_QUARANTINE_S, ORDINARY, SHADOW_UNITS, Terms

MAX_DOCUMENT_BYTES: Final = 256 * 1024
MAX_HISTORY: Final = 17
"""Versions in one chain: the newest and 16 older ones. Maintainers skip numbers where that does not suffice: version 1 may sign a later one directly."""
MAX_MAINTAINERS: Final = 32
MAX_ORCHESTRATORS: Final = 256
TRUSTED_S: Final = 365 * 86400.0
"""How long a PNode is trusted where nothing else is said."""
MAX_TRUSTED_PNODES: Final = 1024
MAX_DATA_HOSTS: Final = 64
"""Machines from which data sets may be fetched over https."""
AUDITS: Final = ("none", "drawn")
MAX_REHAB_UNITS: Final = 1000
PROTOCOL_MIN: Final = 1
PROTOCOL_MAX: Final = 1
_Statement = TypeVar("_Statement", model_pb2.JobRequest, model_pb2.JobCancel, model_pb2.JobPause, model_pb2.Release)


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """A verified network document with the chain that proves it (oldest first, the document's own envelope last)."""

    network_id: NetworkId
    document: identity_pb2.NetworkDocument
    history: tuple[identity_pb2.Envelope, ...]
    ever_listed: frozenset[str]
    """Orchestrators of any version of the chain."""
    past: tuple[identity_pb2.NetworkDocument, ...] = ()
    """The versions before, oldest first."""
    begun: identity_pb2.NetworkDocument | None = None
    """The version with which the process began that reads this (`trust.in_force`): how replicas are placed, checked and punished does not change under
    their feet.
    """

    @property
    def envelope(self) -> identity_pb2.Envelope:
        """The newest version as it was signed."""
        return self.history[-1]

    @property
    def orchestrator_ids(self) -> frozenset[str]:
        """The only nodes that PNodes obey."""
        return frozenset(self.document.orchestrator_ids)

    @property
    def single_host(self) -> bool:
        """Demo and tests: the rules on subnets and owners are lifted, and every screen says so."""
        return self._rules.locality == identity_pb2.LOCALITY_SINGLE_HOST

    @property
    def audits_drawn(self) -> bool:
        """Whether claimed training is checked: replicas log their steps and keep evidence, and the holder draws intervals."""
        return self._rules.audits == "drawn"

    @property
    def terms(self) -> Terms:
        """What a fault costs here."""
        document = self._rules
        return Terms(document.first_quarantine_s or FIRST_QUARANTINE_S, document.rehab_units or SHADOW_UNITS)

    def is_orchestrator(self, node_id: str) -> bool:
        """Whether PNodes obey that node."""
        return node_id in self.document.orchestrator_ids

    def has_listed(self, node_id: str) -> bool:
        """Whether any version listed it: what it signed then stays readable. Nobody obeys it for that: `is_orchestrator`."""
        return node_id in self.ever_listed

    def is_trusted(self, node_id: str, now_wall: float) -> bool:
        """Whether maintainers trust that PNode at the moment: it is checked less, never not at all."""
        return any(p.node_id == node_id and p.expires_unix_ms / 1000 > now_wall for p in self.document.trusted_pnodes)

    def expired(self, now_wall: float) -> bool:
        """Whether the newest version has passed its date."""
        return 0 < self.document.expires_unix_ms <= now_wall * 1000

    def open_job_request(self, envelope: identity_pb2.Envelope) -> model_pb2.JobRequest:
        """A request of this network that k maintainers signed. Raises Corrupt, Refused (``unsigned_job``, ``wrong_network``)."""
        return self._statement(model_pb2.JobRequest, envelope, identity_pb2.DOMAIN_JOB_REQUEST, (self.document,))

    def read_job_request(self, envelope: identity_pb2.Envelope) -> model_pb2.JobRequest:
        """One that was accepted once, thus by k maintainers of any version: a job outlives a change of keys. Raises as `open_job_request`."""
        return self._statement(model_pb2.JobRequest, envelope, identity_pb2.DOMAIN_JOB_REQUEST, self._versions)

    def open_cancel(self, envelope: identity_pb2.Envelope) -> model_pb2.JobCancel:
        """A cancellation of this network that k maintainers signed. Raises Corrupt, Refused (``unsigned_job``, ``wrong_network``)."""
        return self._statement(model_pb2.JobCancel, envelope, identity_pb2.DOMAIN_JOB_CANCEL, (self.document,))

    def read_cancel(self, envelope: identity_pb2.Envelope) -> model_pb2.JobCancel:
        """One that was accepted once, by k maintainers of any version. Raises as `open_cancel`."""
        return self._statement(model_pb2.JobCancel, envelope, identity_pb2.DOMAIN_JOB_CANCEL, self._versions)

    def open_pause(self, envelope: identity_pb2.Envelope) -> model_pb2.JobPause:
        """A statement of this network that a job pauses or goes on, by k maintainers. Raises Corrupt, Refused (``unsigned_job``, ``wrong_network``)."""
        return self._statement(model_pb2.JobPause, envelope, identity_pb2.DOMAIN_JOB_PAUSE, (self.document,))

    def read_pause(self, envelope: identity_pb2.Envelope) -> model_pb2.JobPause:
        """One that was accepted once, by k maintainers of any version. Raises as `open_pause`."""
        return self._statement(model_pb2.JobPause, envelope, identity_pb2.DOMAIN_JOB_PAUSE, self._versions)

    def open_release(self, envelope: identity_pb2.Envelope) -> model_pb2.Release:
        """A statement of this network which manifest serves, by k maintainers. Raises Corrupt, Refused (``unsigned_job``, ``wrong_network``)."""
        return self._statement(model_pb2.Release, envelope, identity_pb2.DOMAIN_RELEASE, (self.document,))

    def read_release(self, envelope: identity_pb2.Envelope) -> model_pb2.Release:
        """One that was accepted once, by k maintainers of any version. Raises as `open_release`."""
        return self._statement(model_pb2.Release, envelope, identity_pb2.DOMAIN_RELEASE, self._versions)

    def open_manifest(self, envelope: identity_pb2.Envelope, model: str) -> model_pb2.Manifest:
        """A manifest of that model in this network: number 0 by k maintainers, every other by the orchestrator that it names, each of some version.

        Raises Corrupt (``wrong_network``, ``wrong_signer``), Refused (``too_few_signatures``).
        """
        opened = open_envelope(envelope, identity_pb2.DOMAIN_MANIFEST, max_bytes=MAX_MANIFEST_BYTES)
        manifest = parse(model_pb2.Manifest, opened.payload, MAX_MANIFEST_BYTES)
        if (manifest.network_id, manifest.model) != (self.network_id, model):
            raise Corrupt("the manifest is of another network or model", code="wrong_network")
        if manifest.number == 0:
            _require_any_threshold(self._versions, opened.keys, "the manifest")
        elif not any(self.has_listed(signer.node_id) and signer.node_id == manifest.holder for signer in opened.signers):
            raise Corrupt("the manifest is not signed by the listed orchestrator that it names", code="wrong_signer")
        return manifest

    def successor(self, history: Sequence[identity_pb2.Envelope], *, now_wall: float | None = None) -> NetworkPolicy:
        """The policy of a chain of the same network that ends in a version above this one, the first of these signed by this one's keys.

        That is looked at first: who has not these keys costs one version's signatures. Raises Corrupt, Refused (``wrong_network``, ``too_few_signatures``),
        Stale.
        """
        own, versions = int(self.document.version), claimed_versions(history)
        if network_id_of(history[0].payload) != self.network_id:
            raise Refused("the network document belongs to another network", code="wrong_network", wanted=self.network_id)
        following = next((index for index, version in enumerate(versions) if version > own), None)
        if following is None:
            raise Stale(f"version {versions[-1]} of the network document is not new", code="document_not_newer")
        opened = open_envelope(history[following], identity_pb2.DOMAIN_NETWORK_DOCUMENT, max_bytes=MAX_DOCUMENT_BYTES)
        _require_threshold(self.document, opened.keys, f"version {versions[following]}, by the keys of version {own},")
        return verify_chain(history, now_wall=now_wall, network_id=self.network_id)

    @property
    def _rules(self) -> identity_pb2.NetworkDocument:
        return self.begun or self.document

    @property
    def _versions(self) -> tuple[identity_pb2.NetworkDocument, ...]:
        return (self.document, *reversed(self.past))

    def _statement(
        self, kind: type[_Statement], envelope: identity_pb2.Envelope, domain: identity_pb2.Domain.ValueType,
        versions: Sequence[identity_pb2.NetworkDocument],
    ) -> _Statement:  # fmt: skip
        try:  # by the keys that it claims, all of which have signed if it opens: whoever claims too few maintainers has nothing verified
            _require_any_threshold(versions, {one.public_key for one in envelope.signatures[:MAX_SIGNATURES]}, "the statement")
        except Refused as error:
            raise Refused(error.message, code="unsigned_job", remedy=error.remedy, **error.details) from error
        wanted = {key for one in versions for key in one.maintainer_keys}
        opened = open_envelope(envelope, domain, max_bytes=MAX_DOCUMENT_BYTES, wanted=wanted)
        statement = parse(kind, opened.payload)
        self._require_network(statement.network_id)
        return statement

    def _require_network(self, network_id: str) -> None:
        if network_id != self.network_id:
            raise Refused(
                "the statement belongs to another network", code="wrong_network", wanted=self.network_id, got=network_id[:64]
            )


def create_document(
    *keys: NodeKey,
    name: str,
    now_wall: float,
    orchestrator_ids: Iterable[str],
    threshold: int = 1,
    lifetime_s: float = 0,
    locality: identity_pb2.Locality.ValueType = identity_pb2.LOCALITY_SPREAD,
    store_address: str = "",
    store_bucket: str = "",
    store_scheme: str = "https",
    bootstrap: Iterable[str] = (),
    components: Iterable[str] = (),
    codecs: Iterable[str] = (),
    audit_floor: float = 0.05,
    audits: str = "none",
    trusted: Iterable[str] = (),
    trusted_s: float = TRUSTED_S,
    max_vnode_state_bytes: int = 0,
    data_hosts: Iterable[str] = (),
    terms: Terms = ORDINARY,
) -> identity_pb2.Envelope:
    """Version 1 of a network's document, signed by ``keys``, which become its maintainers. Raises InvalidInput.

    ``trusted``: ids of PNodes that are checked less, for ``trusted_s`` seconds from now on. ``data_hosts``: HOST or HOST:PORT, over https.
    ``components``: what models may be built from; empty: from all that there are.
    """
    until_unix_ms = int((now_wall + trusted_s) * 1000)
    document = identity_pb2.NetworkDocument(
        version=1,
        name=name,
        maintainer_keys=[key.public_der for key in keys],
        threshold=threshold,
        orchestrator_ids=orchestrator_ids,
        locality=locality,
        store_address=store_address,
        store_bucket=store_bucket,
        store_scheme=store_scheme,
        bootstrap=bootstrap,
        protocol=common_pb2.ProtocolRange(min=PROTOCOL_MIN, max=PROTOCOL_MAX),
        components=[check_name(component) for component in components],
        codecs=codecs,
        audit_floor=audit_floor,
        audits=audits,
        trusted_pnodes=[identity_pb2.TrustedPNode(node_id=node_id, expires_unix_ms=until_unix_ms) for node_id in trusted],
        max_vnode_state_bytes=max_vnode_state_bytes,
        data_hosts=data_hosts,
        first_quarantine_s=terms.first_quarantine_s,
        rehab_units=terms.shadow_units,
        created_unix_ms=int(now_wall * 1000),
        expires_unix_ms=int((now_wall + lifetime_s) * 1000) if lifetime_s else 0,
    )
    return sign_document(document, *keys)


def draft_successor(policy: NetworkPolicy) -> identity_pb2.NetworkDocument:
    """A copy of the document with the next version number, to be edited and signed by `sign_document`."""
    draft = identity_pb2.NetworkDocument()
    draft.CopyFrom(policy.document)
    draft.version += 1
    draft.network_id = policy.network_id
    return draft


def sign_document(document: identity_pb2.NetworkDocument, *keys: NodeKey) -> identity_pb2.Envelope:
    """The document signed by these keys. Raises InvalidInput for a document that `verify_chain` would refuse for its content."""
    try:
        _check_content(document)
    except Corrupt as error:
        raise InvalidInput(error.message, code="bad_document", remedy=error.remedy) from error
    return seal(identity_pb2.DOMAIN_NETWORK_DOCUMENT, document, *keys)


def verify_chain(
    history: Sequence[identity_pb2.Envelope], *, now_wall: float | None = None, network_id: str | None = None
) -> NetworkPolicy:
    """The policy that a chain of versions, oldest first, proves.

    ``network_id``: the id that version 1 must have. ``now_wall``: the time at which the newest version must be in force; None leaves that to
    `NetworkPolicy.expired`. Raises Corrupt, Refused (``too_few_signatures``, ``wrong_network``), Stale (``document_expired``, ``document_rolled_back``).
    """
    _check_length(history)
    first, opened = _version(history[0])
    if first.version != 1:
        raise Corrupt("the chain does not begin with version 1", code="bad_document")
    found = network_id_of(opened.payload)
    if network_id is not None and found != network_id:
        raise Refused("the network document belongs to another network", code="wrong_network", wanted=network_id, got=found)
    _require_threshold(first, opened.keys, "version 1")
    previous, past, ever_listed = first, list[identity_pb2.NetworkDocument](), set(first.orchestrator_ids)
    for envelope in history[1:]:
        document, opened = _version(envelope)
        if document.version <= previous.version:
            raise Stale("versions of the network document only grow", code="document_rolled_back")
        if document.network_id != found:
            raise Corrupt("a version of another network in the chain", code="bad_document")
        _require_threshold(previous, opened.keys, f"version {document.version}, by the keys of version {previous.version},")
        _require_threshold(document, opened.keys, f"version {document.version}")
        past.append(previous)
        previous = document
        ever_listed.update(document.orchestrator_ids)
    policy = NetworkPolicy(found, previous, tuple(history), frozenset(ever_listed), tuple(past))
    if now_wall is not None and policy.expired(now_wall):
        raise Stale("the network document has expired", code="document_expired", remedy="ask a maintainer for a new version")
    return policy


def claimed_versions(history: Sequence[identity_pb2.Envelope]) -> list[int]:
    """The numbers that a chain claims, before any signature is looked at. Raises Corrupt."""
    _check_length(history)
    return [int(parse(identity_pb2.NetworkDocument, envelope.payload, MAX_DOCUMENT_BYTES).version) for envelope in history]


def _check_length(history: Sequence[identity_pb2.Envelope]) -> None:
    if not 0 < len(history) <= MAX_HISTORY:
        raise Corrupt(f"a chain of {len(history)} versions, 1 to {MAX_HISTORY} are allowed", code="bad_document")


def _version(envelope: identity_pb2.Envelope) -> tuple[identity_pb2.NetworkDocument, Opened]:
    opened = open_envelope(envelope, identity_pb2.DOMAIN_NETWORK_DOCUMENT, max_bytes=MAX_DOCUMENT_BYTES)
    document = parse(identity_pb2.NetworkDocument, opened.payload)
    _check_content(document)
    return document, opened


def _require_any_threshold(versions: Sequence[identity_pb2.NetworkDocument], keys: Set[bytes], what: str) -> None:
    """Raises as `_require_threshold` for the first of ``versions`` where none of them is satisfied."""
    if not any(len(keys & set(one.maintainer_keys)) >= one.threshold for one in versions):
        _require_threshold(versions[0], keys, what)


def _require_threshold(document: identity_pb2.NetworkDocument, keys: Set[bytes], what: str) -> None:
    valid = len(keys & set(document.maintainer_keys))
    if valid < document.threshold:
        raise Refused(
            f"{what} is signed by {valid} of the {document.threshold} maintainers needed",
            code="too_few_signatures",
            remedy="let more maintainers sign; dcnr network show lists them",
            valid=valid,
            threshold=document.threshold,
        )


def _check_content(document: identity_pb2.NetworkDocument) -> None:
    keys = list(document.maintainer_keys)
    if len(keys) > MAX_MAINTAINERS or len(set(keys)) != len(keys) or not 0 < document.threshold <= len(keys):
        raise Corrupt("a network has 1 to 32 distinct maintainer keys and a threshold among them", code="bad_document")
    if document.version < 1 or (document.version == 1) != (document.network_id == ""):
        raise Corrupt("version 1 has no network id, every later version has", code="bad_document")
    if not 0 < len(document.name) <= 63 or not document.name.isprintable():
        raise Corrupt("a network's name has 1 to 63 printable characters", code="bad_document")
    if len(document.orchestrator_ids) > MAX_ORCHESTRATORS or len(set(document.orchestrator_ids)) != len(document.orchestrator_ids):
        raise Corrupt(f"a network lists at most {MAX_ORCHESTRATORS} distinct orchestrators", code="bad_document")
    if len(document.trusted_pnodes) > MAX_TRUSTED_PNODES or len(document.bootstrap) > MAX_BOOTSTRAP_ENTRIES:
        raise Corrupt("too many trusted PNodes or bootstrap entries", code="bad_document")
    if len(document.data_hosts) > MAX_DATA_HOSTS or len(set(document.data_hosts)) != len(document.data_hosts):
        raise Corrupt(f"a network allows at most {MAX_DATA_HOSTS} distinct data hosts", code="bad_document")
    if not 0 < document.protocol.min <= document.protocol.max:
        raise Corrupt("the document names no range of protocol versions", code="bad_document")
    if document.store_scheme not in ("", "http", "https") or not 0 <= document.audit_floor <= 1:
        raise Corrupt("the store's scheme or the audit floor is out of range", code="bad_document")
    if not 0 <= document.first_quarantine_s <= LONGEST_QUARANTINE_S or document.rehab_units > MAX_REHAB_UNITS:
        raise Corrupt(
            f"a first quarantine lasts at most seven days, and rehab has at most {MAX_REHAB_UNITS} units", code="bad_document"
        )
    if document.audits not in ("", *AUDITS):
        raise Corrupt(f"audits are {' or '.join(AUDITS)}", code="bad_document")
    try:
        for key in keys:
            check_public_key(key)
        for node_id in [*document.orchestrator_ids, *(p.node_id for p in document.trusted_pnodes)]:
            check_node_id(node_id)
        for entry in document.bootstrap:
            node_id, separator, address = entry.partition("@")
            check_node_id(node_id if separator else "")
            split_address(address)
        if document.store_address:
            split_address(document.store_address)
        for host in document.data_hosts:
            split_address(host if ":" in host else f"{host}:443")
            if host != host.lower():
                raise InvalidInput(f"data host {host!r} has capital letters", code="bad_address")
    except DcnrError as error:
        raise Corrupt(f"the network document is malformed: {error.message}", code="bad_document", remedy=error.remedy) from error
