"""Goal: a public name is what its owner chose or nothing; none can carry markup, move the text around it, or pass for an id or a part of the network."""

from __future__ import annotations

import asyncio
import random
import unicodedata
from pathlib import Path

import pytest

from dcnr.errors import InvalidInput
from dcnr.settings import PNodeSettings
from dcnr.v1 import membership_pb2
from orchestrator.inventory import Inventory
from pnode.entry import run_pnode
from trust.identity import NodeKey
from trust.public_names import MAX_BYTES, MAX_LETTERS, check_public_name, shown_name
from trust.records import make_advert, open_advert

KEY = NodeKey.generate()

GOOD = (
    "Ada", "ada lovelace", "O'Brien", "Jean-Luc", "garden_7", "R. Daneel", "Zoë", "Łukasz", "Αθηνά", "Ольга", "さくら 七海", "김민수", "नमिता",
    "שרה", "ليلى", "aq\u0323\u0308", "x" * MAX_LETTERS, "Cafe au lait", "Ed 3",
)  # fmt: skip
BAD = {
    "markup": ("<b>x</b>", "a&amp;b", 'a"onload', "a`b", "[x](y)", "a/b", "a\\b", "$(id)", "a;b", "50%", "a@b", "#a", "*a*", "a|b"),
    "characters that move or hide text": (
        "a\u202eb", "a\u200fb", "a\u2066b", "a\u200bb", "a\u200db", "a\ufeffb", "a\x1b[31mb", "a\nb", "a\tb", "a\x00b", "a\u00adb", "a\u3164b",
        "a\u2028b", "a\u00a0b", "\ud800", "a\U000e0041",
    ),
    "lookalikes of other letters": ("Ａda", "𝐀da", "ﬁn", "²x", "Ⅻ", "ℌ", "A\u0301da"),
    "mixed scripts": ("Аda", "аdmin", "Οlga", "pаypal", "ada さくら"),
    "shape": ("", " ada", "ada ", "a  b", "-a", "a.", "...", "7", "2 3", "\u0301a", "a\u0334\u0335\u0336b", "x" * (MAX_LETTERS + 1), "\U00020000" * 25),
    "somebody else": (
        "Orchestrator", "orch-estrator", "DCNR", "dcnr team", "the admin", "Official garden", "0rchestrator", "4dmin", "s.y.s.t.e.m", "verified ada",
        "deadbeef", "DEADBEEF01", "3f0c9a1b2c", "3f0c 9a1b", "abc-def",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_names_of_all_scripts_are_shown(name: str) -> None:
    assert check_public_name(name) == shown_name(name) == name


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in BAD.items() for name in names])
def test_what_is_refused_is_said_and_never_shown(kind: str, name: str) -> None:
    assert shown_name(name) == "", kind
    if name:
        with pytest.raises(InvalidInput) as caught:
            check_public_name(name)
        assert caught.value.code == "bad_public_name"
        assert caught.value.remedy


def test_no_name_is_a_choice() -> None:
    assert check_public_name("") == ""


def test_a_name_travels_in_the_advert_and_goes_with_the_next_one() -> None:
    inventory = Inventory()

    def told(**fields: str) -> str:
        envelope = make_advert(
            KEY, network_id="a" * 40, kind=membership_pb2.NODE_KIND_PNODE, incarnation=1, sequence=1, control_addresses=["127.0.0.1:1"], now_wall=1e9,
            **fields,
        )  # fmt: skip
        inventory.advertised(open_advert(envelope, network_id="a" * 40, now_wall=1e9).advert, 0.0)
        return inventory.nodes()[KEY.node_id].public_name

    assert told(public_name="Ada") == "Ada"
    assert told() == ""
    with pytest.raises(InvalidInput):
        told(public_name="<b>Ada</b>")


def test_a_machine_does_not_start_under_a_bad_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        asyncio.run(run_pnode(PNodeSettings(name="<b>x</b>"), tmp_path, {}))
    assert caught.value.code == "bad_public_name"


def test_an_advert_with_a_bad_name_counts_and_its_name_does_not() -> None:
    inventory = Inventory()
    inventory.advertised(membership_pb2.Advert(node_id=KEY.node_id, public_name="a\u202eb", control_addresses=["127.0.0.1:1"]), 0.0)
    known = inventory.nodes()[KEY.node_id]
    assert (known.public_name, known.address) == ("", "127.0.0.1:1")


def test_whatever_a_stranger_says_the_shown_name_is_harmless() -> None:
    """Random strings: what is shown is bounded, printable, without control, format, markup or private characters."""
    rng = random.Random(7)
    pools = (
        "abcdefgxyz -_.'0123",
        "<>&\"'`/\\{}$%",
        "".join(map(chr, range(0x250))),
        "".join(map(chr, [*range(0x300, 0x700), *range(0x2000, 0x2100)])),
    )
    num_shown = 0
    for _ in range(20_000):
        pool = rng.choice(pools) + "abc"
        text = "".join(rng.choice(pool) for _ in range(rng.randrange(MAX_LETTERS + 8)))
        name = shown_name(text)
        num_shown += bool(name)
        assert name in ("", text)
        assert len(name.encode()) <= MAX_BYTES
        assert name.isprintable()
        assert not set(name) & set('<>&"`/\\{}$%;')
        assert not any(unicodedata.category(letter)[0] in "CZ" and letter != " " for letter in name)
    assert num_shown > 100
