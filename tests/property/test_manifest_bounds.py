"""Goal: whatever is recorded, in however many pieces, the manifest that is written is one that every reader takes, and nobody takes the room of others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataservice import manifests
from dataservice.manifest_form import CheckpointRecord, Entry, Manifest, from_proto, to_proto
from dataservice.manifests import Rules, StoredState, next_manifest, share_bytes
from dcnr import limits
from dcnr.ids import digest_of
from dcnr.intervals import IntervalSet
from dcnr.v1 import identity_pb2, model_pb2
from trust.envelope import open_single, parse, parse_envelope, seal
from trust.identity import NodeKey

KEY = NodeKey.generate()
NOW_MS = 1_800_000_000_000


def record(vnode: str, pieces: int, *, number: int = 0, first: int = 0) -> CheckpointRecord:
    """Its lineage is every other batch: one interval each."""
    lineage = IntervalSet.of(*((first + 2 * one, first + 2 * one + 1) for one in range(pieces)))
    digest = digest_of(f"{vnode}/{number}/{pieces}".encode())
    return CheckpointRecord(
        vnode, f"{vnode}.{10**9 - 1}", "n" * 40, 2**40, digest, 2**40, lineage, len(lineage), "p" * 64, "c" * 64, 2**40, "j" * 60
    )


def beginning(vnodes: list[str]) -> Manifest:
    entries = {}
    for vnode in vnodes:
        zero = CheckpointRecord(vnode, "", "", 0, digest_of(vnode.encode()), 2**40, IntervalSet.empty(), 0, "", "", 0, "")
        entries[vnode] = Entry((zero,), zero)
    return Manifest("e" * 40, "m" * 60, 0, "", "", 1, "h" * 40, "g" * 64, entries)


def rules(records: list[CheckpointRecord], manifest: Manifest) -> Rules:
    stored = [StoredState(one.vnode, one.digest, one.size_bytes, NOW_MS) for one in records]
    primaries = {vnode: f"{vnode}.{10**9 - 1}" for vnode in manifest.entries}
    return Rules("j" * 60, 2**40, "h" * 40, "g" * 64, primaries, stored, NOW_MS, 3_600_000)


def readable(manifest: Manifest) -> None:
    """As `orchestrator.documents.open_manifest` and the PNodes read it."""
    data = seal(identity_pb2.DOMAIN_MANIFEST, to_proto(manifest), KEY).SerializeToString(deterministic=True)
    envelope = parse_envelope(data, limits.MAX_MANIFEST_BYTES)
    payload, _ = open_single(envelope, identity_pb2.DOMAIN_MANIFEST, max_bytes=limits.MAX_MANIFEST_BYTES)
    assert from_proto(parse(model_pb2.Manifest, payload, limits.MAX_MANIFEST_BYTES)) == manifest


@settings(max_examples=25)
@given(
    num_vnodes=st.integers(1, 40),
    rounds=st.lists(st.lists(st.tuples(st.integers(0, 39), st.integers(1, 6000), st.integers(0, 2**40)), max_size=8), max_size=4),
)
def test_every_manifest_is_read_again(num_vnodes: int, rounds: list[list[tuple[int, int, int]]]) -> None:
    vnodes = [f"v{number:04}" for number in range(num_vnodes)]
    manifest = beginning(vnodes)
    for number, taken in enumerate(rounds):
        records = [record(vnodes[vnode % num_vnodes], pieces, number=number, first=first) for vnode, pieces, first in taken]
        outcome = next_manifest(manifest, "d" * 64, records, rules(records, manifest))
        for refusal in outcome.refused:
            assert refusal.reason in ("too_fragmented", "older", "named")
        if outcome.manifest is not None:
            manifest = outcome.manifest
            readable(manifest)


@pytest.mark.parametrize("num_vnodes", [1, 24, limits.MAX_GRAPH_VNODES])
def test_all_vnodes_at_their_largest_fit_together(num_vnodes: int) -> None:
    """Everybody records the most pieces that fit its share: no checkpoint is refused because of others, and the bound holds."""
    vnodes = [f"v{number:04}" for number in range(num_vnodes)]
    manifest = beginning(vnodes)
    room = share_bytes(manifest)
    low, high = 0, limits.MAX_INTERVALS + 1
    while high - low > 1:  # the most pieces that one VNode may have here
        pieces = (low + high) // 2
        one = [record(vnodes[0], pieces)]
        refused = next_manifest(manifest, "d" * 64, one, rules(one, manifest)).refused
        low, high = (low, pieces) if refused else (pieces, high)
    assert low >= 1, f"not even one interval fits {room} bytes"
    condemned = tuple(digest_of(str(number).encode()) for number in range(manifests.MAX_CONDEMNED))
    everybody, again = [record(vnode, low) for vnode in vnodes], [replace(record(vnodes[0], 1, number=1), incarnation=2**41)]
    for records in (everybody, again):
        outcome = next_manifest(manifest, "d" * 64, records, rules(records, manifest))
        assert outcome.manifest is not None
        assert len(outcome.accepted) == len(records)
        manifest = replace(outcome.manifest, condemned=condemned, fences=dict.fromkeys(vnodes, 10**9 - 1))
        readable(manifest)


def test_a_checkpoint_in_too_many_pieces_is_refused_and_a_later_one_with_fewer_is_taken() -> None:
    manifest = beginning(["a", "b"])
    bad, good = record("a", limits.MAX_INTERVALS + 1), record("b", 3)
    outcome = next_manifest(manifest, "d" * 64, [bad, good], rules([bad, good], manifest))
    assert [(one.record.vnode, one.reason) for one in outcome.refused] == [("a", "too_fragmented")]
    assert outcome.manifest is not None
    later = record("a", 10, number=1)
    again = next_manifest(outcome.manifest, "d" * 64, [later], rules([later], outcome.manifest)).manifest
    assert again is not None
    assert again.entries["a"].working[0].digest == later.digest


def test_older_checkpoints_make_room_for_the_newest() -> None:
    """With many VNodes fewer old checkpoints are kept, before any new one is refused."""
    vnodes = [f"v{number:04}" for number in range(limits.MAX_GRAPH_VNODES)]
    manifest = beginning(vnodes)
    for number in range(4):
        one = [record("v0007", number + 1, number=number)]
        made = next_manifest(manifest, "d" * 64, one, rules(one, manifest)).manifest
        assert made is not None
        manifest = made
    kept = manifest.entries["v0007"].working
    assert kept[0].step == 4
    assert len(kept) < limits.KEPT_WORKING_CHECKPOINTS
