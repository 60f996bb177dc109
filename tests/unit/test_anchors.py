"""Goal: a contributor stands on an anchor only if the primary that it asked signed for it, at the end of commits that follow one another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dcnr.errors import DcnrError
from dcnr.ids import ReplicaId, digest_of
from dcnr.intervals import IntervalSet
from dcnr.v1 import identity_pb2, model_pb2, vnode_pb2
from pnode.anchors import Anchor, Question, Reply, check_anchor, check_verdict
from pnode.chain import CommitChain, Standing
from trust.delegation import make_delegation, open_delegation
from trust.envelope import seal
from trust.identity import NodeKey
from vnode.state import StateInfo
from vnode.vocabulary import Peer, Verdict

NETWORK, NOW = "5" * 40, 1_800_000_000.0
NODE, WORKER, OTHER_NODE, OTHER = (NodeKey.generate() for _ in range(4))
DATA = b"anchor"
INFO = StateInfo("a", "m", "1" * 64, "2" * 64, 1, 4, 20, 7, IntervalSet.span(0, 9))
OWN = replace(INFO, lineage=IntervalSet.empty(), parent="")


def delegation(node: NodeKey = NODE, worker: NodeKey = WORKER) -> identity_pb2.Envelope:
    return make_delegation(node, NETWORK, worker.public_der, 3, ["127.0.0.1:1"], NOW)


def question(sequence: int = 0) -> Question:
    worker = open_delegation(delegation(), network_id=NETWORK, now_wall=NOW)
    standing = Standing(NETWORK, "m", "j", "a", Peer(ReplicaId("a.1"), 7), "6" * 40)
    return Question(standing, Peer(ReplicaId("a.0"), 3), worker, sequence)


def chain(
    node: NodeKey = NODE, worker: NodeKey = WORKER, replica: str = "a.0", incarnation: int = 3, vnode: str = "a"
) -> CommitChain:
    standing = Standing(NETWORK, "m", "j", vnode, Peer(ReplicaId(replica), incarnation), node.node_id)
    return CommitChain(standing, worker, lambda: delegation(node, worker), "0" * 64, "")


def commits(made: CommitChain, anchor: str = "") -> tuple[identity_pb2.Envelope, ...]:
    made.close(state="3" * 64)
    made.learned(4, 1.0)
    made.close(anchor="4" * 64)
    made.close(anchor=anchor or digest_of(DATA))
    return made.commits


def reply(**changes: Any) -> Reply:
    facts: dict[str, Any] = {
        "verdict": vnode_pb2.MERGE_VERDICT_ANCHOR, "sequence": 0, "primary_incarnation": 3, "anchor_digest": digest_of(DATA), "anchor_bytes": len(DATA),
    }  # fmt: skip
    facts.update(changes)
    return Reply(vnode_pb2.MergeAnswer(**facts), commits(chain()), DATA)


def resigned(envelope: identity_pb2.Envelope, **changes: Any) -> identity_pb2.Envelope:
    commit = model_pb2.Commit.FromString(envelope.payload)
    for name, value in changes.items():
        setattr(commit, name, value)
    return seal(identity_pb2.DOMAIN_COMMIT, commit, WORKER)


def believed(whole: Reply, info: StateInfo = INFO) -> Anchor:
    assert check_verdict(whole, question()) is Verdict.ANCHOR
    return check_anchor(whole, question(), OWN, lambda data: info)


def test_a_reply_that_holds_is_believed() -> None:
    whole = reply()
    anchor = believed(whole)
    assert (anchor.data, anchor.digest, anchor.lineage, anchor.commits) == (
        DATA,
        digest_of(DATA),
        INFO.lineage,
        tuple(whole.commits),
    )


def verdict(**changes: Any) -> Reply:
    facts: dict[str, Any] = {"verdict": vnode_pb2.MERGE_VERDICT_MERGED, "sequence": 4, "primary_incarnation": 3}
    return Reply(vnode_pb2.MergeAnswer(**(facts | changes)), [], b"")


def test_a_verdict_on_the_delta_that_was_brought_is_believed_and_no_other() -> None:
    assert check_verdict(verdict(), question(4)) is Verdict.MERGED
    assert check_verdict(verdict(verdict=vnode_pb2.MERGE_VERDICT_REFUSED), question(4)) is Verdict.REFUSED
    for lie in (
        {"verdict": vnode_pb2.MERGE_VERDICT_ANCHOR},
        {"verdict": 0},
        {"sequence": 5},
        {"sequence": 0},
        {"primary_incarnation": 2},
    ):
        with pytest.raises(DcnrError):
            check_verdict(verdict(**lie), question(4))


def only_last(whole: Reply) -> Reply:
    return replace(whole, commits=whole.commits[-1:])


def test_one_commit_is_enough_when_a_manifest_names_the_state_before() -> None:
    assert believed(only_last(reply())).digest == digest_of(DATA)


@pytest.mark.parametrize(
    "lie",
    [
        lambda: reply(verdict=vnode_pb2.MERGE_VERDICT_UNSPECIFIED),
        lambda: reply(verdict=vnode_pb2.MERGE_VERDICT_MERGED),
        lambda: reply(sequence=5),
        lambda: reply(primary_incarnation=4),
        lambda: reply(anchor_digest="9" * 64),
        lambda: replace(reply(), anchor=DATA + b"x"),
        lambda: replace(reply(), commits=()),
        lambda: replace(reply(), commits=reply().commits[:-1]),
        lambda: replace(reply(), commits=(reply().commits[0], reply().commits[2])),
        lambda: replace(reply(), commits=commits(chain(), "9" * 64)),
        lambda: replace(reply(), commits=commits(chain(OTHER_NODE, OTHER))),
        lambda: replace(reply(), commits=commits(chain(replica="a.2"))),
        lambda: replace(reply(), commits=commits(chain(incarnation=2))),
        lambda: replace(reply(), commits=commits(chain(vnode="b", replica="b.0"))),
        lambda: only_last(replace(reply(), commits=[resigned(reply().commits[-1], job_id="other")])),
        lambda: replace(reply(), commits=[*(whole := reply()).commits[:-1], resigned(whole.commits[-1], parent_digest="8" * 64)]),
        lambda: replace(reply(), commits=[*(whole := reply()).commits[:-1], resigned(whole.commits[-1], parent_commit="8" * 64)]),
    ],
)
def test_a_reply_that_does_not_hold_is_not_believed(lie: Callable[[], Reply]) -> None:
    with pytest.raises(DcnrError):
        believed(lie())


@pytest.mark.parametrize(
    "info",
    [
        replace(INFO, vnode="b"),
        replace(INFO, model="n"),
        replace(INFO, graph="7" * 64),
    ],
)
def test_an_anchor_of_something_else_is_not_taken(info: StateInfo) -> None:
    with pytest.raises(DcnrError):
        believed(reply(), info)
