"""Goal: a session token is worth something only to who proved its key, on that connection, for that server, network and time; all tables are bounded."""

from __future__ import annotations

import random

import pytest
from google.protobuf.message import DecodeError

from dcnr.errors import DcnrError, Stale, Unavailable
from dcnr.v1 import common_pb2, identity_pb2
from trust.delegation import make_delegation
from trust.envelope import seal
from trust.identity import NodeKey
from trust.rates import Rate, TokenBuckets
from trust.session import Caller, SessionBook, SessionLimits, SessionOpening, common_version

NETWORK, WALL = "a" * 40, 1_700_000_000.0
SERVER, CLIENT, WORKER = (NodeKey.generate() for _ in range(3))
CERTIFICATE = b"c" * 32


def book(**limits: object) -> SessionBook:
    return SessionBook(
        server_id=SERVER.node_id,
        certificate_sha256=CERTIFICATE,
        network_id=NETWORK,
        random_bytes=random.Random(1).randbytes,
        limits=SessionLimits(**limits),  # type: ignore[arg-type]
    )


def caller(port: int = 1, subnet: str = "192.0.2.0/24") -> Caller:
    return Caller(f"ipv4:192.0.2.9:{port}", f"192.0.2.9:{port}", subnet)


def opening(
    key: NodeKey = CLIENT,
    *,
    network: str = NETWORK,
    server: str = SERVER.node_id,
    certificate: bytes = CERTIFICATE,
    protocol: tuple[int, int] = (1, 1),
) -> SessionOpening:
    return SessionOpening(key, network, server, certificate, b"n" * 32, protocol)


def open_session(
    server: SessionBook,
    client: SessionOpening | None = None,
    *,
    who: Caller | None = None,
    now: float = 0.0,
    delegation: identity_pb2.Envelope | None = None,
) -> bytes:
    client, who = client or opening(), who or caller()
    challenge = server.challenge(identity_pb2.ChallengeRequest(client_nonce=client.client_nonce), who, now=now, now_wall=WALL + now)
    challenge.network_id = client.network_id  # a liar does not stop where an honest client would
    challenge.protocol.CopyFrom(common_pb2.ProtocolRange(min=client.protocol[0], max=client.protocol[1]))
    return server.open(client.prove(challenge, delegation), who, now=now, now_wall=WALL + now).token


def code_of(call: object, *args: object, **kwargs: object) -> str:
    with pytest.raises(DcnrError) as raised:
        call(*args, **kwargs)  # type: ignore[operator]
    return raised.value.code


def test_a_proof_opens_a_session_of_that_connection() -> None:
    server = book()
    token = open_session(server)
    peer = server.check(token, caller().connection, now=1.0)
    assert (peer.node_id, peer.worker_id, peer.pnode_id, peer.address) == (CLIENT.node_id, None, None, "192.0.2.9:1")
    assert code_of(server.check, token, caller(2).connection, now=1.0) == "session_elsewhere"
    assert code_of(book().check, token, caller().connection, now=1.0) == "session_required"
    assert code_of(server.check, b"x" * 32, caller().connection, now=1.0) == "session_required"
    assert code_of(server.check, token, caller().connection, now=3600.0) == "session_expired"
    assert server.check(token, caller().connection, now=3599.0) == peer
    assert [server.knows(one, now=at) for one, at in ((token, 3599.0), (token, 3600.0), (b"x" * 32, 0.0))] == [True, False, False]


def test_what_was_proved_elsewhere_or_otherwise_is_refused() -> None:
    assert code_of(open_session, book(), opening(server=CLIENT.node_id)) == "wrong_server"
    assert code_of(open_session, book(), opening(certificate=b"x" * 32)) == "wrong_server"
    assert code_of(open_session, book(), opening(network="b" * 40)) == "wrong_network"
    assert code_of(open_session, book(), opening(protocol=(2, 3))) == "protocol_mismatch"
    assert code_of(open_session, book(), opening(protocol=(0, 0))) == "protocol_mismatch"


def test_a_client_leaves_another_network_alone() -> None:
    challenge = identity_pb2.ChallengeResponse(
        server_nonce=b"s" * 32, network_id="b" * 40, protocol=common_pb2.ProtocolRange(min=1, max=1)
    )
    assert code_of(opening().prove, challenge) == "wrong_network"
    challenge.network_id = NETWORK
    challenge.protocol.min = challenge.protocol.max = 2
    assert code_of(opening().prove, challenge) == "protocol_mismatch"
    challenge.protocol.min = challenge.protocol.max = 1
    assert opening().prove(challenge).proof.signatures
    for nonce in (b"", b"s" * 31, b"s" * 33):
        challenge.server_nonce = nonce
        assert code_of(opening().prove, challenge) == "bad_nonce"


def test_a_challenge_is_good_once_for_ten_seconds_and_for_its_caller() -> None:
    server, client = book(), opening()
    ask = identity_pb2.ChallengeRequest(client_nonce=client.client_nonce)

    def challenged(now: float = 0.0) -> identity_pb2.OpenRequest:
        return client.prove(server.challenge(ask, caller(), now=now, now_wall=WALL))

    proof = challenged()
    server.open(proof, caller(), now=1.0, now_wall=WALL)
    assert code_of(server.open, proof, caller(), now=1.0, now_wall=WALL) == "bad_nonce"
    assert code_of(server.open, challenged(), caller(2), now=1.0, now_wall=WALL) == "bad_nonce"
    assert code_of(server.open, challenged(), caller(), now=10.0, now_wall=WALL) == "bad_nonce"
    assert server.open(challenged(), caller(), now=9.9, now_wall=WALL).token
    other = SessionOpening(CLIENT, NETWORK, SERVER.node_id, CERTIFICATE, b"m" * 32)
    assert (
        code_of(server.open, other.prove(server.challenge(ask, caller(), now=0.0, now_wall=WALL)), caller(), now=1.0, now_wall=WALL)
        == "bad_nonce"
    )
    foreign = book().challenge(ask, caller(), now=0.0, now_wall=WALL)
    foreign.server_nonce = b"f" * 32
    assert code_of(server.open, client.prove(foreign), caller(), now=1.0, now_wall=WALL) == "bad_nonce"


def test_a_server_says_what_it_speaks() -> None:
    server = SessionBook(
        server_id=SERVER.node_id,
        certificate_sha256=CERTIFICATE,
        network_id=NETWORK,
        random_bytes=random.Random(1).randbytes,
        protocol=(2, 5),
    )
    ask = identity_pb2.ChallengeRequest(client_nonce=b"n" * 32)
    challenge = server.challenge(ask, caller(), now=0.0, now_wall=WALL)
    assert (challenge.protocol.min, challenge.protocol.max, challenge.network_id) == (2, 5, NETWORK)
    request = opening(protocol=(1, 3)).prove(challenge)
    said = identity_pb2.SessionProof.FromString(request.proof.payload)
    assert (said.protocol.min, said.protocol.max) == (1, 3)
    assert server.open(request, caller(), now=0.0, now_wall=WALL).protocol == 3


def test_a_nonce_has_its_length() -> None:
    for nonce in (b"", b"n" * 31, b"n" * 33):
        ask = identity_pb2.ChallengeRequest(client_nonce=nonce)
        assert code_of(book().challenge, ask, caller(), now=0.0, now_wall=WALL) == "bad_nonce"


@pytest.mark.parametrize(
    ("own", "other", "version"),
    [
        ((1, 1), (1, 1), 1),
        ((1, 3), (2, 5), 3),
        ((2, 5), (1, 3), 3),
        ((1, 2), (3, 4), None),
        ((3, 4), (1, 2), None),
        ((1, 3), (0, 2), None),
        ((1, 3), (3, 2), None),
    ],
)
def test_the_highest_version_that_both_speak(own: tuple[int, int], other: tuple[int, int], version: int | None) -> None:
    spoken = common_pb2.ProtocolRange(min=other[0], max=other[1])
    if version is None:
        assert code_of(common_version, own, spoken) == "protocol_mismatch"
    else:
        assert common_version(own, spoken) == version


def test_a_proof_is_one_signature_within_its_size() -> None:
    server, client = book(), opening()
    ask = identity_pb2.ChallengeRequest(client_nonce=client.client_nonce)
    request = client.prove(server.challenge(ask, caller(), now=0.0, now_wall=WALL))
    proof = identity_pb2.SessionProof.FromString(request.proof.payload)
    for wrong, code in (
        (seal(identity_pb2.DOMAIN_SESSION, proof, CLIENT, WORKER), "bad_signature"),
        (seal(identity_pb2.DOMAIN_DELEGATION, proof, CLIENT), "wrong_domain"),
        (
            seal(identity_pb2.DOMAIN_SESSION, proof.SerializeToString() + b"\x7a\xff\x07" + bytes(1023), CLIENT),
            "envelope_too_large",
        ),
    ):
        request.proof.CopyFrom(wrong)
        assert code_of(server.open, request, caller(), now=1.0, now_wall=WALL) == code
    request.proof.CopyFrom(seal(identity_pb2.DOMAIN_SESSION, proof, CLIENT))
    assert server.open(request, caller(), now=1.0, now_wall=WALL).token


def test_a_changed_proof_is_refused() -> None:
    server, client = book(), opening()
    accepted = []
    for index in range(0, 400, 7):
        challenge = server.challenge(
            identity_pb2.ChallengeRequest(client_nonce=client.client_nonce), caller(), now=index, now_wall=WALL
        )
        request = client.prove(challenge)
        data = bytearray(request.proof.SerializeToString())
        data[index % len(data)] ^= 1
        try:
            request.proof.CopyFrom(identity_pb2.Envelope.FromString(bytes(data)))
            server.open(request, caller(), now=index, now_wall=WALL)
        except (DcnrError, DecodeError):
            continue
        accepted.append(index)
    assert accepted == []


def test_a_worker_is_known_by_its_delegation() -> None:
    server = book()
    delegated = make_delegation(CLIENT, NETWORK, WORKER.public_der, 1, [], WALL, 100.0)
    token = open_session(server, opening(WORKER), delegation=delegated)
    peer = server.check(token, caller().connection, now=99.0)
    assert (peer.node_id, peer.worker_id, peer.pnode_id) == (WORKER.node_id, WORKER.node_id, CLIENT.node_id)
    assert code_of(server.check, token, caller().connection, now=101.0) == "session_expired"
    assert code_of(open_session, server, opening(SERVER), delegation=delegated) == "wrong_delegation"
    with pytest.raises(Stale):
        open_session(server, opening(WORKER), delegation=delegated, now=101.0)
    forged = seal(identity_pb2.DOMAIN_DELEGATION, delegated.payload, WORKER)
    assert code_of(open_session, server, opening(WORKER), delegation=forged) == "wrong_signer"


def test_tables_are_bounded_and_strangers_do_not_push_others_out() -> None:
    server = book(max_sessions=6, max_sessions_per_id=2, max_sessions_per_subnet=4, max_nonces=3)
    honest = open_session(server, who=caller(1, "honest"))
    for port in range(2, 8):
        open_session(server, opening(WORKER), who=caller(port, "a"))
    assert len(server) == 3, "an id's newest sessions replace its oldest"
    keys = [NodeKey.generate() for _ in range(8)]
    codes = []
    for index, key in enumerate(keys):
        try:
            open_session(server, opening(key), who=caller(index, "a"))
        except Unavailable as error:
            codes.append(error.code)
    assert codes == ["too_many_sessions"] * 6
    assert server.check(honest, caller(1).connection, now=1.0).node_id == CLIENT.node_id
    for _ in range(3):
        server.challenge(identity_pb2.ChallengeRequest(client_nonce=b"n" * 32), caller(), now=20.0, now_wall=WALL)
    ask = identity_pb2.ChallengeRequest(client_nonce=b"n" * 32)
    assert code_of(server.challenge, ask, caller(), now=20.0, now_wall=WALL) == "rate_limited"
    server.challenge(ask, caller(), now=31.0, now_wall=WALL)
    assert open_session(server, opening(keys[7]), who=caller(9, "a"), now=4000.0), "expired sessions make room"


def test_a_subnet_and_an_id_that_ask_too_often_wait_and_nobody_else_does() -> None:
    server = book(per_subnet=Rate(1.0, 6.0), per_id=Rate(1.0, 2.0))
    for _ in range(2):
        open_session(server, who=caller(1, "busy"))
    with pytest.raises(Unavailable) as refused:
        open_session(server, who=caller(1, "busy"))
    assert refused.value.code == "rate_limited"
    assert 0 < refused.value.retry_after_s <= 1.0
    assert open_session(server, opening(WORKER), who=caller(2, "other"))


def test_a_subnet_pays_for_challenges_and_for_whatever_it_brings_as_a_proof() -> None:
    ask, nothing = identity_pb2.ChallengeRequest(client_nonce=b"n" * 32), identity_pb2.OpenRequest()
    challenging, opening_ = book(per_subnet=Rate(1.0, 2.0)), book(per_subnet=Rate(1.0, 2.0))
    for _ in range(2):
        challenging.challenge(ask, caller(1, "busy"), now=0.0, now_wall=WALL)
        assert code_of(opening_.open, nothing, caller(1, "busy"), now=0.0, now_wall=WALL) == "bad_signature"
    assert code_of(challenging.challenge, ask, caller(1, "busy"), now=0.0, now_wall=WALL) == "rate_limited"
    assert code_of(opening_.open, nothing, caller(1, "busy"), now=0.0, now_wall=WALL) == "rate_limited"
    assert challenging.challenge(ask, caller(2, "other"), now=0.0, now_wall=WALL).server_nonce
    assert code_of(opening_.open, nothing, caller(2, "other"), now=0.0, now_wall=WALL) == "bad_signature"


def test_token_buckets_refill_and_forget() -> None:
    buckets = TokenBuckets(Rate(2.0, 3.0), max_names=2)
    assert [buckets.wait_s("a", 0.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert buckets.wait_s("a", 0.5) == 0.0
    assert buckets.wait_s("a", 0.5) == 0.5
    assert buckets.wait_s("a", 0.75) == 0.25, "what is there already need not be waited for"
    assert [buckets.level(name, 0.75) for name in "aaz"] == [0.5, 0.5, 3.0], "to look takes nothing"
    assert len(buckets) == 1
    for name in "bcd":
        assert buckets.wait_s(name, 1.0, cost=3.0) == 0.0
    assert len(buckets) == 2
    assert [buckets.wait_s(name, 1.0) for name in "dcb"] == [0.5, 0.5, 0.0], "the least recently used is forgotten"


def test_a_session_lasts_as_long_as_the_server_says_by_its_own_clock() -> None:
    server, client = book(), opening()
    challenge = server.challenge(identity_pb2.ChallengeRequest(client_nonce=client.client_nonce), caller(), now=0.0, now_wall=WALL)
    response = server.open(client.prove(challenge), caller(), now=0.0, now_wall=WALL)
    assert (challenge.time_unix_ms, response.expires_unix_ms) == (1_700_000_000_000, 1_700_003_600_000)
    assert (response.observed_address, response.protocol) == (caller().address, 1)
    session = client.opened(challenge, response, asked_at=50.0)
    assert session.expires_at == pytest.approx(50.0 + 3600.0)
    for token, protocol in ((b"short", 1), (response.token + b"t", 1), (response.token, 0), (response.token, 2)):
        wrong = identity_pb2.OpenResponse(token=token, protocol=protocol, expires_unix_ms=response.expires_unix_ms)
        assert code_of(client.opened, challenge, wrong, asked_at=50.0) == "bad_session"
    for lifetime_s, end_s in ((-5.0, 50.0), (7200.0, 3650.0), (100.0, 150.0)):
        response.expires_unix_ms = challenge.time_unix_ms + int(lifetime_s * 1000)
        told = client.opened(challenge, response, asked_at=50.0)
        assert told.expires_at == pytest.approx(end_s), "never before it was asked for, never longer than sessions last"


def test_subnets_full_of_strangers_do_not_keep_the_next_one_out() -> None:
    server = book(max_sessions=8, max_sessions_per_subnet=4, max_nonces=4)
    crowds = [open_session(server, opening(NodeKey.generate()), who=caller(port, f"crowd {port % 2}")) for port in range(8)]
    tokens = [open_session(server, opening(NodeKey.generate()), who=caller(20 + port, f"quiet {port}")) for port in range(3)]
    assert len(server) == 8
    assert all(server.knows(token, now=1.0) for token in tokens)
    assert sum(server.knows(token, now=1.0) for token in crowds) == 5
    with pytest.raises(Unavailable):
        open_session(server, opening(NodeKey.generate()), who=caller(30, "crowd 1"))
    for _ in range(4):
        server.challenge(identity_pb2.ChallengeRequest(client_nonce=b"n" * 32), caller(1, "crowd 0"), now=1.0, now_wall=WALL)
    assert open_session(server, opening(NodeKey.generate()), who=caller(40, "another"), now=1.0)
