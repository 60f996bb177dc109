"""Goal: a process follows a newer network document that is signed by the rule, at once and for everybody; whatever else comes changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import trust.network as network_module
from dcnr.errors import DcnrError, Refused
from dcnr.v1 import identity_pb2
from trust.identity import NodeKey
from trust.in_force import Amended, InForce
from trust.network import (
    MAX_DOCUMENT_BYTES,
    MAX_HISTORY,
    NetworkPolicy,
    create_document,
    draft_successor,
    sign_document,
    verify_chain,
)

NOW = 1_700_000_000.0
ALICE, BOB, CAROL, DAVE, MALLORY, ORCHESTRATOR, ANOTHER = (NodeKey.generate() for _ in range(7))
History = Sequence[identity_pb2.Envelope]


def network(name: str = "garden") -> NetworkPolicy:
    """Two of Alice, Bob and Carol decide."""
    document = create_document(ALICE, BOB, CAROL, name=name, now_wall=NOW, orchestrator_ids=[ORCHESTRATOR.node_id], threshold=2)
    return verify_chain([document])


def amended(policy: NetworkPolicy, *keys: NodeKey, **fields: object) -> list[identity_pb2.Envelope]:
    """The chain with one more version, signed by these."""
    draft = draft_successor(policy)
    for name, value in fields.items():
        if isinstance(value, list):
            draft.ClearField(name)  # type: ignore[arg-type]
            getattr(draft, name).extend(value)
        else:
            setattr(draft, name, value)
    return [*policy.history, sign_document(draft, *keys)]


class Process:
    """What a process notices of its network document."""

    def __init__(self, policy: NetworkPolicy, keep: Callable[[NetworkPolicy], None] | None = None) -> None:
        self.kept: list[int] = []
        self.told: list[Amended] = []
        self.network = InForce(policy, keep or (lambda newer: self.kept.append(int(newer.document.version))))
        self.network.follow(self.told.append)


def test_a_newer_version_is_kept_and_in_force_and_told() -> None:
    policy = network()
    process = Process(policy)
    history = amended(policy, ALICE, CAROL, orchestrator_ids=[ANOTHER.node_id])
    assert process.network.take(history, now_wall=NOW)
    assert (process.network.version, process.kept) == (2, [2])
    assert process.network.policy.orchestrator_ids == {ANOTHER.node_id}
    assert process.network.policy.has_listed(ORCHESTRATOR.node_id)
    [told] = process.told
    assert told.removed == {ORCHESTRATOR.node_id}
    assert "version 2 " in str(told)
    assert not process.network.take(history, now_wall=NOW), "the same again"
    assert not process.network.take(policy.history, now_wall=NOW), "an older one"
    assert not process.network.take([], now_wall=NOW)
    assert (process.kept, len(process.told)) == ([2], 1)


def test_who_slept_through_versions_takes_the_newest() -> None:
    policy = network()
    second = policy.successor(amended(policy, ALICE, BOB, CAROL, maintainer_keys=[key.public_der for key in (BOB, CAROL, DAVE)]))
    third = amended(second, CAROL, DAVE, store_bucket="moved")
    process = Process(policy)
    assert process.network.take(third, now_wall=NOW)
    assert process.network.version == 3


def test_a_disk_that_is_full_keeps_nobody_in_office() -> None:
    """Who was taken out is obeyed no longer, whether or not that could be written down."""

    def full(newer: NetworkPolicy) -> None:
        raise Refused("no room", code="disk_trouble")

    process = Process(network(), full)
    assert process.network.take(amended(process.network.policy, ALICE, BOB, orchestrator_ids=[ANOTHER.node_id]), now_wall=NOW)
    assert not process.network.policy.is_orchestrator(ORCHESTRATOR.node_id)
    assert "no room" in str(process.told[0])


def other_network() -> History:
    policy = network("other")
    return amended(policy, ALICE, BOB)


def oversized() -> History:
    policy = network()
    large = identity_pb2.Envelope()
    large.CopyFrom(amended(policy, ALICE, BOB)[1])
    large.payload += b"\x00" * MAX_DOCUMENT_BYTES
    return [*policy.history, large]


def mixed_sets() -> History:
    """One signature of the old maintainers and one of the new: enough of neither."""
    return amended(NETWORK, ALICE, DAVE, maintainer_keys=[DAVE.public_der, MALLORY.public_der])


NETWORK = network()


@pytest.mark.parametrize(
    ("history", "code"),
    [
        (other_network(), "wrong_network"),
        (amended(NETWORK, ALICE, store_bucket="moved"), "too_few_signatures"),
        (amended(NETWORK, ALICE, MALLORY, store_bucket="moved"), "too_few_signatures"),
        (mixed_sets(), "too_few_signatures"),
        (amended(NETWORK, ALICE, BOB, maintainer_keys=[DAVE.public_der, MALLORY.public_der]), "too_few_signatures"),
        (amended(NETWORK, DAVE, MALLORY, maintainer_keys=[DAVE.public_der, MALLORY.public_der]), "too_few_signatures"),
        (amended(NETWORK, ALICE, BOB, expires_unix_ms=int(NOW * 1000) - 1), "document_expired"),
        (oversized(), "message_too_large"),
        ([*NETWORK.history * MAX_HISTORY, *amended(NETWORK, ALICE, BOB)[1:]], "bad_document"),
        (amended(NETWORK, ALICE, BOB)[1:], "wrong_network"),
        ([*NETWORK.history, identity_pb2.Envelope(payload=b"\xff\xff")], "malformed_message"),
        ([*NETWORK.history, identity_pb2.Envelope(payload=identity_pb2.NetworkDocument(version=2).SerializeToString())], "wrong_domain"),
    ],
)  # fmt: skip
def test_whatever_else_comes_changes_nothing(history: History, code: str) -> None:
    process = Process(NETWORK)
    with pytest.raises(DcnrError) as refused:
        process.network.take(history, now_wall=NOW)
    assert refused.value.code == code
    assert (process.network.policy, process.kept, process.told) == (NETWORK, [], [])


def test_how_replicas_were_set_up_changes_with_the_next_start() -> None:
    policy = network()
    process = Process(policy)
    history = amended(policy, ALICE, BOB, audits="drawn", store_bucket="moved", locality=identity_pb2.LOCALITY_SINGLE_HOST)
    assert process.network.take(history, now_wall=NOW)
    present = process.network.policy
    assert (present.audits_drawn, present.single_host, present.document.store_bucket) == (False, False, "moved")
    process.network.take(amended(present, ALICE, CAROL, store_bucket="again"), now_wall=NOW)
    assert (process.network.version, process.network.policy.audits_drawn) == (3, False)
    assert verify_chain(process.network.policy.history).audits_drawn, "a process that begins with it"


def test_who_has_not_the_keys_is_refused_after_one_versions_signatures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long chain of versions, each with many signatures, costs whoever is offered it no more than the first that does not follow."""
    looked: list[int] = []
    real = network_module.open_envelope

    def counted(envelope: identity_pb2.Envelope, *args: Any, **options: Any) -> Any:
        looked.append(len(envelope.signatures))
        return real(envelope, *args, **options)

    forged = list(NETWORK.history)
    for number in range(2, MAX_HISTORY + 1):
        draft = draft_successor(NETWORK)
        draft.version = number
        forged.append(sign_document(draft, MALLORY, DAVE))
    monkeypatch.setattr(network_module, "open_envelope", counted)
    process = Process(NETWORK)
    with pytest.raises(Refused):
        process.network.take(forged, now_wall=NOW)
    assert looked == [2]
