"""Goal: keys and envelopes let nothing through that was not signed exactly so, and the key file stays its owner's."""

from __future__ import annotations

import os
import warnings
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from dcnr.errors import Corrupt, InvalidInput, NotFound, Refused
from dcnr.ids import node_id_of
from dcnr.v1 import identity_pb2
from trust.addresses import check_addresses, is_loopback, is_public, join_address, split_address, subnet_of
from trust.envelope import (
    MAX_SIGNATURES,
    check_signature,
    digest_of_envelope,
    envelope_in_text,
    merge_signatures,
    open_envelope,
    open_single,
    parse,
    parse_envelope,
    seal,
    sign_apart,
    text_of_envelope,
)
from trust.identity import NodeKey, check_public_key, verify_signature
from trust.tls import certificate_id, certificate_pem, certificate_public_key, self_signed_certificate

ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
HEAD, PLAN = identity_pb2.DOMAIN_HEAD, identity_pb2.DOMAIN_PLAN


def test_a_saved_key_comes_back_and_its_file_is_private(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "home" / "key.pem"
    key = NodeKey.load_or_create(path)
    assert [one.stat().st_mode & 0o777 for one in (path, path.parent)] == [0o600, 0o700]
    assert NodeKey.load_or_create(path).node_id == NodeKey.load(path).node_id == key.node_id == node_id_of(key.public_der)
    assert [p.name for p in path.parent.iterdir()] == ["key.pem"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610])
def test_a_key_file_that_others_can_read_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key.pem"
    NodeKey.generate().save(path)
    os.chmod(path, mode)
    with pytest.raises(Refused) as refused:
        NodeKey.load(path)
    assert refused.value.code == "key_permissions"
    assert "chmod 600" in refused.value.remedy
    assert "delete" not in refused.value.remedy, (
        "a maintainer's key, which nothing makes anew, or another file that was named by mistake"
    )


def test_saving_never_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    first = NodeKey.load_or_create(path)
    with pytest.raises(Refused) as refused:
        NodeKey.generate().save(path)
    assert refused.value.code == "key_exists"
    assert NodeKey.load(path).node_id == first.node_id


def test_missing_and_malformed_key_files_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as missing:
        NodeKey.load(tmp_path / "key.pem")
    assert missing.value.remedy
    for content in (b"", b"nonsense", b"x" * 20000):
        path = tmp_path / f"bad{len(content)}"
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(Corrupt) as malformed:
            NodeKey.load(path)
        assert str(path) in malformed.value.message
        assert malformed.value.remedy


def test_a_key_of_another_kind_or_behind_too_many_bytes_is_refused(tmp_path: Path) -> None:
    for other in (ec.generate_private_key(ec.SECP384R1()), ed25519.Ed25519PrivateKey.generate()):
        with pytest.raises(Corrupt) as refused:
            NodeKey.from_pem(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        assert refused.value.code == "bad_key"
    path, pem = tmp_path / "key.pem", NodeKey.generate().private_pem()
    path.write_bytes(pem.ljust(16 * 1024, b"\n"))
    path.chmod(0o600)
    assert NodeKey.load(path).private_pem() == pem
    path.write_bytes(pem.ljust(16 * 1024 + 1, b"\n"))
    with pytest.raises(Corrupt):
        NodeKey.load(path)
    assert "BEGIN" not in repr(NodeKey.generate())


def test_a_place_that_takes_no_key_is_told_and_nothing_is_left_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")

    def unusable(path: Path) -> None:
        for way in (NodeKey.generate().save, NodeKey.load_or_create):
            with pytest.raises(Refused) as refused:
                way(path)
            assert refused.value.code == "key_unusable"

    unusable(tmp_path / "file" / "key.pem")
    unusable(tmp_path / "nowhere" / "key.pem")

    def no_links(*_: object) -> None:
        raise PermissionError(1, "this file system knows no links")

    monkeypatch.setattr(os, "link", no_links)
    unusable(tmp_path / "key.pem")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "nowhere"]


def test_of_two_processes_that_make_a_key_the_faster_ones_is_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, faster = tmp_path / "key.pem", NodeKey.generate()
    made = NodeKey.generate

    def late() -> NodeKey:
        faster.save(path)
        return made()

    monkeypatch.setattr(NodeKey, "generate", late)
    assert NodeKey.load_or_create(path).node_id == faster.node_id


def test_a_signature_has_one_encoding_only() -> None:
    key, data = NodeKey.generate(), b"statement"
    signature = key.sign(data)
    r, s = decode_dss_signature(signature)
    assert verify_signature(key.public_der, data, signature)
    assert not verify_signature(key.public_der, data, encode_dss_signature(r, ORDER - s))
    assert not verify_signature(key.public_der, data, signature + b"\0")
    assert not verify_signature(key.public_der, data + b".", signature)
    assert not verify_signature(NodeKey.generate().public_der, data, signature)
    assert not verify_signature(key.public_der, data, b"")


def test_no_library_that_is_lax_lets_a_second_encoding_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too long is not even parsed, and what was parsed has to be what would have been written, whatever is found valid."""
    key, parsed = NodeKey.generate(), list[bytes]()
    signature = key.sign(b"data")

    def lax(data: bytes) -> tuple[int, int]:
        parsed.append(data)
        return decode_dss_signature(data[: len(signature)])

    class Content:
        def verify(self, *_: object) -> None: ...

    monkeypatch.setattr("trust.identity.decode_dss_signature", lax)
    monkeypatch.setattr("trust.identity._load_public", lambda public_der: Content())
    assert verify_signature(key.public_der, b"data", signature)
    assert not verify_signature(key.public_der, b"data", signature + b"\0")
    assert len(parsed) == 2
    assert not verify_signature(key.public_der, b"data", signature.ljust(81, b"\0"))
    assert len(parsed) == 2


def test_a_key_has_one_encoding_only() -> None:
    der = NodeKey.generate().public_der
    point = der[-65:]
    compressed = bytes([2 + point[64] % 2]) + point[1:33]
    for bad in (der[:-1], der + b"\0", der[:-65] + compressed, b""):
        with pytest.raises(Corrupt, match="SubjectPublicKeyInfo"):
            check_public_key(bad)
    with pytest.raises(Corrupt, match="no point"):
        check_public_key(der[:-1] + bytes([der[-1] ^ 1]))


def test_every_byte_of_an_envelope_counts() -> None:
    key = NodeKey.generate()
    data = seal(HEAD, b"payload of some length", key).SerializeToString()
    accepted = []
    for index in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[index] ^= 1 << bit
            try:
                opened = open_envelope(parse_envelope(bytes(changed)), HEAD)
            except Corrupt:
                continue
            accepted.append((index, bit, opened))
    assert accepted == []


def test_a_signature_apart_holds_for_that_domain_payload_and_key_only() -> None:
    key = NodeKey.generate()
    signature = sign_apart(HEAD, b"payload", key)
    check_signature(HEAD, b"payload", key.public_der, signature)
    open_envelope(
        identity_pb2.Envelope(
            domain=HEAD, payload=b"payload", signatures=[identity_pb2.Signature(public_key=key.public_der, signature=signature)]
        ),
        HEAD,
    )
    for domain, payload, public_der in (
        (PLAN, b"payload", key.public_der), (HEAD, b"payloaD", key.public_der), (HEAD, b"payload", NodeKey.generate().public_der), (HEAD, b"payload", b""),
    ):  # fmt: skip
        with pytest.raises(Corrupt):
            check_signature(domain, payload, public_der, signature)


def test_domains_do_not_pass_for_each_other() -> None:
    envelope = seal(HEAD, b"x", NodeKey.generate())
    with pytest.raises(Corrupt):
        open_envelope(envelope, PLAN)
    envelope.domain = PLAN
    with pytest.raises(Corrupt):
        open_envelope(envelope, PLAN)


def test_one_bad_signature_spoils_an_envelope_and_a_key_counts_once() -> None:
    first, second = NodeKey.generate(), NodeKey.generate()
    twice = merge_signatures([seal(HEAD, b"x", first), seal(HEAD, b"x", second), seal(HEAD, b"x", first)])
    assert {s.node_id for s in open_envelope(twice, HEAD).signers} == {first.node_id, second.node_id}
    doubled = seal(HEAD, b"x", first)
    doubled.signatures.append(doubled.signatures[0])
    assert len(open_envelope(doubled, HEAD).signers) == 1
    with pytest.raises(Corrupt):
        open_single(doubled, HEAD)
    twice.signatures[1].signature = first.sign(b"y")
    with pytest.raises(Corrupt):
        open_envelope(twice, HEAD)
    with pytest.raises(InvalidInput):
        merge_signatures([seal(HEAD, b"x", first), seal(HEAD, b"y", second)])


def test_bounds_come_before_signatures() -> None:
    key = NodeKey.generate()
    with pytest.raises(Corrupt) as large:
        open_envelope(seal(HEAD, b"x" * 2000, key), HEAD, max_bytes=1000)
    assert large.value.code == "envelope_too_large"
    many = seal(HEAD, b"x", key)
    many.signatures.extend([many.signatures[0]] * 40)
    with pytest.raises(Corrupt):
        open_envelope(many, HEAD)


def test_an_envelope_has_a_domain_and_a_bounded_number_of_signatures() -> None:
    keys = [NodeKey.generate() for _ in range(MAX_SIGNATURES + 1)]
    assert len(open_envelope(seal(HEAD, b"x", *keys[1:], keys[1]), HEAD).signers) == MAX_SIGNATURES
    for domain, signers in ((HEAD, keys), (HEAD, []), (identity_pb2.DOMAIN_UNSPECIFIED, keys[:1])):
        with pytest.raises(InvalidInput):
            seal(domain, b"x", *signers)
    signed = [seal(HEAD, b"x", key) for key in keys]
    assert len(merge_signatures(signed).signatures) == MAX_SIGNATURES
    assert merge_signatures(signed[:1]) == signed[0]
    assert open_envelope(signed[0], HEAD, max_bytes=signed[0].ByteSize()).payload == b"x"
    for envelopes in ([], [signed[0], seal(PLAN, b"x", keys[0])]):
        with pytest.raises(InvalidInput):
            merge_signatures(envelopes)
    crowded = identity_pb2.Envelope(domain=HEAD, payload=b"x", signatures=[one.signatures[0] for one in signed])
    apart = sign_apart(identity_pb2.DOMAIN_UNSPECIFIED, b"x", keys[0])
    nothing = identity_pb2.Envelope(
        payload=b"x", signatures=[identity_pb2.Signature(public_key=keys[0].public_der, signature=apart)]
    )
    for envelope, code in (
        (identity_pb2.Envelope(domain=HEAD, payload=b"x"), "bad_signature"),
        (crowded, "bad_signature"),
        (nothing, "wrong_domain"),
    ):
        with pytest.raises(Corrupt) as refused:
            open_envelope(envelope, envelope.domain)
        assert refused.value.code == code


def test_an_envelope_is_read_back_from_its_text_and_from_nothing_else() -> None:
    envelope = seal(HEAD, b"x", NodeKey.generate())
    text = text_of_envelope(envelope)
    assert envelope_in_text(text, envelope.ByteSize()) == envelope
    for bad in (None, 7, [], {}, "?", text[:-1], text + "\n", "\u00ff", text_of_envelope(envelope) + "AAAA"):
        with pytest.raises(Corrupt):
            envelope_in_text(bad)
    with pytest.raises(Corrupt):
        envelope_in_text(text, envelope.ByteSize() - 1)


def test_bytes_are_parsed_within_bounds_and_in_one_encoding_only() -> None:
    envelope = seal(HEAD, b"x", NodeKey.generate())
    data = envelope.SerializeToString()
    assert parse(identity_pb2.Envelope, data, len(data)) == parse_envelope(data, len(data)) == envelope
    for bad, max_bytes, code in (
        (data, len(data) - 1, "message_too_large"),
        (b"\xff", 9, "malformed_message"),
        (data + data[:2], 999, "not_canonical"),
    ):
        with pytest.raises(Corrupt) as refused:
            parse_envelope(bad, max_bytes)
        assert refused.value.code == code


def test_fields_that_nobody_signed_are_refused() -> None:
    envelope = seal(HEAD, b"x", NodeKey.generate())
    digest = digest_of_envelope(envelope)
    extended = identity_pb2.Envelope.FromString(envelope.SerializeToString() + b"\x7a\x01x")
    assert digest_of_envelope(extended) != digest
    with pytest.raises(Corrupt) as refused:
        open_envelope(extended, HEAD)
    assert refused.value.code == "not_canonical"


def certificate_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Self-signed, by any curve."""
    name, day = x509.Name([]), datetime(2026, 1, 1, tzinfo=UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, day, day)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def test_a_certificate_is_a_function_of_its_key() -> None:
    key = NodeKey.generate()
    pem = self_signed_certificate(key)
    assert self_signed_certificate(NodeKey.from_pem(key.private_pem())) == pem
    assert certificate_public_key(pem) == key.public_der
    assert certificate_id(pem) == key.node_id
    assert certificate_pem(pem) == pem
    made = x509.load_pem_x509_certificate(pem)
    assert (made.not_valid_before_utc, made.not_valid_after_utc) == (
        datetime(2000, 1, 1, tzinfo=UTC),
        datetime(2199, 12, 31, tzinfo=UTC),
    )
    assert made.serial_number == int(key.node_id[:30], 16) + 1, "never zero"
    assert certificate_id(pem.ljust(8 * 1024, b"\n")) == key.node_id
    with pytest.raises(Corrupt) as refused:
        certificate_public_key(certificate_of(ec.generate_private_key(ec.SECP384R1())))
    assert refused.value.code == "bad_public_key"
    for bad in (b"", b"-----BEGIN CERTIFICATE-----\n", pem[:300], b"\x30" * 100, b"x" * 10000, pem + b"\n" * 10000):
        with pytest.raises(Corrupt):
            certificate_id(bad)


def test_whatever_a_stranger_shows_as_a_certificate_is_of_a_node_or_corrupt() -> None:
    key = NodeKey.generate()
    shown = x509.load_pem_x509_certificate(self_signed_certificate(key)).public_bytes(Encoding.DER)
    for at in range(len(shown)):
        for bits in (0x01, 0x80, 0xFF):
            changed = bytearray(shown)
            changed[at] ^= bits
            with suppress(Corrupt), warnings.catch_warnings(action="ignore"):  # of serial numbers below zero
                certificate_id(bytes(changed))


def test_addresses() -> None:
    assert split_address("127.0.0.1:7700") == ("127.0.0.1", 7700)
    assert split_address("[2001:db8::1]:1") == ("2001:db8::1", 1)
    assert split_address("node.example.org:65535") == ("node.example.org", 65535)
    assert join_address(*split_address("[::1]:5")) == "[::1]:5"
    longest = ".".join(["h" * 63] * 3 + ["h" * 61])
    assert split_address(f"{longest}:1") == (longest, 1)
    for bad in (
        "",
        "host",
        "host:",
        "host:0",
        "host:65536",
        ":1",
        "::1:5",
        "[::1]",
        "[x]:1",
        "a b:1",
        "-a:1",
        "a/b:1",
        "h:1x",
        "h:\uff11",
        "h:080",
        "h:00080",
        "h:000080",
        "[host]:1",
        "[a:b]:1",
        "[::1:5",
        "::1]:5",
        "7700",
        "[127.0.0.1]:1",
        "[fe80::1%eth0]:1",
        "x" * 300 + ":1",
        longest + "h:1",
        "h" * 64 + ":1",
    ):
        with pytest.raises(InvalidInput):
            split_address(bad)
    for wrong in ([f"h:{n}" for n in range(1, 10)], ["h:1", "h:0"]):
        with pytest.raises(InvalidInput):
            check_addresses(wrong)
    assert check_addresses(f"h:{n}" for n in range(1, 9))
    assert subnet_of("192.0.2.77") == subnet_of("::ffff:192.0.2.1") == "192.0.2.0/24"
    assert subnet_of("2001:db8:1:2::3") == "2001:db8:1::/48"
    assert subnet_of("Node.Example") == "node.example"
    near, far = ("127.0.0.1", "127.9.9.9", "::1"), ("10.0.0.1", "8.8.8.8", "2001:db8::1", "localhost", "node.example")
    assert [is_loopback(host) for host in near + far] == [True] * len(near) + [False] * len(far)
    assert [is_public(host) for host in ("8.8.8.8", "10.0.0.1", "127.0.0.1", "::1", "node.example")] == [
        True,
        False,
        False,
        False,
        True,
    ]
