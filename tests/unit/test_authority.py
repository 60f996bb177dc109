"""Goal: a PNode obeys only the term that the head names, whoever claims what, and only newer desired states of it."""

from __future__ import annotations

import pytest

from dcnr.errors import Unavailable
from dcnr.ids import NodeId
from dcnr.v1 import model_pb2
from pnode.authority import Accepted, Authority, Ignored, Source, Term, Unconfirmed
from pnode.models import Hosted
from trust.identity import NodeKey
from trust.network import create_document, verify_chain

ME, A, B, ROGUE = (NodeId(char * 40) for char in "0abc")
NETWORK = "9" * 40


def authority(*orchestrators: NodeId) -> Authority:
    return Authority(network_id=NETWORK, pnode_id=ME, model="m", orchestrators=lambda: orchestrators or (A, B))


def desired(holder: NodeId, epoch: int, sequence: int) -> model_pb2.DesiredState:
    return model_pb2.DesiredState(network_id=NETWORK, model="m", epoch=epoch, holder=holder, sequence=sequence, pnode_id=ME)


def head(holder: NodeId, epoch: int, sequence: int = 1) -> model_pb2.Head:
    return model_pb2.Head(network_id=NETWORK, model="m", epoch=epoch, holder=holder, sequence=sequence)


def test_first_term_waits_for_the_head() -> None:
    state = authority()
    assert state.offered(desired(A, 1, 5), A) == Unconfirmed("m", Term(1, A))
    assert state.term is None
    (verdict,) = state.head_read(head(A, 1), A, Source.OWN_GET)
    assert isinstance(verdict, Accepted)
    assert state.term == Term(1, A)


def test_an_unlisted_orchestrator_moves_nothing() -> None:
    state = authority()
    verdict = state.offered(desired(ROGUE, 1, 5), ROGUE)
    assert isinstance(verdict, Ignored)
    assert verdict.code == "unlisted_orchestrator"
    (second,) = state.head_read(head(ROGUE, 9), ROGUE, Source.OWN_GET)
    assert isinstance(second, Ignored)
    assert state.term is None
    assert state.unconfirmed == ()


def test_who_is_listed_is_read_when_somebody_speaks() -> None:
    """A document that comes in force takes the word from one and gives it to another, within a term and for what waits."""
    listed = [A]
    state = Authority(network_id=NETWORK, pnode_id=ME, model="m", orchestrators=lambda: listed)
    state.head_read(head(A, 3), A, Source.ORCHESTRATOR)
    assert isinstance(state.offered(desired(A, 3, 7), A), Accepted)
    assert isinstance(state.offered(desired(A, 4, 9), A), Unconfirmed)
    listed[:] = [B]
    assert [type(verdict) for verdict in (state.offered(desired(A, 3, 8), A), state.offered(desired(B, 4, 1), B))] == [
        Ignored,
        Unconfirmed,
    ]
    verdicts = state.head_read(head(B, 4), B, Source.ORCHESTRATOR)
    assert [verdict.desired.holder for verdict in verdicts if isinstance(verdict, Accepted)] == [B]
    assert [verdict.code for verdict in verdicts if isinstance(verdict, Ignored)] == ["unlisted_orchestrator"]


def test_a_huge_claimed_epoch_is_not_stored() -> None:
    state = authority()
    state.head_read(head(A, 3), A, Source.OWN_GET)
    assert isinstance(state.offered(desired(B, 2**63, 1), B), Unconfirmed)
    state.head_read(head(A, 3, 2), A, Source.OWN_GET)
    assert state.term == Term(3, A)
    assert isinstance(state.offered(desired(A, 3, 7), A), Accepted)


def test_an_orchestrators_word_confirms_only_where_it_is_alone() -> None:
    (verdict,) = authority().head_read(head(A, 1), A, Source.ORCHESTRATOR)
    assert isinstance(verdict, Ignored)
    alone = authority(A)
    alone.offered(desired(A, 1, 5), A)
    assert isinstance(alone.head_read(head(A, 1), A, Source.ORCHESTRATOR)[0], Accepted)


def test_equal_epoch_with_another_holder_is_refused() -> None:
    state = authority()
    state.head_read(head(A, 4), A, Source.OWN_GET)
    verdict = state.offered(desired(B, 4, 99), B)
    assert isinstance(verdict, Ignored)
    assert verdict.code == "second_holder"
    assert isinstance(state.head_read(head(B, 4, 9), B, Source.OWN_GET)[0], Ignored)
    assert state.term == Term(4, A)


def test_lower_epochs_and_older_sequences_are_stale_never_a_step_back() -> None:
    state = authority()
    state.head_read(head(B, 5), B, Source.OWN_GET)
    newest = desired(B, 5, 20)
    assert isinstance(state.offered(newest, B), Accepted)
    state.applied(newest)
    for old in (desired(A, 4, 30), desired(B, 5, 20), desired(B, 5, 19)):
        assert isinstance(state.offered(old, NodeId(old.holder)), Ignored)
    assert isinstance(state.head_read(head(A, 4, 50), A, Source.OWN_GET)[0], Ignored)
    assert state.term == Term(5, B)


def test_in_a_later_term_a_lower_sequence_is_newer_for_plans_and_for_heads() -> None:
    """A store that went back lost writes that this PNode heard of, and no orchestrator: the next term begins with fewer, and its plan was obeyed by nobody."""
    state = authority()
    state.head_read(head(A, 1, 152), A, Source.OWN_GET)
    state.applied(desired(A, 1, 151))
    state.head_read(head(B, 2, 140), B, Source.OWN_GET)
    assert state.head == head(B, 2, 140)
    newest = desired(B, 2, 141)
    assert isinstance(state.offered(newest, B), Accepted)
    state.applied(newest)
    assert isinstance(state.offered(desired(B, 2, 140), B), Ignored)


def test_a_signature_in_anothers_name_is_refused() -> None:
    state = authority()
    state.head_read(head(A, 1), A, Source.OWN_GET)
    verdict = state.offered(desired(A, 1, 5), B)
    assert isinstance(verdict, Ignored)
    assert verdict.code == "not_the_holder"


@pytest.mark.parametrize(
    "of_another", [{"pnode_id": B}, {"network_id": "8" * 40}, {"model": "other"}], ids=["pnode", "network", "model"]
)
def test_what_is_addressed_to_another_is_not_obeyed(of_another: dict[str, str]) -> None:
    """Of the holder, in its term, newer than all before: but not said to this PNode about this model."""
    state = authority()
    state.head_read(head(A, 1), A, Source.OWN_GET)
    said = desired(A, 1, 5)
    assert isinstance(state.offered(said, A), Accepted)
    for name, value in of_another.items():
        setattr(said, name, value)
    verdict = state.offered(said, A)
    assert isinstance(verdict, Ignored)
    assert verdict.code == "not_for_me"
    assert isinstance(state.offered(desired(A, 2, 5), A), Unconfirmed)
    said.epoch = 9
    state.offered(said, A)
    assert state.unconfirmed == (Term(2, A),), "nor does anything wait for a head on its account"


@pytest.mark.parametrize(("epoch", "sequence", "waits"), [(2, 9, True), (3, 4, True), (3, 5, False), (4, 1, False)])
def test_a_new_replica_begins_with_no_head_that_is_older_than_its_plan(epoch: int, sequence: int, waits: bool) -> None:
    """In a store that went back an earlier term has higher sequences: its manifest may not say yet what was taken back."""
    policy = verify_chain([create_document(NodeKey.generate(), name="n", now_wall=1.0, orchestrator_ids=[A], audits="drawn")])
    hosted, found = Hosted(model_pb2.DesiredAssignment(), "m"), False
    try:
        hosted.await_head(head(A, epoch, sequence), desired(A, 3, 5), policy)
    except Unavailable:
        found = True
    assert found is waits
