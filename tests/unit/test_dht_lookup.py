"""Goal: a look-up finds the closest living nodes, is not held up by silent ones, ends within its bounds, and survives a fifth of liars."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from membership.dht_lookup import ALPHA, MAX_ASKED, MAX_CANDIDATES, WIDTH, Lookup, usual_spacing
from membership.dht_peers import Contact

OWN = bytes(20)


def network(count: int, rng: random.Random) -> list[Contact]:
    return [Contact(rng.randbytes(20), f"{10 + i // 250}.{i % 250}.0.1", 7700) for i in range(count)]


def nearest(contacts: Sequence[Contact], target: bytes, count: int) -> list[Contact]:
    number = int.from_bytes(target)
    return sorted(contacts, key=lambda c: c.long_id ^ number)[:count]


def tables(contacts: list[Contact], rng: random.Random, *, bucket: int = 16) -> dict[bytes, list[Contact]]:
    """Each node's routing table: up to ``bucket`` contacts for each length of common prefix."""
    result = {}
    for node in contacts:
        by_prefix: dict[int, list[Contact]] = {}
        for other in rng.sample(contacts, len(contacts)):
            row = by_prefix.setdefault((node.long_id ^ other.long_id).bit_length(), [])
            if other.id != node.id and len(row) < bucket:
                row.append(other)
        result[node.id] = [c for row in by_prefix.values() for c in row]
    return result


def drive(lookup: Lookup, answer: Callable[[Contact], list[Contact] | None]) -> None:
    for step in range(10_000):
        now = float(step)
        asked = lookup.next_asks(now, 0.5)
        assert len(asked) <= ALPHA
        for contact in asked:
            named = answer(contact)
            if named is None:
                lookup.failed(contact)
            else:
                lookup.answered(contact, named)
        if lookup.finished(now, 0.5, wait_for_stalled=False):
            return
    raise AssertionError("the look-up did not end")


def test_finds_exactly_the_closest_living_nodes_with_half_of_them_dead() -> None:
    rng = random.Random(3)
    contacts = network(300, rng)
    known = tables(contacts, rng)
    dead = {c.id for c in rng.sample(contacts, 150)}
    living = [c for c in contacts if c.id not in dead]
    for _ in range(20):
        target, start = rng.randbytes(20), rng.choice(living)
        lookup = Lookup(target, nearest(known[start.id], target, 16), own_id=start.id, limit_subnets=True)

        def answer(c: Contact, target: bytes = target) -> list[Contact] | None:
            return None if c.id in dead else nearest(known[c.id], target, 16)

        drive(lookup, answer)
        found = lookup.closest_answered(8)[0][:8]
        truth = nearest([c for c in living if c.id != start.id], target, 8)
        assert len({c.id for c in found} & {c.id for c in truth}) >= 7


def test_stalled_requests_give_their_place_away_and_late_answers_count() -> None:
    contacts = network(8, random.Random(1))
    lookup = Lookup(contacts[0].id, contacts, own_id=OWN, limit_subnets=False)
    first = lookup.next_asks(0.0, 0.5)
    assert len(first) == ALPHA
    assert lookup.next_asks(0.4, 0.5) == []
    second = lookup.next_asks(0.5, 0.5)
    assert len(second) == ALPHA
    assert not set(first) & set(second)
    for contact in second:
        lookup.answered(contact, [])
    assert not lookup.finished(1.4, 0.5, wait_for_stalled=False)  # few answers so far: worth a little more patience
    assert lookup.finished(1.5, 0.5, wait_for_stalled=False)
    assert not lookup.finished(1.5, 0.5, wait_for_stalled=True)
    for contact in first:
        lookup.answered(contact, [])
    assert lookup.finished(1.6, 0.5, wait_for_stalled=True)
    assert len(lookup.closest_answered(12)[0]) == 8


def test_does_not_end_before_anybody_has_answered() -> None:
    contacts = network(2, random.Random(1))
    lookup = Lookup(OWN, contacts, own_id=OWN, limit_subnets=False)
    lookup.next_asks(0.0, 0.5)
    assert not lookup.finished(9.0, 0.5, wait_for_stalled=False)
    for contact in contacts:
        lookup.failed(contact)
    assert lookup.finished(9.0, 0.5, wait_for_stalled=False)


def test_a_liar_who_invents_contacts_without_end_is_bounded() -> None:
    rng = random.Random(5)
    target = rng.randbytes(20)
    lookup = Lookup(target, network(4, rng), own_id=OWN, limit_subnets=False)
    number = int.from_bytes(target)
    counter = iter(range(1, 10**6))

    def invent(_: Contact) -> list[Contact]:
        return [Contact((number ^ (2**150 - next(counter))).to_bytes(20), "8.8.8.8", 1) for _ in range(100)]

    drive(lookup, invent)
    assert lookup.num_asked <= MAX_ASKED
    assert len(lookup._candidates) <= MAX_CANDIDATES


def test_a_teller_places_at_most_two_contacts_of_a_subnet() -> None:
    seed = network(1, random.Random(1))
    lookup = Lookup(OWN, seed, own_id=OWN, limit_subnets=True)
    lookup.next_asks(0.0, 1.0)
    lookup.answered(seed[0], [Contact(bytes([i]) * 20, f"9.9.9.{i}", 1) for i in range(1, 20)])
    assert len(lookup.next_asks(0.0, 1.0)) == 2


@pytest.mark.parametrize("gap", [1, 2**160 // 500 // 4, 2**160 // 500])
def test_a_fifth_of_liars_does_not_hide_a_record(gap: int) -> None:
    """500 nodes, 100 of them colluding: they withhold the record and name only each other, under made-up ids, ``gap`` apart around the key."""
    rng = random.Random(11)
    contacts = network(500, rng)
    known = tables(contacts, rng)
    liars = rng.sample(contacts, 100)
    lying = {c.id for c in liars}
    honest = [c for c in contacts if c.id not in lying]
    found = 0
    for trial in range(200):
        target = rng.randbytes(20)
        number = int.from_bytes(target)
        # an address echoes one id at a time: each liar's machine yields one made-up contact per look-up
        fakes = [Contact((number ^ (i * gap + 1)).to_bytes(20), c.host, c.port) for i, c in enumerate(liars)]
        fake_ids = {c.id for c in fakes}

        def answer(
            c: Contact, target: bytes = target, fakes: list[Contact] = fakes, fake_ids: set[bytes] = fake_ids
        ) -> list[Contact]:
            return fakes[:WIDTH] if c.id in lying or c.id in fake_ids else nearest(known[c.id], target, WIDTH)

        def walk(start: Contact, target: bytes = target, answer: Callable[[Contact], list[Contact]] = answer) -> Lookup:
            spacing = usual_spacing(start.id, nearest(known[start.id], start.id, WIDTH))
            seeds = nearest(known[start.id], target, WIDTH)
            lookup = Lookup(target, seeds, own_id=start.id, limit_subnets=True, spacing=spacing)
            drive(lookup, answer)
            return lookup

        keepers = {c.id for c in walk(honest[trial]).closest_answered(12)[0]} - lying - fake_ids
        heard = {c.id for part in walk(rng.choice(honest)).closest_answered(12) for c in part}
        found += bool(keepers & heard)
    assert found >= 198
