"""Goal: a next version of the network document is in force when enough maintainers signed it, and not before; what is shown is what is signed."""

from __future__ import annotations

import base64
import json

import pytest

from dcnr.errors import InvalidInput, Refused
from dcnr.v1 import identity_pb2
from trust.amendment import MAX_DRAFT_BYTES, Amendment, Changes, Lacking, amend
from trust.identity import NodeKey
from trust.network import MAX_HISTORY, NetworkPolicy, create_document, draft_successor, sign_document, verify_chain

ALICE, BOB, CAROL, DAVE, ERIN, MALLORY = (NodeKey.generate() for _ in range(6))
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


def test_data_hosts_come_and_go() -> None:
    policy = amend(
        two_of_three(), Changes(add_data_hosts=["data.example.org", "[2001:db8::1]:8443"]), [ALICE, BOB], now_wall=NOW
    ).policy()
    assert list(policy.document.data_hosts) == ["data.example.org", "[2001:db8::1]:8443"]
    changes = Changes(add_data_hosts=["data.example.org"], remove_data_hosts=["[2001:db8::1]:8443"])
    assert list(amend(policy, changes, [ALICE, BOB], now_wall=NOW).policy().document.data_hosts) == ["data.example.org"]
    for bad in ("https://data.example.org", "data.example.org/x", "Data.example.org", "a b", "", "x:0", "2001:db8::1", "user@x"):
        with pytest.raises(InvalidInput) as refused:
            amend(policy, Changes(add_data_hosts=[bad]), [ALICE, BOB], now_wall=NOW)
        assert refused.value.code == "bad_document", bad
    with pytest.raises(InvalidInput, match="64"):
        amend(policy, Changes(add_data_hosts=[f"h{number}.example.org" for number in range(63)]), [ALICE, BOB], now_wall=NOW)
    with pytest.raises(InvalidInput, match=r"other\.example\.org"):
        amend(policy, Changes(remove_data_hosts=["other.example.org"]), [ALICE, BOB], now_wall=NOW)


def test_components_come_and_go() -> None:
    policy = amend(two_of_three(), Changes(add_components=["linear", "conv_block"]), [ALICE, BOB], now_wall=NOW).policy()
    assert list(policy.document.components) == ["linear", "conv_block"]
    changes = Changes(add_components=["linear"], remove_components=["conv_block"])
    policy = amend(policy, changes, [ALICE, BOB], now_wall=NOW).policy()
    assert list(policy.document.components) == ["linear"]
    assert not amend(policy, Changes(remove_components=["linear"]), [ALICE, BOB], now_wall=NOW).policy().document.components
    for bad in (Changes(add_components=["Linear"]), Changes(add_components=[""]), Changes(remove_components=["other"])):
        with pytest.raises(InvalidInput):
            amend(policy, bad, [ALICE, BOB], now_wall=NOW)


def ids(*keys: NodeKey) -> tuple[str, ...]:
    return tuple(sorted(key.node_id for key in keys))


def test_other_keys_are_in_force_when_enough_of_the_old_and_of_the_new_have_signed() -> None:
    policy = two_of_three()
    changes = Changes(remove_maintainers=ids(ALICE, BOB), add_maintainers=[DAVE.public_der, ERIN.public_der], threshold=3)
    draft = amend(policy, changes, [ALICE], now_wall=NOW)
    assert draft.lacking() == (Lacking(1, 1, ids(BOB, CAROL)), Lacking(2, 3, ids(CAROL, DAVE, ERIN)))
    assert draft.missing() == 3, "Carol maintains both versions"
    for signers, lacking in (
        ([DAVE, ERIN], (Lacking(1, 1, ids(BOB, CAROL)), Lacking(2, 1, ids(CAROL)))), ([BOB], (Lacking(2, 3, ids(CAROL, DAVE, ERIN)),)),
        ([BOB, DAVE, ERIN], (Lacking(2, 1, ids(CAROL)),)),
    ):  # fmt: skip
        found = draft.sign(*signers)
        assert found.lacking() == lacking
        assert found.missing() == sum(one.count for one in lacking) - (len(lacking) == 2)
        with pytest.raises(Refused) as refused:
            found.policy()
        assert refused.value.code == "too_few_signatures"
    whole = Amendment.from_json(draft.sign(DAVE, ERIN).to_json()).sign(CAROL)
    assert (whole.missing(), whole.lacking()) == (0, ())
    newer = whole.policy()
    assert newer.document.threshold == 3
    assert {*newer.document.maintainer_keys} == {key.public_der for key in (CAROL, DAVE, ERIN)}
    with pytest.raises(Refused) as stranger:
        amend(newer, Changes(audits="drawn"), [ALICE], now_wall=NOW)
    assert stranger.value.code == "not_a_maintainer"


def test_versions_without_an_end_fit_one_chain_as_long_as_keys_stay() -> None:
    """More changes than a chain holds: those go first that proved nothing, so that whoever knows an older version still follows."""
    versions = [two_of_three()]
    for number in range(MAX_HISTORY + 1):
        change = Changes(trust=[PNODE], trusted_until_unix_ms=number + 1)
        if number == 4:
            change = Changes(add_maintainers=[DAVE.public_der], remove_maintainers=ids(ALICE))
        if number == 7:
            change = Changes(add_orchestrators=[SECOND])
        if number == 8:
            change = Changes(remove_orchestrators=[SECOND])
        versions.append(amend(versions[-1], change, [BOB, CAROL], now_wall=NOW).policy())
    newest = versions[-1]
    assert (newest.document.version, len(newest.history)) == (MAX_HISTORY + 2, MAX_HISTORY)
    assert newest.has_listed(SECOND)
    for known in versions[:-1]:
        assert known.successor(newest.history).document == newest.document


def test_a_chain_of_which_every_version_is_needed_takes_no_more() -> None:
    policy, key = verify_chain([create_document(ALICE, name="n", now_wall=NOW, orchestrator_ids=[FIRST])]), ALICE
    for _ in range(MAX_HISTORY - 1):
        other = NodeKey.generate()
        changes = Changes(add_maintainers=[other.public_der], remove_maintainers=ids(key))
        policy, key = amend(policy, changes, [key], now_wall=NOW).sign(other).policy(), other
    with pytest.raises(Refused) as full:
        amend(policy, Changes(audits="drawn"), [key], now_wall=NOW).policy()
    assert full.value.code == "chain_full"


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
        (Changes(remove_maintainers=[MALLORY.node_id]), "not_there"), (Changes(remove_maintainers=[BOB.node_id, CAROL.node_id]), "bad_document"),
        (Changes(threshold=4), "bad_document"), (Changes(threshold=2, add_maintainers=[BOB.public_der]), "nothing_to_change"),
        (Changes(add_maintainers=[b"key"]), "bad_document"), (Changes(audits="perhaps"), "bad_document"), (Changes(add_orchestrators=["nonsense"]), "bad_id"),
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
