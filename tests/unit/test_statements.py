"""Goal: commits and deltas are believed only from the worker that a PNode delegated, about the place that is meant, and in a form that can be read."""

from __future__ import annotations

import math

import pytest

from dcnr.errors import Corrupt, DcnrError, Refused
from dcnr.intervals import IntervalSet
from dcnr.limits import MAX_OBJECT_BYTES
from dcnr.v1 import identity_pb2, model_pb2
from trust.commits import MAX_COMMIT_BYTES, Place, begins_interval, follows, open_commit, open_delta
from trust.delegation import make_delegation
from trust.envelope import seal
from trust.identity import NodeKey

NOW, NETWORK = 1_700_000_000.0, "5" * 40
NODE, WORKER, STRANGER = (NodeKey.generate() for _ in range(3))
PLACE = Place(NETWORK, "m", "j", "a")
LATER = NOW + 7 * 86400.0


def delegation(*, network_id: str = NETWORK) -> identity_pb2.Envelope:
    return make_delegation(NODE, network_id, WORKER.public_der, 3, ["127.0.0.1:1"], NOW)


def commit(worker: NodeKey = WORKER, **changes: object) -> identity_pb2.Envelope:
    facts: dict[str, object] = {
        "network_id": NETWORK, "model": "m", "job_id": "j", "vnode": "a", "replica": "a.0", "incarnation": 3, "parent_digest": "1" * 64,
        "state_digest": "2" * 64, "sequence": 7, "delegation": delegation(), **changes,
    }  # fmt: skip
    return seal(identity_pb2.DOMAIN_COMMIT, model_pb2.Commit(**facts), worker)  # type: ignore[arg-type]


def delta(worker: NodeKey = WORKER, **changes: object) -> identity_pb2.Envelope:
    facts: dict[str, object] = {
        "network_id": NETWORK, "model": "m", "job_id": "j", "vnode": "a", "replica": "a.1", "incarnation": 3, "sequence": 1,
        "anchor_digest": "3" * 64, "batches": [5, 2], "losses": [1.0, 0.5], "codec": "raw", "digest": "4" * 64, "size_bytes": 9,
        "delegation": delegation(), **changes,
    }  # fmt: skip
    return seal(identity_pb2.DOMAIN_DELTA, model_pb2.Delta(**facts), worker)  # type: ignore[arg-type]


WRONG_PLACES = [{name: "other"} for name in ("network_id", "model", "job_id", "vnode")]


def test_what_holds_is_opened() -> None:
    assert open_commit(commit(), PLACE, now_wall=NOW).delegation.pnode_id == NODE.node_id
    found = open_delta(delta(), PLACE)
    assert (found.replica, found.batches, found.digest) == ("a.1", IntervalSet.of((2, 3), (5, 6)), "4" * 64)
    for size_bytes in (1, MAX_OBJECT_BYTES):
        assert open_delta(delta(codec="int8", size_bytes=size_bytes), PLACE).delta.codec == "int8"


def test_a_delegation_that_has_ended_counts_for_what_was_said_before() -> None:
    assert open_commit(commit(), PLACE).commit.sequence == 7
    assert open_delta(delta(), PLACE).delta.sequence == 1
    with pytest.raises(Refused) as caught:
        open_commit(commit(), PLACE, now_wall=LATER)
    assert caught.value.code == "delegation_expired"


def raw(payload: bytes) -> identity_pb2.Envelope:
    """Signed as a commit is, whatever it says."""
    return seal(identity_pb2.DOMAIN_COMMIT, payload, WORKER)


def changed(envelope: identity_pb2.Envelope) -> identity_pb2.Envelope:
    """The same signature under other words."""
    made = identity_pb2.Envelope.FromString(envelope.SerializeToString())
    made.payload = made.payload[:-1] + bytes([made.payload[-1] ^ 1])
    return made


@pytest.mark.parametrize(
    "envelope",
    [
        raw(b"\xff" * 40),
        raw(commit().payload[:-7]),
        raw(commit().payload + bytes(MAX_COMMIT_BYTES)),
        commit(batches=range(MAX_COMMIT_BYTES)),
        changed(commit()),
        identity_pb2.Envelope(domain=identity_pb2.DOMAIN_COMMIT, payload=commit().payload),
    ],
    ids=["noise", "cut short", "padded", "too long", "changed", "unsigned"],
)
def test_a_commit_that_is_malformed_oversized_changed_or_unsigned_is_refused_before_its_place_is_looked_at(
    envelope: identity_pb2.Envelope,
) -> None:
    with pytest.raises(Corrupt) as caught:
        open_commit(envelope, PLACE)
    assert caught.value.code not in ("", "wrong_commit")


@pytest.mark.parametrize(
    ("envelope", "code"),
    [
        *((commit(**place), "wrong_commit") for place in WRONG_PLACES),
        (commit(STRANGER), "wrong_signer"),
        (commit(NODE), "wrong_signer"),
        (commit(incarnation=4), "stale_incarnation"),
        (commit(incarnation=2), "stale_incarnation"),
        (commit(delegation=delegation(network_id="6" * 40)), "wrong_network"),
        (delta(), "wrong_domain"),
    ],
)
def test_any_other_commit_is_refused(envelope: identity_pb2.Envelope, code: str) -> None:
    with pytest.raises(DcnrError) as caught:
        open_commit(envelope, PLACE)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("envelope", "code"),
    [
        *((delta(**place), "wrong_job") for place in WRONG_PLACES),
        (delta(STRANGER), "wrong_signer"),
        (delta(incarnation=4), "stale_incarnation"),
        (delta(incarnation=2), "stale_incarnation"),
        (commit(), "wrong_domain"),
        *(
            (delta(**changes), "bad_delta")
            for changes in (
                {"codec": "fp16"},
                {"codec": ""},
                {"size_bytes": 0},
                {"size_bytes": MAX_OBJECT_BYTES + 1},
                {"sequence": 0},
                {"replica": "b.1"},
                {"replica": "no name"},
                {"replica": "a.x"},
                {"digest": "short"},
                {"anchor_digest": ""},
                {"anchor_digest": "C" * 64},
                {"measured_digest": "d" * 63},
                {"measured_digest": "d" * 64 + "\n"},
                {"steps_digest": "x" * 200_000},
                {"batches": [], "losses": []},
                {"batches": [5, 5]},
                {"losses": [1.0]},
                {"losses": [1.0, 0.5, 0.25]},
                {"losses": [1.0, math.nan]},
                {"losses": [math.inf, 1.0]},
            )
        ),
    ],
)
def test_any_other_delta_is_refused(envelope: identity_pb2.Envelope, code: str) -> None:
    with pytest.raises(DcnrError) as caught:
        open_delta(envelope, PLACE)
    assert caught.value.code == code
    assert isinstance(caught.value, Corrupt) or code != "bad_delta"


def test_a_commit_follows_the_state_or_the_anchor_of_its_parent_with_a_higher_number() -> None:
    parent = model_pb2.Commit(replica="a.0", incarnation=3, state_digest="s", sequence=4)

    def after(**facts: object) -> bool:
        given = {"replica": "a.0", "incarnation": 3, "parent_digest": "s", "sequence": 5, **facts}
        return follows(model_pb2.Commit(**given), parent)  # type: ignore[arg-type]

    assert after()
    assert not after(parent_digest="x")
    assert not after(parent_digest="")
    assert not follows(model_pb2.Commit(sequence=1), model_pb2.Commit()), "nothing is no state"
    assert not after(sequence=4)
    assert not after(sequence=3)
    assert after(sequence=1, incarnation=4)
    assert after(sequence=1, replica="a.1")
    parent.sequence = 0
    assert after(sequence=0), "commits that are not numbered"
    assert after(sequence=1)
    parent.state_digest, parent.anchor_digest = "", "a"
    assert after(parent_digest="a")
    parent.state_digest = "s"
    assert not after(parent_digest="a"), "nobody replays up to an anchor beside a state"


def test_an_interval_begins_after_a_state_after_another_life_and_with_the_first_commit() -> None:
    found = open_commit(commit(parent_digest="3" * 64), PLACE)
    behind_anchor = {"state_digest": "", "anchor_digest": "3" * 64}
    before = {
        "nothing": None,
        "a state": open_commit(commit(), PLACE),
        "an anchor": open_commit(commit(**behind_anchor), PLACE),
        "an anchor of another replica": open_commit(commit(replica="a.1", **behind_anchor), PLACE),
    }
    begins = {name for name, one in before.items() if begins_interval(found, one)}
    assert begins == {"nothing", "a state", "an anchor of another replica"}
