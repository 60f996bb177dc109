"""Goal: nobody is audited by itself, its own, or whoever has a part in it; the choice is secret, fair to subnets, and those who wave through or slander pay."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trust.auditors import Candidate, Choice, Subject, choose
from trust.draw import Secret
from trust.overturned import Finding, Heard, Payment, Truth, audited_again, payments
from trust.separation import Party, Separation
from trust.standing import State

SECRET, APART = Secret(b"k" * 32), Separation()
VERIFIER = Party("v0", "operator", "203.0.113.0/24")
ACCUSED = Party("accused", "alice", "192.0.2.0/24")
SUBJECT = Subject("i" * 64, ACCUSED)


def candidate(name: str, owner: str, subnet: str, state: State = State.ACTIVE) -> Candidate:
    return Candidate(Party(name, owner, subnet), state, True)


def chosen(*candidates: Candidate, subject: Subject = SUBJECT, separation: Separation = APART) -> Choice | None:
    return choose(SECRET, subject, candidates, (), separation)


GOOD = candidate("b", "bob", "198.51.100.0/24")


def test_an_independent_active_node_is_chosen() -> None:
    found = chosen(GOOD)
    assert found is not None
    assert (found.node_id, found.is_verifier) == ("b", False)


@pytest.mark.parametrize(
    "bad",
    [
        replace(GOOD, party=replace(GOOD.party, node_id="accused")),
        replace(GOOD, party=replace(GOOD.party, owner="alice")),
        replace(GOOD, party=replace(GOOD.party, owner="")),
        replace(GOOD, party=replace(GOOD.party, subnet="192.0.2.0/24")),
        replace(GOOD, party=replace(GOOD.party, subnet="")),
        replace(GOOD, is_free=False),
        *(replace(GOOD, state=state) for state in State if state is not State.ACTIVE),
    ],
)
def test_each_reason_is_enough_against_it(bad: Candidate) -> None:
    assert chosen(bad) is None
    found = choose(SECRET, SUBJECT, [bad], [VERIFIER], APART)
    assert found is not None
    assert (found.node_id, found.is_verifier) == ("v0", True), "the operator's verifier does what nobody else may"


def test_what_is_not_known_of_either_side_separates_nobody() -> None:
    one, other = GOOD.party, ACCUSED
    assert APART.why_together(one, other) == ""
    for unknown in ("owner", "subnet"):
        for pair in ((replace(one, **{unknown: ""}), other), (one, replace(other, **{unknown: ""}))):
            assert unknown in APART.why_together(*pair)


def test_who_has_a_part_in_it_or_was_asked_is_not_asked() -> None:
    assert chosen(GOOD, subject=replace(SUBJECT, involved=frozenset("b"))) is None
    assert chosen(GOOD, subject=replace(SUBJECT, asked=frozenset("b"))) is None
    barred = replace(SUBJECT, asked=frozenset(("b", "v0")))
    assert choose(SECRET, barred, [GOOD], [VERIFIER], APART) is None, "a verifier is not asked twice either"


def test_who_belongs_to_somebody_whose_word_counts_already_is_not_asked() -> None:
    """Two machines of one owner, or of one house, are one word."""
    heard = replace(SUBJECT, asked=frozenset("b"), beside=(GOOD.party,))
    assert chosen(candidate("c", "bob", "203.0.113.0/24"), subject=heard) is None
    assert chosen(candidate("c", "carol", GOOD.party.subnet), subject=heard) is None
    same = [candidate(f"b{number}", "bob", "198.51.100.0/24") for number in range(40)]
    found = chosen(*same, candidate("c", "carol", "203.0.113.0/24"), subject=heard)
    assert found is not None
    assert found.node_id == "c"
    verified = choose(SECRET, heard, same, [VERIFIER], APART)
    assert verified is not None
    assert verified.is_verifier


def test_nameless_nodes_are_nobody_elses() -> None:
    nameless = Subject("i" * 64, Party("accused", "", "192.0.2.0/24"))
    assert chosen(GOOD, subject=nameless) is None


def test_on_a_single_host_only_the_node_itself_is_excluded() -> None:
    here = [candidate(name, "", "") for name in ("accused", "b")]
    found = chosen(*here, subject=Subject("i" * 64, Party("accused")), separation=Separation(single_host=True))
    assert found is not None
    assert found.node_id == "b"


PARTIES = st.builds(Party, st.sampled_from("abcdef"), st.sampled_from(["", "x", "y", "z"]), st.sampled_from(["", "n", "m"]))
CANDIDATES = st.lists(st.builds(Candidate, PARTIES, st.sampled_from(State), st.booleans()), max_size=12)


@given(CANDIDATES, PARTIES, st.frozensets(st.sampled_from("abcdefv")), st.binary(min_size=32, max_size=32), st.randoms())
def test_whoever_is_chosen_may_and_order_does_not_matter(
    candidates: list[Candidate], accused: Party, asked: frozenset[str], key: bytes, rng: random.Random
) -> None:
    subject = Subject("i", accused, asked=asked)
    found = choose(Secret(key), subject, candidates, [VERIFIER], APART)
    mixed = rng.sample(candidates, len(candidates))
    assert choose(Secret(key), subject, mixed, [VERIFIER], APART) == found
    assert found is not None
    if not found.is_verifier:
        fit = [one for one in candidates if one.party.node_id == found.node_id and one.is_free and one.state is State.ACTIVE]
        assert any(one.party.owner not in ("", accused.owner) and one.party.subnet not in ("", accused.subnet) for one in fit)
        assert accused.owner
        assert accused.subnet
        assert found.node_id not in asked | {accused.node_id}


def test_two_hundred_names_in_one_subnet_are_chosen_as_often_as_one() -> None:
    crowd = [candidate(f"c{number}", f"o{number}", "crowd") for number in range(200)]
    few = [candidate(f"f{number}", f"p{number}", f"n{number}") for number in range(3)]
    rng = random.Random(3)
    counted = Counter[str]()
    for _ in range(200):
        found = chosen(*crowd, *few, subject=Subject(rng.randbytes(32).hex(), ACCUSED))
        assert found is not None
        counted["crowd" if found.node_id.startswith("c") else found.node_id] += 1
    assert all(25 < count < 80 for count in counted.values()), counted
    assert len(counted) == 4


def test_another_attempt_and_another_secret_choose_anew() -> None:
    many = [candidate(f"f{number}", f"p{number}", f"n{number}") for number in range(50)]
    names = set()
    for asked in (frozenset[str](), frozenset(("x",)), frozenset(("x", "y"))):
        for key in (b"a" * 32, b"b" * 32):
            found = choose(Secret(key), replace(SUBJECT, asked=asked), many, (), APART)
            assert found is not None
            names.add(found.node_id)
    assert len(names) > 3


# ---- who pays -------------------------------------------------------------------------------------------------------------------


def heard(number: int, auditor: str, interval: str, finding: Finding, is_canary: bool = False) -> Heard:
    return Heard(number, auditor, interval, finding, is_canary)


def test_waving_through_and_slander_are_paid_for_and_doubt_is_not() -> None:
    truth = {"bad": Truth.WRONG, "good": Truth.RIGHT}
    told = [
        heard(1, "lazy", "bad", Finding.PASS), heard(2, "honest", "bad", Finding.FAULT), heard(3, "careful", "bad", Finding.DOUBT),
        heard(4, "liar", "good", Finding.FAULT), heard(5, "honest", "good", Finding.PASS), heard(6, "careful", "good", Finding.DOUBT),
        heard(7, "free", "unknown", Finding.PASS), heard(8, "lazy", "good", Finding.FAULT),
    ]  # fmt: skip
    assert payments(told, truth) == {"lazy": Payment.WAVED_THROUGH, "liar": Payment.SLANDERED}


def test_what_passed_on_the_payers_word_alone_since_its_last_honest_canary_is_audited_again() -> None:
    told = [
        heard(1, "lazy", "i1", Finding.PASS), heard(2, "lazy", "c1", Finding.FAULT, True), heard(3, "lazy", "i2", Finding.PASS),
        heard(4, "lazy", "i3", Finding.PASS), heard(5, "other", "i3", Finding.PASS), heard(6, "lazy", "i4", Finding.FAULT),
        heard(7, "other", "i5", Finding.PASS), heard(8, "lazy", "c2", Finding.PASS, True), heard(9, "lazy", "i6", Finding.PASS),
        heard(10, "lazy", "bad", Finding.PASS), heard(11, "lazy", "c3", Finding.PASS, True),
        heard(12, "lazy", "worse", Finding.FAULT),
    ]  # fmt: skip
    truth = {"c1": Truth.WRONG, "c2": Truth.WRONG, "c3": Truth.RIGHT, "bad": Truth.WRONG, "worse": Truth.WRONG}
    assert audited_again(told, truth, ["lazy"]) == dict.fromkeys(("i2", "i6"), "lazy")
    assert audited_again(told, truth, ["other"]) == {"i5": "other"}
    both = {"i2": "lazy", "i3": "lazy", "i5": "other", "i6": "lazy"}
    assert audited_again(told, truth, ["other", "lazy"]) == both, "none of two liars stands for the other"
