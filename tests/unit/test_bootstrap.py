"""Goal: bootstrap entries are read strictly and merged in order; the cache of known peers is bounded, atomic and survives any damage."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcnr.errors import InvalidInput
from dcnr.ids import NodeId
from dcnr.limits import MAX_BOOTSTRAP_ENTRIES
from membership.bootstrap import (
    MAX_CACHED_PEERS,
    CachedPeer,
    Entry,
    listed,
    merge,
    parse_entry,
    parse_list,
    read_cache,
    read_list,
    remember,
    write_cache,
)

ID = NodeId("0123456789abcdef0123" * 2)
OTHER = NodeId("f" * 40)


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("example.org:7700", Entry("example.org", 7700)),
        (" Example.ORG:7700\n", Entry("example.org", 7700)),
        ("203.0.113.5:1", Entry("203.0.113.5", 1)),
        (f"{ID}@203.0.113.5:65535", Entry("203.0.113.5", 65535, ID)),
        ("[2001:DB8:0:0::1]:7700", Entry("2001:db8::1", 7700)),
        (f"{ID}@[::1]:7700", Entry("::1", 7700, ID)),
        ("my_host:7700", Entry("my_host", 7700)),
    ],
)
def test_entries_that_are_understood(text: str, entry: Entry) -> None:
    assert parse_entry(text) == entry
    assert parse_entry(str(entry)) == entry


@pytest.mark.parametrize(
    "text",
    ["", ":7700", "host", "host:", "host:0", "host:65536", "host:-1", "host:77 00", "host:٣", "2001:db8::1:7700", "[2001:db8::1]", "[host]:7700",
     "[::1:7700", "@host:7700", "abc@host:7700", f"{ID.upper()}@host:7700", f"{ID}@", f"{ID}@{ID}@host:7700", "1.2.3:7700", "1.2.3.4.5:7700",
     "300.1.1.1:7700", "-a.org:7700", "a..org:7700", "a b:7700", "http://host:7700", "host:7700/x", "x" * 400 + ":1", "a\x00b:7700"],
)  # fmt: skip
def test_entries_that_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_entry(text)


@given(st.text(max_size=100))
def test_any_text_is_an_entry_or_invalid_input(text: str) -> None:
    try:
        entry = parse_entry(text)
    except InvalidInput:
        return
    assert parse_entry(str(entry)) == entry


def test_a_list_has_comments_and_names_the_bad_line() -> None:
    assert parse_list("# ours\n\nexample.org:1  # first\n 203.0.113.5:2\n") == [Entry("example.org", 1), Entry("203.0.113.5", 2)]
    with pytest.raises(InvalidInput, match="line 2"):
        parse_list("example.org:1\nnonsense\n")
    with pytest.raises(InvalidInput, match="more than"):
        parse_list("\n".join(f"h:{port}" for port in range(1, MAX_BOOTSTRAP_ENTRIES + 2)))


def test_a_named_file_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot read"):
        read_list(tmp_path / "missing")
    for data in (b"\xff\xfe", b"x" * 100_000):
        (tmp_path / "list").write_bytes(data)
        with pytest.raises(InvalidInput):
            read_list(tmp_path / "list")
    (tmp_path / "list").write_text("example.org:1\n")
    assert read_list(tmp_path / "list") == [Entry("example.org", 1)]
    assert listed(["b:2"], str(tmp_path / "list")) == ("b:2", "example.org:1")
    assert listed(["b:2"], "") == ("b:2",)
    (tmp_path / "list").write_text("example.org:1\nnonsense\n")
    with pytest.raises(InvalidInput, match=r"list, line 2: bootstrap entry 'nonsense'"):
        read_list(tmp_path / "list")


def test_merging_keeps_the_order_of_sources_and_takes_over_missing_ids() -> None:
    flag = [Entry("a", 1), Entry("b", 2, ID)]
    file = [Entry("c", 3), Entry("a", 1, ID), Entry("b", 2, OTHER)]
    assert merge(flag, file) == [Entry("a", 1, ID), Entry("b", 2, ID), Entry("c", 3)]
    assert len(merge([Entry("h", port) for port in range(1, 1000)])) == MAX_BOOTSTRAP_ENTRIES
    assert merge(flag, file, limit=1) == [Entry("a", 1, ID)]


def peers(count: int) -> list[CachedPeer]:
    return [CachedPeer(Entry(f"h{i}", 1 + i, NodeId(f"{i:040x}")), float(i)) for i in range(count)]


def test_the_cache_keeps_the_newest_and_one_address_per_node() -> None:
    known = remember(peers(300), [])
    assert len(known) == MAX_CACHED_PEERS
    assert known[0].last_seen == 299.0
    moved = CachedPeer(Entry("elsewhere", 9, known[0].entry.node_id), 500.0)
    again = remember(known, [moved])
    assert again[0] == moved
    assert len(again) == MAX_CACHED_PEERS
    assert remember(again, [CachedPeer(known[0].entry, 1.0)]) == again


def test_the_cache_survives_a_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    assert read_cache(path).peers == ()
    assert read_cache(path).problem == ""
    write_cache(path, peers(5))
    assert read_cache(path).peers == tuple(reversed(peers(5)))
    write_cache(path, peers(2))
    assert read_cache(path).peers == tuple(reversed(peers(2)))
    assert os.listdir(tmp_path) == ["nodes.json"]


def test_a_full_cache_of_long_names_can_be_read_again(tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    long = ".".join(["x" * 62] * 3)
    many = [CachedPeer(Entry(f"{long}.h{i}", 65535, NodeId(f"{i:040x}")), 1.7e9 + i / 3) for i in range(MAX_CACHED_PEERS)]
    write_cache(path, many)
    assert len(read_cache(path).peers) == MAX_CACHED_PEERS


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"[" * 60_000,
        b"{}",
        b'{"version": 2, "peers": []}',
        b'{"version": 1, "peers": {}}',
        b"\xff\x00",
        b"x" * 100_000,
    ],
)
def test_a_damaged_cache_is_said_and_not_fatal(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "nodes.json"
    path.write_bytes(data)
    read = read_cache(path)
    assert read.peers == ()
    assert "without known peers" in read.problem
    write_cache(path, peers(1))
    assert read_cache(path) == type(read)(tuple(peers(1)))


def test_damaged_rows_are_left_out_and_the_rest_is_used(tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    good = {"entry": f"{ID}@h:1", "last_seen": 5}
    bad = [None, 7, {}, {"entry": "h", "last_seen": 1}, {"entry": "h:1", "last_seen": "1"}, {"entry": "h:1", "last_seen": True}]
    path.write_text(
        json.dumps(
            {
                "version": 1,
                "peers": [good, *bad, {"entry": "h:1", "last_seen": float("nan")}, {"entry": "h:2", "last_seen": 10**400}],
            }
        )
    )
    read = read_cache(path)
    assert read.peers == (CachedPeer(Entry("h", 1, ID), 5.0),)
    assert "8 of 9" in read.problem


def test_any_flipped_byte_is_tolerated(tmp_path: Path) -> None:
    path, rng = tmp_path / "nodes.json", random.Random(1)
    write_cache(path, peers(3))
    whole = path.read_bytes()
    for _ in range(300):
        data = bytearray(whole)
        data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data[: rng.randrange(len(data) + 1)] if rng.random() < 0.3 else data)
        assert len(read_cache(path).peers) <= 3


def test_a_directory_in_the_place_of_the_cache_is_said(tmp_path: Path) -> None:
    (tmp_path / "nodes.json").mkdir()
    assert "cannot read" in read_cache(tmp_path / "nodes.json").problem
    with pytest.raises(OSError):
        write_cache(tmp_path / "nodes.json", peers(1))
    assert os.listdir(tmp_path) == ["nodes.json"]
