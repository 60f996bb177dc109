"""Goal: a manifest names only whole, newest, allowed checkpoints of the plan's primaries, and condemns only what nobody can still need."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dataservice.manifest_form import CheckpointRecord, Contribution, Entry, Manifest, from_proto, record_from_proto, to_proto
from dataservice.manifests import Rules, StoredState, condemn, lineage_of, next_manifest
from dcnr.errors import Corrupt
from dcnr.ids import Digest, digest_of
from dcnr.intervals import IntervalSet
from dcnr.v1 import common_pb2, model_pb2

LIFETIME_MS = 3_600_000
NOW_MS = 1_800_000_000_000


def record(step: int, vnode: str = "a", incarnation: int = 1, replica: str = "", job: str = "job") -> CheckpointRecord:
    replica = replica or f"{vnode}.0"
    digest = digest_of(f"{vnode}{step}{incarnation}{replica}{job}".encode())
    return CheckpointRecord(
        vnode, replica, "n" * 40, incarnation, digest, 100 + step, IntervalSet.span(0, step), step, "p" * 64, "c" * 64, 1, job
    )


def zero(vnode: str) -> CheckpointRecord:
    return replace(record(0, vnode, job=""), commit_digest="", parent_digest="")


def stored(*records: CheckpointRecord, age_ms: int = 0) -> tuple[StoredState, ...]:
    return tuple(StoredState(one.vnode, one.digest, one.size_bytes, NOW_MS - age_ms) for one in records)


def rules(*present: CheckpointRecord, age_ms: int = 0) -> Rules:
    return Rules("job", 2, "h" * 40, "g" * 64, {"a": "a.0", "b": "b.0"}, stored(*present, age_ms=age_ms), NOW_MS, LIFETIME_MS)


def start() -> Manifest:
    entries = {vnode: Entry((zero(vnode),), zero(vnode)) for vnode in ("b", "a")}
    return Manifest("e" * 40, "m", 0, "", "", 1, "h" * 40, "g" * 64, entries)


def own(*records: CheckpointRecord) -> dict[Digest, tuple[Contribution, ...]]:
    """Everything was learned by who made the checkpoint."""
    return {one.digest: (Contribution(one.vnode, one.replica, one.pnode_id, one.lineage),) for one in records}


def step_to(parent: Manifest, *records: CheckpointRecord) -> Manifest:
    made = next_manifest(parent, "d" * 64, records, rules(*records), own(*records)).manifest
    assert made is not None
    return made


def test_a_checkpoint_is_named_cleared_and_counted_once() -> None:
    first = step_to(start(), record(4))
    assert (first.number, first.epoch, first.audits, first.parent_digest) == (1, 2, "none", "d" * 64)
    assert [one.step for one in first.entries["a"].working] == [4, 0]
    assert first.entries["a"].cleared == first.entries["a"].working[0]
    assert first.entries["b"] == start().entries["b"], "every other VNode is still there: whole"
    assert [(one.vnode, one.batches) for one in first.contributions] == [("a", IntervalSet.span(0, 4))]
    second = step_to(first, record(6))
    assert [one.batches for one in second.contributions] == [IntervalSet.span(4, 6)]
    assert lineage_of(second.entries["a"], "job") == IntervalSet.span(0, 6)
    assert lineage_of(second.entries["a"], "later") == IntervalSet.empty()


def test_credit_is_by_who_learned_and_only_for_what_is_new() -> None:
    parent, newer = step_to(start(), record(4)), record(9)
    by = {
        newer.digest: (
            Contribution("a", "a.0", "n" * 40, IntervalSet.of((0, 5), (8, 9))), Contribution("a", "a.7", "m" * 40, IntervalSet.span(5, 8)),
            Contribution("a", "a.8", "m" * 40, IntervalSet.span(2, 4)),
        )
    }  # fmt: skip
    made = next_manifest(parent, "d" * 64, [newer], rules(newer), by).manifest
    assert made is not None
    assert [(one.replica, one.pnode_id[0], one.batches) for one in made.contributions] == [
        ("a.0", "n", IntervalSet.of((4, 5), (8, 9))),
        ("a.7", "m", IntervalSet.span(5, 8)),
    ]


def test_the_last_three_working_are_kept() -> None:
    manifest = start()
    for step in (1, 2, 3, 4, 5):
        manifest = step_to(manifest, record(step))
    assert [one.step for one in manifest.entries["a"].working] == [5, 4, 3]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (record(3), "older"),
        (replace(record(9), incarnation=0), "older_incarnation"),
        (record(9, vnode="nobody"), "unknown_vnode"),
        (record(9, replica="a.1"), "not_primary"),
        (record(9, job="other"), "wrong_job"),
        (replace(record(9), step=8), "bad_lineage"),
        (replace(record(9), digest=Digest("1" * 64)), "condemned"),
        (replace(record(9), digest=Digest("2" * 64)), "retracted"),
        (record(4), "named"),
    ],
)
def test_refusals_have_reasons_and_leave_the_others_alone(bad: CheckpointRecord, reason: str) -> None:
    parent = replace(step_to(start(), record(4)), condemned=(Digest("1" * 64),), retracted=(Digest("2" * 64),))
    good = record(7, "b")
    outcome = next_manifest(parent, "d" * 64, [bad, good], rules(bad, good), {})
    assert [(one.record, one.reason) for one in outcome.refused] == [(bad, reason)]
    assert outcome.manifest is not None
    assert outcome.manifest.entries["a"] == parent.entries["a"]
    assert [one.digest for one in outcome.accepted] == [good.digest]
    alone = next_manifest(parent, "d" * 64, [bad], rules(bad), {})
    assert (alone.manifest, alone.accepted) == (None, ())


def test_what_is_not_in_the_store_with_its_size_is_not_named() -> None:
    wanted = record(4)
    for present in ((), (replace(wanted, size_bytes=1),), (replace(wanted, vnode="b"),)):
        assert [one.reason for one in next_manifest(start(), "d" * 64, [wanted], rules(*present), {}).refused] == ["missing_object"]


def test_a_new_incarnation_may_start_lower_and_the_furthest_of_one_vnode_wins() -> None:
    parent = step_to(start(), record(9))
    again = record(5, incarnation=2)
    assert step_to(parent, again).entries["a"].working[0].step == 5
    outcome = next_manifest(start(), "d" * 64, [record(3), record(8), record(5)], rules(record(3), record(8), record(5)), {})
    assert [one.step for one in outcome.accepted] == [8]
    assert [(one.record.step, one.reason) for one in outcome.refused] == [(5, "older"), (3, "older")]


def test_only_old_unnamed_states_are_condemned_and_for_good() -> None:
    parent = step_to(start(), record(4))
    stray, named = record(2, incarnation=7), parent.entries["a"].working[0]
    young = next_manifest(parent, "d" * 64, [], rules(stray, named, age_ms=LIFETIME_MS), {})
    assert young.manifest is None, "an upload may still be under way"
    old = next_manifest(parent, "d" * 64, [], rules(stray, named, age_ms=LIFETIME_MS + 1), {})
    assert old.manifest is not None
    assert old.manifest.condemned == (stray.digest,)
    spared = replace(rules(stray, named, age_ms=LIFETIME_MS + 1), kept=frozenset({stray.digest}))
    assert next_manifest(parent, "d" * 64, [], spared, {}).manifest is None
    revived = replace(stray, step=9, lineage=IntervalSet.span(0, 9))
    assert [one.reason for one in next_manifest(old.manifest, "d" * 64, [revived], rules(revived), {}).refused] == ["condemned"]
    later = step_to(old.manifest, record(5))
    assert later.condemned == (stray.digest,)


def test_the_list_of_condemned_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataservice.manifests.MAX_CONDEMNED", 3)
    before = tuple(Digest(str(number) * 64) for number in range(3))
    still_there = StoredState("a", before[0], 1, NOW_MS)
    fresh = StoredState("a", digest_of(b"fresh"), 1, NOW_MS - LIFETIME_MS - 1)
    made = condemn(start(), before, replace(rules(), stored=(still_there, fresh)))
    assert made == (before[0], before[2], fresh.digest), "the oldest that is deleted already is forgotten"


def test_the_wire_form_is_the_same_manifest() -> None:
    manifest = replace(step_to(start(), record(4), record(6, "b")), retracted=(digest_of(b"r"),), condemned=(digest_of(b"c"),))
    message = to_proto(manifest)
    assert [entry.vnode for entry in message.entries] == ["a", "b"]
    again = model_pb2.Manifest.FromString(message.SerializeToString(deterministic=True))
    assert from_proto(again) == manifest
    bad = model_pb2.Checkpoint(lineage=common_pb2.IntervalSet(intervals=[common_pb2.Interval(first=3, end=3)]))
    with pytest.raises(Corrupt):
        record_from_proto(bad)
