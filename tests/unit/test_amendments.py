"""Goal: a next version of the network document is in force when enough maintainers signed it, and not before; what is shown is what is signed."""

from __future__ import annotations

import base64
import json

import pytest

from dcnr.errors import InvalidInput, Refused
from dcnr.v1 import identity_pb2
from trust.amendment import MAX_DRAFT_BYTES, Amendment, Changes, amend
from trust.identity import NodeKey
from trust.network import NetworkPolicy, create_document, draft_successor, sign_document, verify_chain

ALICE, BOB, CAROL, MALLORY = (NodeKey.generate() for _ in range(4))
FIRST, SECOND, PNODE = "a" * 40, "b" * 40, "c" * 40
NOW = 1_800_000_000.0


def two_of_three() -> NetworkPolicy:
    document = create_document(
        ALICE, BOB, CAROL, name="garden", now_wall=NOW, orchestrator_ids=[FIRST], threshold=2, bootstrap=[f"{FIRST}@192.0.2.1:7700"],
        locality=identity_pb2.LOCALITY_SPREAD,
    )  # fmt: skip
    return verify_chain([document])


def test_it_is_in_force_with_enough_signatures_of_maintainers() -> None:
    policy = two_of_three()
    changes = Changes(
        add_orchestrators=[SECOND], remove_orchestrators=[FIRST], add_bootstrap=[f"{SECOND}@192.0.2.2:7700"], trust=[PNODE],
        trusted_until_unix_ms=int(NOW * 1000) + 5000, audits="drawn", store=("http", "192.0.2.3:7790"),
    )  # fmt: skip
    draft = amend(policy, changes, [ALICE], now_wall=NOW + 1)
    assert draft.missing() == 1
    with pytest.raises(Refused) as refused:
        draft.policy()
    assert refused.value.code == "too_few_signatures"
    assert draft.sign(ALICE).missing() == 1, "one maintainer is one"
    newer = Amendment.from_json(draft.to_json()).sign(BOB).policy()
    assert (newer.network_id, newer.document.version) == (policy.network_id, 2)
    assert list(newer.document.orchestrator_ids) == [SECOND]
    assert list(newer.document.bootstrap) == [f"{FIRST}@192.0.2.1:7700", f"{SECOND}@192.0.2.2:7700"]
    assert newer.is_trusted(PNODE, NOW + 1)
    assert newer.audits_drawn
    assert (newer.document.store_scheme, newer.document.store_address) == ("http", "192.0.2.3:7790")
    again = amend(newer, Changes(untrust=[PNODE], audits="none"), [BOB, CAROL], now_wall=NOW + 2).policy()
    assert (again.document.version, again.is_trusted(PNODE, NOW), again.audits_drawn) == (3, False, False)
    assert list(again.document.orchestrator_ids) == [SECOND]


def test_strangers_do_not_sign() -> None:
    for refused in (
        lambda: amend(two_of_three(), Changes(audits="drawn"), [MALLORY], now_wall=NOW),
        lambda: amend(two_of_three(), Changes(audits="drawn"), [ALICE], now_wall=NOW).sign(MALLORY),
    ):
        with pytest.raises(Refused) as stranger:
            refused()
        assert stranger.value.code == "not_a_maintainer"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        (Changes(), "nothing_to_change"), (Changes(add_orchestrators=[FIRST]), "nothing_to_change"),
        (Changes(remove_orchestrators=[SECOND]), "not_there"), (Changes(untrust=[PNODE]), "not_there"),
        (Changes(remove_bootstrap=["x"]), "not_there"), (Changes(remove_orchestrators=[FIRST]), "no_orchestrator_left"),
        (Changes(audits="perhaps"), "bad_document"), (Changes(add_orchestrators=["nonsense"]), "bad_id"),
    ],
)  # fmt: skip
def test_changes_that_are_none_or_do_not_fit_are_refused(changes: Changes, code: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        amend(two_of_three(), changes, [ALICE], now_wall=NOW)
    assert refused.value.code == code


def test_a_draft_of_another_version_or_with_other_bytes_is_refused() -> None:
    policy = two_of_three()
    table = json.loads(amend(policy, Changes(audits="drawn"), [ALICE], now_wall=NOW).to_json())
    later = draft_successor(policy)
    later.version += 1
    envelope = sign_document(later, ALICE).SerializeToString(deterministic=True)
    for change in (
        {"draft": base64.b64encode(envelope).decode()}, {"draft": ""}, {"draft": "!"}, {"draft": 7}, {"documents": []}, {"documents": [7]},
        {"format": "another"}, {"documents": table["documents"] * 2},
    ):  # fmt: skip
        with pytest.raises(InvalidInput):
            Amendment.from_json(json.dumps({**table, **change}))
    for text in ("", "[]", "{", "null", '{"format": "dcnr-network-draft-1"}'):
        with pytest.raises(InvalidInput):
            Amendment.from_json(text)


def test_a_draft_has_a_size_and_a_signature_from_the_beginning() -> None:
    text = amend(two_of_three(), Changes(audits="drawn"), [ALICE], now_wall=NOW).to_json()
    assert Amendment.from_json(text.ljust(MAX_DRAFT_BYTES)).missing() == 1
    for refused, code in (
        (lambda: Amendment.from_json(text.ljust(MAX_DRAFT_BYTES + 1)), "bad_draft"),
        (lambda: amend(two_of_three(), Changes(audits="drawn"), [], now_wall=NOW), "no_key"),
    ):
        with pytest.raises(InvalidInput) as caught:
            refused()
        assert caught.value.code == code
