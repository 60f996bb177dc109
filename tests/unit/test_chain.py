"""Goal: the chain of a replica names every batch once, whoever learned it, from parent to parent, and hands over every commit in its order."""

from __future__ import annotations

import pytest

from dcnr import limits
from dcnr.errors import InvariantBroken
from dcnr.ids import ReplicaId, digest_of
from dcnr.intervals import END, IntervalSet
from dcnr.v1 import identity_pb2, local_pb2, model_pb2
from pnode.chain import MAX_COMMITS, CommitChain, Link, Standing
from trust.commits import MAX_DELTA_BYTES
from trust.envelope import digest_of_envelope, open_single
from trust.identity import NodeKey
from vnode.vocabulary import Peer

KEY = NodeKey.generate()
START = "0" * 64


def standing(replica: str = "a.1") -> Standing:
    return Standing("5" * 40, "m", "j", "a", Peer(ReplicaId(replica), 2), "6" * 40)


def chain(replica: str = "a.1") -> CommitChain:
    return CommitChain(standing(replica), KEY, identity_pb2.Envelope, START, "")


def commit_of(envelope: identity_pb2.Envelope) -> model_pb2.Commit:
    payload, signer = open_single(envelope, identity_pb2.DOMAIN_COMMIT)
    assert signer.public_der == KEY.public_der
    return model_pb2.Commit.FromString(payload)


def ready(made: CommitChain, link: Link) -> local_pb2.SnapshotReady:
    return made.ready(link, path="p", size_bytes=1, lineage=IntervalSet.span(0, 9), epoch=1)


def learn(made: CommitChain, *batches: int) -> None:
    for batch in batches:
        made.learned(batch, batch / 8)


def test_commits_name_parents_batches_and_losses_in_order() -> None:
    made = chain()
    learn(made, 3, 1)
    first = made.close(state="1" * 64)
    learn(made, 2)
    second = made.close(state="2" * 64)
    commit = commit_of(first.commit)
    assert (list(commit.batches), list(commit.losses)) == ([3, 1], [3 / 8, 1 / 8])
    assert (commit.parent_digest, commit.parent_commit, commit.state_digest) == (START, "", "1" * 64)
    following = commit_of(second.commit)
    assert (following.parent_digest, following.parent_commit) == ("1" * 64, digest_of_envelope(first.commit))
    assert list(following.batches) == [2]


def test_commits_are_numbered_on_over_the_lives_of_a_replica() -> None:
    first = chain()
    told = [commit_of(first.close(state=str(number) * 64).commit).sequence for number in (1, 2)]
    second = CommitChain(standing(), KEY, identity_pb2.Envelope, START, "", sequence=first.sequence)
    told.append(commit_of(second.close(anchor="3" * 64).commit).sequence)
    assert told == [1, 2, 3]


def test_deltas_stand_between_own_batches_and_an_anchor_is_a_parent() -> None:
    made = chain()
    learn(made, 0, 1)
    delta = chain("a.2").delta(1, "raw", digest_of(b"d"), 1, anchor=START, commits=[chain("a.0").close(anchor=START).commit])
    made.merged(delta, 3)
    learn(made, 2)
    made.merged(delta, 3)
    anchored = made.close(anchor="a" * 64)
    commit = commit_of(anchored.commit)
    assert [(item.after, item.delta, item.replicas) for item in commit.merges] == [(2, delta, 3), (3, delta, 3)]
    assert (commit.state_digest, commit.anchor_digest) == ("", "a" * 64)
    assert made.state_digest == "a" * 64
    learn(made, 5)
    assert commit_of(made.close(state="1" * 64).commit).parent_digest == "a" * 64


def test_each_commit_is_handed_over_once_and_before_those_that_follow() -> None:
    made = chain()
    commits = [made.close(anchor="a" * 64), made.close(state="1" * 64), made.close(anchor="b" * 64), made.close(state="2" * 64)]
    late, other = commits[1], commits[3]
    newer = ready(made, other)
    assert list(newer.ancestors) == [link.commit for link in commits[:3]], "an earlier snapshot that is still being written counts"
    assert (newer.commit, newer.checkpoint.parent_digest) == (other.commit, "b" * 64)
    older = ready(made, late)
    assert (list(older.ancestors), older.commit) == ([], late.commit)
    learn(made, 7)
    assert list(ready(made, made.close(state="3" * 64)).ancestors) == []


def test_what_may_not_have_come_into_the_store_travels_once_more() -> None:
    made = chain()
    links = [made.close(anchor="a" * 64), made.close(state="1" * 64), made.close(anchor="b" * 64), made.close(state="2" * 64)]
    for link in (links[1], links[3]):
        ready(made, link)
    made.named("1" * 64)
    made.hand_over_anew()
    newest = made.close(state="3" * 64)
    assert list(ready(made, newest).ancestors) == [links[2].commit, links[3].commit], "since the newest that a manifest names"
    assert list(ready(made, made.close(state="4" * 64)).ancestors) == []


def test_what_led_to_a_named_checkpoint_no_longer_travels() -> None:
    made = chain()
    links = [made.close(anchor="a" * 64), made.close(state="1" * 64), made.close(anchor="b" * 64)]
    made.named("f" * 64)
    assert len(made.commits) == 3
    made.named("1" * 64)
    assert made.commits == (links[2].commit,)


def test_a_delta_says_what_was_learned_since_the_last_one() -> None:
    made = chain()
    learn(made, 4, 5)
    behind = chain("a.0")
    behind.close(anchor="a" * 64)
    envelope = made.delta(1, "int8", digest_of(b"d"), 17, anchor="a" * 64, commits=behind.commits)
    payload, _ = open_single(envelope, identity_pb2.DOMAIN_DELTA)
    delta = model_pb2.Delta.FromString(payload)
    assert (list(delta.batches), list(delta.losses), delta.anchor_digest) == ([4, 5], [0.5, 0.625], START)
    assert delta.measured_digest == made.state_digest == "a" * 64
    assert (delta.replica, delta.incarnation, delta.sequence, delta.codec, delta.size_bytes) == ("a.1", 2, 1, "int8", 17)
    learn(made, 6)
    behind.close(anchor="b" * 64)
    envelope = made.delta(2, "raw", digest_of(b"e"), 1, anchor="b" * 64, commits=behind.commits, is_late=True)
    again = model_pb2.Delta.FromString(open_single(envelope, identity_pb2.DOMAIN_DELTA)[0])
    assert (list(again.batches), again.anchor_digest, again.measured_digest) == ([6], "a" * 64, "a" * 64)
    assert made.state_digest == "b" * 64


def test_the_longest_delta_has_a_statement_that_is_accepted() -> None:
    made = chain()
    for batch in range(END - limits.MAX_DELTA_BATCHES, END):
        made.learned(batch, 0.1)
    behind = chain("a.0")
    behind.close(anchor="a" * 64)
    envelope = made.delta(1, "raw", digest_of(b"d"), 1, anchor="a" * 64, commits=behind.commits)
    assert envelope.ByteSize() + 4 * limits.KIB < MAX_DELTA_BYTES, "with room for its delegation"


@pytest.mark.parametrize(
    ("keep_open", "keep_after", "own"), [(True, True, [4, 5, 6]), (False, True, [6]), (True, False, [4, 5]), (False, False, [])]
)
def test_a_promoted_contributor_goes_on_from_its_anchor(keep_open: bool, keep_after: bool, own: list[int]) -> None:
    primary, made = chain("a.0"), chain()
    behind = [primary.close(state="1" * 64), primary.close(anchor="a" * 64)]
    learn(made, 4, 5)
    made.delta(1, "raw", digest_of(b"d"), 1, anchor="1" * 64, commits=[behind[0].commit])
    learn(made, 6)
    made.rebase("a" * 64, [link.commit for link in behind], keep_open=keep_open, keep_after=keep_after)
    with pytest.raises(InvariantBroken):
        made.lead(IntervalSet.span(0, 9))
    made.lead(IntervalSet.of(*((batch, batch + 1) for batch in own)))
    link = made.close(state="2" * 64)
    commit = commit_of(link.commit)
    assert (commit.parent_digest, commit.parent_commit) == ("a" * 64, behind[1].digest)
    assert sorted(commit.batches) == own
    assert list(ready(made, link).ancestors) == [link.commit for link in behind]


def test_a_contributor_that_leads_has_its_open_delta_in_its_first_commit() -> None:
    primary, made = chain("a.0"), chain()
    behind = [primary.close(anchor="1" * 64), primary.close(anchor="a" * 64)]
    learn(made, 4, 5)
    delta = made.delta(1, "raw", digest_of(b"d"), 1, anchor="a" * 64, commits=[link.commit for link in behind])
    learn(made, 6)
    made.merged(delta, 2)
    made.lead(IntervalSet.span(6, 7))
    commit = commit_of(made.close(state="2" * 64).commit)
    assert (commit.parent_digest, list(commit.batches)) == ("a" * 64, [6])
    assert [(merged.after, merged.replicas, merged.delta) for merged in commit.merges] == [(1, 2, delta)]
    assert made.between("a" * 64, "a" * 64) == 0


def test_too_many_commits_without_a_named_checkpoint_are_noticed() -> None:
    made = chain()
    for number in range(MAX_COMMITS // 2 + 1):
        made.close(anchor=f"{number:064x}")
    assert (made.is_long, made.is_full) == (True, False)
    last = made.close(state="1" * 64)
    made.named(last.state)
    assert (made.is_long, made.is_full, made.commits) == (False, False, ())
