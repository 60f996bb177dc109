"""Goal: a network document is believed only as an unbroken chain of threshold signatures; k-1 signatures and older versions are worth nothing."""

from __future__ import annotations

import pytest

from dcnr.errors import Corrupt, InvalidInput, Refused, Stale
from dcnr.v1 import common_pb2, identity_pb2, model_pb2
from trust.envelope import merge_signatures, seal
from trust.identity import NodeKey, verify_signature
from trust.network import (
    MAX_DOCUMENT_BYTES,
    MAX_HISTORY,
    NetworkPolicy,
    create_document,
    draft_successor,
    sign_document,
    verify_chain,
)
from trust.standing import ORDINARY, Terms

NOW = 1_700_000_000.0
ALICE, BOB, CAROL, DAVE, ERIN, MALLORY, ORCHESTRATOR = (NodeKey.generate() for _ in range(7))
MANY_KEYS = [ALICE.public_der, *(NodeKey.generate().public_der for _ in range(32))]


def version_1(*keys: NodeKey, threshold: int = 1, lifetime_s: float = 0) -> identity_pb2.Envelope:
    return create_document(
        *keys, name="demo", now_wall=NOW, orchestrator_ids=[ORCHESTRATOR.node_id], threshold=threshold, lifetime_s=lifetime_s
    )


def two_of_three() -> NetworkPolicy:
    return verify_chain([version_1(ALICE, BOB, CAROL, threshold=2)])


def request(policy: NetworkPolicy, *keys: NodeKey, network_id: str | None = None) -> identity_pb2.Envelope:
    message = model_pb2.JobRequest(network_id=policy.network_id if network_id is None else network_id, job_id="j", model="m")
    return seal(identity_pb2.DOMAIN_JOB_REQUEST, message, *keys)


def test_the_id_names_the_content_not_the_signatures() -> None:
    document = version_1(ALICE, BOB)
    document_again = merge_signatures([document, sign_document(identity_pb2.NetworkDocument.FromString(document.payload), BOB)])
    assert verify_chain([document]).network_id == verify_chain([document_again]).network_id
    other = identity_pb2.NetworkDocument.FromString(document.payload)
    other.store_bucket = "other"
    assert verify_chain([sign_document(other, ALICE)]).network_id != verify_chain([document]).network_id


def test_the_first_version_has_its_threshold_too() -> None:
    document = identity_pb2.NetworkDocument.FromString(version_1(ALICE, BOB, CAROL, threshold=2).payload)
    assert verify_chain([sign_document(document, ALICE, CAROL)]).document.threshold == 2
    for keys in ([ALICE], [ALICE, MALLORY]):
        with pytest.raises(Refused) as refused:
            verify_chain([sign_document(document, *keys)])
        assert refused.value.code == "too_few_signatures"


@pytest.mark.parametrize(
    ("locality", "single_host"), [(identity_pb2.LOCALITY_SPREAD, False), (identity_pb2.LOCALITY_SINGLE_HOST, True)]
)
def test_rules_on_subnets_are_lifted_only_where_the_document_says_so(
    locality: identity_pb2.Locality.ValueType, single_host: bool
) -> None:
    document = create_document(ALICE, name="demo", now_wall=NOW, orchestrator_ids=[ORCHESTRATOR.node_id], locality=locality)
    assert verify_chain([document]).single_host is single_host


def test_listed_orchestrators() -> None:
    policy = two_of_three()
    assert policy.is_orchestrator(ORCHESTRATOR.node_id)
    assert not policy.is_orchestrator(ALICE.node_id)


def test_threshold_of_statements() -> None:
    policy = two_of_three()
    assert policy.open_job_request(request(policy, ALICE, CAROL)).job_id == "j"
    doubled = request(policy, ALICE)
    doubled.signatures.append(doubled.signatures[0])
    for bad in (request(policy, ALICE), doubled, request(policy, ALICE, MALLORY), request(policy, MALLORY, ORCHESTRATOR)):
        with pytest.raises(Refused) as refused:
            policy.open_job_request(bad)
        assert refused.value.code == "unsigned_job"
    with pytest.raises(Refused) as refused:
        policy.open_job_request(request(policy, ALICE, BOB, network_id="0" * 40))
    assert refused.value.code == "wrong_network"
    with pytest.raises(Corrupt):
        policy.open_cancel(request(policy, ALICE, BOB))


def test_signatures_of_strangers_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, strangers, looked_at = two_of_three(), [NodeKey.generate() for _ in range(31)], list[bytes]()

    def counted(public_der: bytes, signed: bytes, signature: bytes) -> bool:
        looked_at.append(public_der)
        return verify_signature(public_der, signed, signature)

    def refused(made: identity_pb2.Envelope) -> str:
        looked_at.clear()
        with pytest.raises((Corrupt, Refused)) as caught:
            policy.open_job_request(made)
        return str(caught.value.code)

    monkeypatch.setattr("trust.envelope.verify_signature", counted)
    assert (refused(request(policy, *strangers, MALLORY)), looked_at) == ("unsigned_job", [])
    assert (refused(request(policy, *strangers, ALICE)), looked_at) == ("unsigned_job", [])
    claimed = request(policy, *strangers[:30])
    claimed.signatures.extend(identity_pb2.Signature(public_key=key.public_der, signature=bytes(64)) for key in (ALICE, BOB))
    assert (refused(claimed), looked_at) == ("bad_signature", [ALICE.public_der]), "by who would have to have signed first"
    beside = request(policy, *strangers[:29], ALICE, BOB)
    assert policy.open_job_request(beside).job_id == "j"
    beside.signatures[0].signature = bytes(64)
    assert refused(beside) == "bad_signature", "all have to hold"


@pytest.mark.parametrize("kind", ["cancel", "pause", "release"])
def test_a_cancellation_a_pause_and_a_release_are_the_maintainers_too(kind: str) -> None:
    policy = two_of_three()

    def opened(*keys: NodeKey, network_id: str = policy.network_id) -> str:
        if kind == "cancel":
            cancel = model_pb2.JobCancel(network_id=network_id, job_id="j")
            return policy.open_cancel(seal(identity_pb2.DOMAIN_JOB_CANCEL, cancel, *keys)).job_id
        if kind == "release":
            release = model_pb2.Release(network_id=network_id, model="j")
            return policy.open_release(seal(identity_pb2.DOMAIN_RELEASE, release, *keys)).model
        pause = model_pb2.JobPause(network_id=network_id, job_id="j")
        return policy.open_pause(seal(identity_pb2.DOMAIN_JOB_PAUSE, pause, *keys)).job_id

    assert opened(ALICE, BOB) == "j"
    with pytest.raises(Refused) as alone:
        opened(ALICE)
    assert alone.value.code == "unsigned_job"
    with pytest.raises(Refused) as elsewhere:
        opened(ALICE, BOB, network_id="0" * 40)
    assert elsewhere.value.code == "wrong_network"


def test_rotation_needs_old_and_new_keys() -> None:
    policy = two_of_three()
    draft = draft_successor(policy)
    del draft.maintainer_keys[:]
    draft.maintainer_keys.extend([CAROL.public_der, MALLORY.public_der])
    newer = policy.successor([*policy.history, sign_document(draft, BOB, CAROL, MALLORY)])
    assert newer.document.version == 2
    assert newer.network_id == policy.network_id
    for keys in ((CAROL, MALLORY), (ALICE, BOB), (CAROL,), (BOB, MALLORY)):
        with pytest.raises(Refused) as refused:
            verify_chain([*policy.history, sign_document(draft, *keys)])
        assert refused.value.code == "too_few_signatures"


def rotated(policy: NetworkPolicy, *keys: NodeKey, version: int = 0) -> identity_pb2.NetworkDocument:
    """The next version, or that one, with other maintainers, of whom two must sign."""
    draft = draft_successor(policy)
    draft.version = version or draft.version
    draft.maintainer_keys[:] = [key.public_der for key in keys]
    return draft


def test_keys_that_were_taken_out_lead_nobody_past_the_version_that_took_them_out() -> None:
    """A chain from version 1 to 9 alone is valid by itself; who knows version 2 does not follow it without version 2's keys."""
    policy = two_of_three()
    second = policy.successor([*policy.history, sign_document(rotated(policy, DAVE, ERIN), ALICE, BOB, DAVE, ERIN)])
    past_it = rotated(policy, ALICE, BOB, version=9)
    stolen = [*policy.history, sign_document(past_it, ALICE, BOB)]
    assert verify_chain(stolen).document.version == 9
    for keys in ((ALICE, BOB), (ALICE, BOB, DAVE), (ALICE, BOB, CAROL, MALLORY)):
        with pytest.raises(Refused) as refused:
            second.successor([*policy.history, sign_document(past_it, *keys)])
        assert refused.value.code == "too_few_signatures"
    assert second.successor([*policy.history, sign_document(past_it, ALICE, BOB, DAVE, ERIN)]).document.version == 9, "they agree"
    third = sign_document(draft_successor(second), DAVE, ERIN)
    assert second.successor([*second.history, third]).document.version == 3
    assert policy.successor([*second.history, third]).document.version == 3, "who slept through a version goes through it"


def test_what_was_accepted_outlives_the_keys_that_signed_it_and_nothing_new_is() -> None:
    policy = two_of_three()
    later = policy.successor([*policy.history, sign_document(rotated(policy, DAVE, ERIN), ALICE, BOB, DAVE, ERIN)])
    old, new, mixed = (request(later, *keys) for keys in ((ALICE, BOB), (DAVE, ERIN), (ALICE, DAVE)))
    assert [later.read_job_request(one).job_id for one in (old, new)] == ["j", "j"]
    assert later.open_job_request(new).job_id == "j"
    assert later.open_manifest(manifest(later, 0, ALICE, BOB), "m").number == 0
    cancel = seal(identity_pb2.DOMAIN_JOB_CANCEL, model_pb2.JobCancel(network_id=later.network_id, job_id="j"), ALICE, BOB)
    pause = seal(identity_pb2.DOMAIN_JOB_PAUSE, model_pb2.JobPause(network_id=later.network_id, job_id="j"), ALICE, BOB)
    assert (later.read_cancel(cancel).job_id, later.read_pause(pause).job_id) == ("j", "j")
    for refused in (
        lambda: later.open_job_request(old), lambda: later.open_cancel(cancel), lambda: later.open_pause(pause),
        lambda: later.open_job_request(mixed), lambda: later.read_job_request(mixed), lambda: policy.read_job_request(new),
        lambda: later.read_job_request(request(later, ALICE, ALICE, MALLORY)),
    ):  # fmt: skip
        with pytest.raises(Refused) as caught:
            refused()
        assert caught.value.code == "unsigned_job"
    with pytest.raises(Refused) as elsewhere:
        later.read_job_request(request(later, ALICE, BOB, network_id="0" * 40))
    assert elsewhere.value.code == "wrong_network"


def test_versions_only_grow_and_belong_together() -> None:
    policy = two_of_three()
    second = sign_document(draft_successor(policy), ALICE, BOB)
    third = sign_document(draft_successor(verify_chain([*policy.history, second])), ALICE, BOB)
    newest = verify_chain([*policy.history, second, third], network_id=policy.network_id)
    assert newest.document.version == 3
    assert verify_chain([*policy.history, third]).document.version == 3, "numbers may be skipped"
    with pytest.raises(Stale):
        verify_chain([*policy.history, third, second])
    with pytest.raises(Stale):
        newest.successor([*policy.history, second])
    with pytest.raises(Corrupt):
        verify_chain([second, third])
    with pytest.raises(Refused) as refused:
        verify_chain(policy.history, network_id="0" * 40)
    assert refused.value.code == "wrong_network"
    stranger = verify_chain([version_1(ALICE, BOB, threshold=2)])
    with pytest.raises(Corrupt):
        verify_chain([*stranger.history, second])
    for length in (0, MAX_HISTORY + 1):
        with pytest.raises(Corrupt):
            verify_chain(policy.history * length)
    with pytest.raises(Stale):
        verify_chain(policy.history * MAX_HISTORY)
    with pytest.raises(Stale):
        policy.successor(policy.history)
    with pytest.raises(Refused):
        policy.successor(stranger.history)


@pytest.mark.parametrize("num_versions", [0, MAX_HISTORY + 1])
def test_a_successor_is_counted_before_a_version_of_it_is_read(num_versions: int) -> None:
    policy = two_of_three()
    with pytest.raises(Corrupt) as refused:
        policy.successor([*policy.history] * num_versions)
    assert refused.value.code == "bad_document"


def test_a_document_has_a_size() -> None:
    document = identity_pb2.NetworkDocument.FromString(version_1(ALICE).payload)
    document.codecs.append("c" * MAX_DOCUMENT_BYTES)
    with pytest.raises(Corrupt) as refused:
        verify_chain([sign_document(document, ALICE)])
    assert refused.value.code == "envelope_too_large"


def test_a_document_says_what_it_was_given_and_little_else() -> None:
    plain = create_document(ALICE, name="demo", now_wall=NOW, orchestrator_ids=[ORCHESTRATOR.node_id], trusted=["1" * 40])
    assert identity_pb2.NetworkDocument.FromString(plain.payload) == identity_pb2.NetworkDocument(
        version=1, name="demo", maintainer_keys=[ALICE.public_der], threshold=1, orchestrator_ids=[ORCHESTRATOR.node_id],
        locality=identity_pb2.LOCALITY_SPREAD, store_scheme="https", protocol=common_pb2.ProtocolRange(min=1, max=1), audit_floor=0.05,
        audits="none", first_quarantine_s=900.0, rehab_units=20, created_unix_ms=1_700_000_000_000,
        trusted_pnodes=[identity_pb2.TrustedPNode(node_id="1" * 40, expires_unix_ms=1_700_000_000_000 + 365 * 86_400_000)],
    )  # fmt: skip
    assert identity_pb2.NetworkDocument.FromString(version_1(ALICE, lifetime_s=2.5).payload).expires_unix_ms == 1_700_000_002_500
    second = draft_successor(verify_chain([plain]))
    assert (second.version, second.network_id) == (2, verify_chain([plain]).network_id)
    newer = verify_chain([plain, sign_document(second, ALICE)])
    assert newer.envelope == newer.history[1] != plain


def test_an_expired_document_is_stale() -> None:
    history = [version_1(ALICE, lifetime_s=100.0)]
    assert verify_chain(history, now_wall=NOW + 99).expired(NOW + 101)
    with pytest.raises(Stale) as stale:
        verify_chain(history, now_wall=NOW + 101)
    assert stale.value.code == "document_expired"


def test_malformed_content_is_refused_when_made_and_when_read() -> None:
    good = identity_pb2.NetworkDocument.FromString(version_1(ALICE).payload)

    def changed(**fields: object) -> identity_pb2.NetworkDocument:
        document = identity_pb2.NetworkDocument()
        document.CopyFrom(good)
        for name in fields:
            document.ClearField(name)  # type: ignore[arg-type]
        document.MergeFrom(identity_pb2.NetworkDocument(**fields))  # type: ignore[arg-type]
        return document

    bad = [
        changed(threshold=2),
        changed(threshold=0),
        changed(maintainer_keys=[]),
        changed(maintainer_keys=[ALICE.public_der] * 2),
        changed(maintainer_keys=[b"key"]),
        changed(orchestrator_ids=["x"]),
        changed(bootstrap=["127.0.0.1:1"]),
        changed(store_address="nowhere"),
        changed(store_scheme="file"),
        changed(name=""),
        changed(name="n" * 64),
        changed(name="a\nb"),
        changed(network_id="0" * 40),
        changed(version=0),
        changed(version=0, network_id="0" * 40),
        changed(version=2),
        changed(maintainer_keys=MANY_KEYS),
        changed(orchestrator_ids=[f"{number:040x}" for number in range(257)]),
        changed(orchestrator_ids=["0" * 40] * 2),
        changed(trusted_pnodes=[identity_pb2.TrustedPNode(node_id=f"{number:040x}") for number in range(1025)]),
        changed(trusted_pnodes=[identity_pb2.TrustedPNode(node_id="x")]),
        changed(data_hosts=["data.example.org"] * 2),
        changed(bootstrap=["0" * 40 + "@127.0.0.1:1"] * 65),
        changed(bootstrap=["0" * 40 + "@nowhere"]),
        changed(bootstrap=["x@127.0.0.1:1"]),
        changed(bootstrap=["0" * 40]),
        changed(protocol=common_pb2.ProtocolRange(min=0, max=1)),
        changed(protocol=common_pb2.ProtocolRange(min=2, max=1)),
        changed(audit_floor=1.5),
        changed(audit_floor=-0.1),
    ]
    assert verify_chain([sign_document(changed(audit_floor=0.0), ALICE)]).document.audit_floor == 0.0
    good_too = changed(
        name="n" * 63, maintainer_keys=MANY_KEYS[:32], orchestrator_ids=[f"{number:040x}" for number in range(256)],
        trusted_pnodes=[identity_pb2.TrustedPNode(node_id=f"{number:040x}") for number in range(1024)],
        bootstrap=["0" * 40 + "@127.0.0.1:1"] * 64, protocol=common_pb2.ProtocolRange(min=2, max=2), audit_floor=1.0, store_scheme="",
        threshold=1,
    )  # fmt: skip
    assert verify_chain([sign_document(good_too, ALICE)]).document == good_too
    for document in bad:
        for refusing in (sign_document, lambda *said: verify_chain([seal(identity_pb2.DOMAIN_NETWORK_DOCUMENT, *said)])):
            with pytest.raises((InvalidInput, Corrupt)) as refused:
                refusing(document, ALICE)
            assert refused.value.code == "bad_document"


def manifest(policy: NetworkPolicy, number: int, *keys: NodeKey, holder: str = "", model: str = "m") -> identity_pb2.Envelope:
    message = model_pb2.Manifest(network_id=policy.network_id, model=model, number=number, holder=holder)
    return seal(identity_pb2.DOMAIN_MANIFEST, message, *keys)


def test_manifests_are_signed_by_who_may_decide_and_the_first_by_the_maintainers() -> None:
    policy, holder = two_of_three(), ORCHESTRATOR.node_id
    assert policy.open_manifest(manifest(policy, 0, ALICE, BOB), "m").number == 0
    assert policy.open_manifest(manifest(policy, 7, ORCHESTRATOR, holder=holder), "m").number == 7
    refused = {
        "too_few_signatures": [manifest(policy, 0, ALICE), manifest(policy, 0, ORCHESTRATOR)],
        "wrong_signer": [
            manifest(policy, 7, MALLORY, holder=holder),
            manifest(policy, 7, MALLORY, holder=MALLORY.node_id),
            manifest(policy, 7, ORCHESTRATOR, holder="0" * 40),
            manifest(policy, 7, ALICE, BOB),
        ],
        "wrong_network": [manifest(policy, 7, ORCHESTRATOR, holder=holder, model="other")],
    }
    for code, envelopes in refused.items():
        for envelope in envelopes:
            with pytest.raises((Corrupt, Refused)) as caught:
                policy.open_manifest(envelope, "m")
            assert caught.value.code == code


@pytest.mark.parametrize(("audits", "drawn"), [("", False), ("none", False), ("drawn", True)])
def test_whether_audits_are_in_force_is_signed(audits: str, drawn: bool) -> None:
    document = create_document(ALICE, name="demo", now_wall=NOW, orchestrator_ids=[ORCHESTRATOR.node_id], audits=audits)
    assert verify_chain([document]).audits_drawn is drawn


def test_no_other_word_about_audits_is_signed_or_believed() -> None:
    with pytest.raises(InvalidInput):
        create_document(ALICE, name="demo", now_wall=NOW, orchestrator_ids=[ORCHESTRATOR.node_id], audits="often")
    document = identity_pb2.NetworkDocument.FromString(version_1(ALICE).payload)
    document.audits = "often"
    with pytest.raises(Corrupt):
        verify_chain([seal(identity_pb2.DOMAIN_NETWORK_DOCUMENT, document, ALICE)])


def test_what_a_fault_costs_is_signed() -> None:
    def made(terms: Terms) -> Terms:
        document = create_document(ALICE, name="demo", now_wall=NOW, orchestrator_ids=[ORCHESTRATOR.node_id], terms=terms)
        return verify_chain([document]).terms

    assert made(Terms(5.0, 3)) == Terms(5.0, 3)
    assert made(Terms(0.0, 0)) == made(ORDINARY) == Terms(900.0, 20), "nothing said"
    assert made(Terms(7 * 86400.0, 1000)) == Terms(7 * 86400.0, 1000)
    for wrong in (Terms(7 * 86400.0 + 1), Terms(-1.0), Terms(5.0, 1001), Terms(float("nan"))):
        with pytest.raises(InvalidInput):
            made(wrong)
