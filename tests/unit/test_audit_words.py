"""Goal: a word on an audit counts only from the worker of the PNode whose stream it is, and within its bounds; standings follow verified evidence alone."""

from __future__ import annotations

import math

import pytest

from dcnr.errors import Corrupt, Refused, RemoteFault, Stale
from dcnr.limits import DELEGATION_LIFETIME_S
from dcnr.v1 import identity_pb2, model_pb2, orchestrator_pb2
from orchestrator.audit_events import Bundle, Doubt, Known, Report, Word
from orchestrator.audit_words import bundle_of, open_report
from orchestrator.equivocations import Equivocations
from orchestrator.inventory import Inventory
from orchestrator.mailbox import Mailbox
from orchestrator.rehab import Rehab
from orchestrator.silence import Judgement
from orchestrator.standings import Standings, judgement_of
from pnode.auditing import MAX_REASON
from trust.auditors import Candidate
from trust.delegation import make_delegation
from trust.envelope import seal
from trust.evidence import MAX_SOURCES
from trust.folding import Told
from trust.identity import NodeKey
from trust.ledger import Verdict
from trust.overturned import Truth
from trust.separation import Party
from trust.standing import SHADOW_UNITS, State

NOW, NETWORK = 1_700_000_000.0, "5" * 40
NODE, WORKER, STRANGER = (NodeKey.generate() for _ in range(3))
TASK, INTERVAL, RECORD = "a" * 32, "b" * 64, "c" * 64


def delegation(node: NodeKey = NODE, worker: NodeKey = WORKER) -> identity_pb2.Envelope:
    return make_delegation(node, NETWORK, worker.public_der, 3, ["127.0.0.1:1"], NOW)


def report(signer: NodeKey = WORKER, **changes: object) -> identity_pb2.Envelope:
    facts: dict[str, object] = {
        "network_id": NETWORK, "model": "m", "task_id": TASK, "interval": INTERVAL, "pnode_id": NODE.node_id,
        "finding": model_pb2.AUDIT_FINDING_PASS, "residual": 0.5, "delegation": delegation(), **changes,
    }  # fmt: skip
    return seal(identity_pb2.DOMAIN_AUDIT_REPORT, model_pb2.AuditReport(**facts), signer)  # type: ignore[arg-type]


def test_a_report_of_the_delegated_worker_is_read() -> None:
    model, found = open_report(report(), NETWORK, NODE.node_id, NOW)
    assert (model, found.task_id, found.interval, found.word, found.auditor) == ("m", TASK, INTERVAL, Word.PASS, NODE.node_id)
    assert (found.bundle, open_report(report(bundle_digest=RECORD), NETWORK, NODE.node_id, NOW)[1].bundle) == ("", RECORD)


@pytest.mark.parametrize(
    "envelope",
    [
        report(STRANGER),
        report(NODE),
        report(delegation=delegation(node=STRANGER)),
        report(delegation=delegation(worker=STRANGER)),
        report(pnode_id=STRANGER.node_id),
        report(network_id="6" * 40),
        report(task_id="short"),
        report(task_id="x" * 32),
        report(interval="x"),
        report(bundle_digest="x"),
        report(residual=math.nan),
        report(residual=-1.0),
        report(finding=model_pb2.AUDIT_FINDING_UNSPECIFIED),
        report(finding=model_pb2.AUDIT_FINDING_FAULT),
        report(reason="x" * 501),
        report(reason="x" * 40_000),
        seal(identity_pb2.DOMAIN_AUDIT_TASK, model_pb2.AuditReport(network_id=NETWORK), WORKER),
    ],
)
def test_any_other_report_is_refused_with_a_typed_error(envelope: identity_pb2.Envelope) -> None:
    with pytest.raises((Corrupt, Refused)):
        open_report(envelope, NETWORK, NODE.node_id, NOW)


def test_a_report_that_names_as_many_senders_as_evidence_may_show_is_read() -> None:
    """Else whoever shows more would be judged by nobody but who leaves them out."""
    vnode = "v" * 63
    sources = [
        model_pb2.InputSource(vnode=vnode, replica=f"{vnode}.{10**14 + at}", pnode_id=NODE.node_id, incarnation=2**64 - 1)
        for at in range(MAX_SOURCES)
    ]
    facts = {"record_digest": RECORD, "bundle_digest": RECORD, "reason": "x" * MAX_REASON, "part": "input_gradient"}
    _, found = open_report(report(sources=sources, finding=model_pb2.AUDIT_FINDING_FAULT, **facts), NETWORK, NODE.node_id, NOW)
    assert len(found.senders) == MAX_SOURCES


def test_a_report_from_another_session_or_under_an_old_delegation_is_refused() -> None:
    with pytest.raises(Refused):
        open_report(report(), NETWORK, STRANGER.node_id, NOW)
    with pytest.raises(Stale):
        open_report(report(), NETWORK, NODE.node_id, NOW + 2 * DELEGATION_LIFETIME_S)


def test_answers_to_challenges_are_bounded() -> None:
    good = model_pb2.Evidence(interval=INTERVAL, digest=RECORD, size_bytes=10)
    found = bundle_of(good)
    assert found is not None
    assert (found.digest, found.size_bytes) == (RECORD, 10)
    assert bundle_of(model_pb2.Evidence(interval=INTERVAL, reason="gone")) is None
    for changes in ({"interval": "x"}, {"digest": "x"}, {"size_bytes": 0}, {"size_bytes": 1 << 50}, {"reason": "x" * 501}):
        bad = model_pb2.Evidence()
        bad.CopyFrom(good)
        for name, value in changes.items():
            setattr(bad, name, value)
        with pytest.raises(Corrupt):
            bundle_of(bad)


# ---- standings ------------------------------------------------------------------------------------------------------------------


def told(verdict: Verdict, interval: str = INTERVAL, evidence: str = "") -> Told:
    return Told(NODE.node_id, interval, verdict, NOW, NOW, evidence)


def test_a_failure_moves_nobody_before_its_evidence_is_verified_here() -> None:
    standings = Standings()
    standings.chain("m", (told(Verdict.FAILED, evidence=RECORD),))
    assert standings.of(NODE.node_id, NOW).state is State.PROBATION
    assert [one.evidence for _, one in standings.unverified()] == [RECORD]
    standings.verified((RECORD, NODE.node_id, INTERVAL))
    found = standings.of(NODE.node_id, NOW)
    assert (found.state, found.evidence) == (State.QUARANTINED, RECORD)
    assert standings.unverified() == []
    judged = judgement_of(found)
    assert (judged.state, judged.evidence) == (orchestrator_pb2.NODE_STATE_QUARANTINED, RECORD)


def test_a_chain_that_grows_or_is_another_gives_what_it_gives_at_once() -> None:
    nodes = [f"{number:040x}" for number in range(3)]
    chain = tuple(
        Told(nodes[number % 3], f"{number:064x}", Verdict.FAILED if number == 31 else Verdict.PASSED, NOW + number, NOW, RECORD)
        for number in range(60)
    )
    grown, whole = Standings(), Standings()
    for standings in (grown, whole):
        standings.verified((RECORD, nodes[1], f"{31:064x}"))
        standings.lied(nodes[0], "9" * 64, "it lied", NOW + 100.0)
    for length in (1, 2, 20, 40, 60):
        grown.chain("m", chain[:length])
    whole.chain("m", chain)
    for now_s in (NOW + 100.0, NOW + 5000.0):
        assert [grown.of(name, now_s) for name in nodes] == [whole.of(name, now_s) for name in nodes]
    grown.chain("m", chain[30:40])
    whole = Standings()
    whole.verified((RECORD, nodes[1], f"{31:064x}"))
    whole.lied(nodes[0], "9" * 64, "it lied", NOW + 100.0)
    whole.chain("m", chain[30:40])
    assert [grown.of(name, NOW + 100.0) for name in nodes] == [whole.of(name, NOW + 100.0) for name in nodes]


def test_a_true_record_convicts_whom_it_is_about_of_what_it_is_about_and_nobody_else() -> None:
    """Whoever holds the head can name it beside anybody's interval."""
    theirs, other = "1" * 64, Told(STRANGER.node_id, "1" * 64, Verdict.FAILED, NOW, NOW, RECORD)
    mine, twice = told(Verdict.FAILED, evidence=RECORD), told(Verdict.FAILED, "2" * 64, RECORD)
    for first in (True, False):
        standings = Standings()
        if first:
            standings.chain("m", (mine, other, twice))
        standings.verified((RECORD, NODE.node_id, INTERVAL))
        standings.chain("m", (mine, other, twice))
        assert standings.of(NODE.node_id, NOW).num_quarantines == 1
        assert standings.of(STRANGER.node_id, NOW).state is State.PROBATION
        assert [one for _, one in standings.unverified()] == [other, twice]
        assert not standings.has_seen_wrong(other.proof)
    standings.refuted((RECORD, STRANGER.node_id, theirs))
    assert [one for _, one in standings.unverified()] == [twice], "what does not hold for one may hold for another"


def test_a_fault_dated_in_the_future_is_one_offence_from_when_it_was_heard() -> None:
    """Else every further word on the PNode would begin its quarantine anew."""
    clock, far_s = [NOW], NOW + 1e10
    standings = Standings(now=lambda: clock[0])
    fault = Told(NODE.node_id, INTERVAL, Verdict.FAILED, far_s, far_s, RECORD)
    standings.chain("m", (fault,))
    standings.verified(fault.proof)
    standings.lied(STRANGER.node_id, RECORD, "it passed what is wrong", far_s)
    for _ in range(2):
        for node in (NODE, STRANGER):
            assert (standings.of(node.node_id, NOW + 899).state, standings.of(node.node_id, NOW + 901).state) == (
                State.QUARANTINED, State.REHAB,
            )  # fmt: skip
        clock[0] += 1000.0
        standings.chain("m", (fault, told(Verdict.OPEN, "2" * 64)))
        standings.doubted("m", [Doubt(INTERVAL, STRANGER.node_id, NODE.node_id, NOW)])
    for _ in range(SHADOW_UNITS):
        clock[0] += 1.0
        standings.shadowed(NODE.node_id, "", clock[0], is_right=True)
    assert standings.of(NODE.node_id, clock[0]).state is State.PROBATION


def test_refuted_evidence_is_looked_at_once_and_moves_nobody() -> None:
    standings = Standings()
    standings.chain("m", (told(Verdict.FAILED, evidence=RECORD),))
    standings.refuted((RECORD, NODE.node_id, INTERVAL))
    assert standings.unverified() == []
    assert standings.of(NODE.node_id, NOW).state is State.PROBATION


def test_ten_passes_make_it_active_and_a_doubt_suspect_until_it_is_over() -> None:
    standings = Standings()
    standings.chain("m", tuple(told(Verdict.PASSED, f"{number:064x}") for number in range(11)))
    assert standings.of(NODE.node_id, NOW).state is State.ACTIVE
    standings.doubted("m", [Doubt(INTERVAL, NODE.node_id, STRANGER.node_id, NOW)])
    assert standings.of(NODE.node_id, NOW).state is State.SUSPECT
    standings.doubted("m", ())
    assert standings.of(NODE.node_id, NOW).state is State.ACTIVE


def test_an_auditor_that_lied_is_quarantined_and_one_that_signed_twice_is_banned() -> None:
    standings = Standings()
    standings.lied(STRANGER.node_id, RECORD, "it passed what is wrong", NOW)
    assert standings.of(STRANGER.node_id, NOW).state is State.QUARANTINED
    assert standings.equivocated(NODE.node_id, RECORD, NOW)
    assert not standings.equivocated(NODE.node_id, RECORD, NOW), "told once"
    assert standings.of(NODE.node_id, NOW + 1e9).state is State.BANNED


def test_the_inventory_says_what_audits_say_of_whoever_is_here() -> None:
    inventory, node_id = Inventory(), NODE.node_id
    probation = Judgement(orchestrator_pb2.NODE_STATE_PROBATION, "young")
    bad = Judgement(orchestrator_pb2.NODE_STATE_QUARANTINED, "failed", RECORD)
    inventory.stand({}, probation)
    inventory.attached(node_id, 0.0)
    inventory.beat(node_id, 0.0, orchestrator_pb2.Beat(worker_alive=True), 2.0)
    inventory.tick(0.0)
    assert inventory.judgement(node_id) == probation
    inventory.stand({node_id: bad}, probation)
    [change] = inventory.tick(0.1)
    assert change.after == orchestrator_pb2.NODE_STATE_QUARANTINED
    assert inventory.judgement(node_id) == bad
    [offer] = inventory.offers(0.1)
    assert offer.state == orchestrator_pb2.NODE_STATE_QUARANTINED
    inventory.detached(node_id, 0.2, "gone")
    for step in range(1, 6):
        inventory.tick(float(step))
    assert inventory.judgement(node_id).state == orchestrator_pb2.NODE_STATE_OFFLINE
    [offer] = inventory.offers(5.0)
    assert offer.state == orchestrator_pb2.NODE_STATE_QUARANTINED, "who goes away is not waited for"
    assert not offer.may_return
    inventory.check()


def test_twenty_right_units_lead_from_rehab_to_probation_and_a_wrong_one_back_to_quarantine() -> None:
    standings, rehab, ids = Standings(), Rehab(lambda: f"{next(numbers):032x}"), NODE.node_id
    numbers = iter(range(1000))
    standings.lied(ids, RECORD, "it passed what is wrong", NOW)
    now_s = NOW + 1000.0
    assert standings.of(ids, now_s).state is State.REHAB
    candidate = Candidate(Party(ids), State.REHAB, True)
    for number in range(SHADOW_UNITS):
        truth = Truth.WRONG if number % 3 == 0 else Truth.RIGHT
        assert rehab.tick([candidate], now_s) == [], "there is nothing to be done"
        rehab.known(Known(f"{number:064x}", "a", ids, Bundle(RECORD, 1), truth))
        assert rehab.tick([candidate], now_s) == [], "not its own interval"
        rehab.known(Known(f"{number:064x}", "a", STRANGER.node_id, Bundle(RECORD, 1), truth))
        [task] = rehab.tick([candidate], now_s)
        assert rehab.tick([candidate], now_s) == [], "one at a time"
        word = Word.FAULT if truth is Truth.WRONG else Word.PASS
        assert rehab.reported(Report(task.task_id, STRANGER.node_id, task.interval, word)) is None, "not its task"
        shadow = rehab.reported(Report(task.task_id, ids, task.interval, word))
        assert shadow is not None
        assert shadow.is_right
        standings.shadowed(ids, RECORD, now_s := now_s + 1.0, is_right=True)
    assert standings.of(ids, now_s).state is State.PROBATION
    standings.lied(ids, "d" * 64, "again", now_s + 10.0)
    later_s = now_s + 4000.0
    assert standings.of(ids, later_s).state is State.REHAB
    rehab.known(Known("f" * 64, "a", STRANGER.node_id, Bundle(RECORD, 1), Truth.WRONG))
    [task] = rehab.tick([candidate], later_s)
    shadow = rehab.reported(Report(task.task_id, ids, task.interval, Word.PASS))
    assert shadow is not None
    assert shadow.is_right is False
    standings.shadowed(ids, RECORD, later_s, is_right=False)
    assert standings.of(ids, later_s).state is State.QUARANTINED


# ---- equivocations, mail --------------------------------------------------------------------------------------------------------


def commit(state: str, sequence: int = 7) -> identity_pb2.Envelope:
    message = model_pb2.Commit(
        network_id=NETWORK, model="m", job_id="j", vnode="a", replica="a.0", incarnation=3, parent_digest="1" * 64, state_digest=state,
        batches=[1], losses=[0.5], sequence=sequence, delegation=delegation(),
    )  # fmt: skip
    return seal(identity_pb2.DOMAIN_COMMIT, message, WORKER)


def behind(vnode: str = "a", pnode_id: str = NODE.node_id, replica: str = "a.0") -> model_pb2.Checkpoint:
    """The checkpoint with which a commit is brought."""
    return model_pb2.Checkpoint(job_id="j", vnode=vnode, replica=replica, pnode_id=pnode_id)


def test_two_commits_of_one_number_are_found_and_nothing_else_is() -> None:
    known = Equivocations(NETWORK, "m")
    assert known.brought(behind(), commit("2" * 64)) is None
    assert known.brought(behind(), commit("2" * 64)) is None, "the same again"
    assert known.brought(behind(), commit("3" * 64, sequence=8)) is None
    assert known.brought(behind("b"), commit("3" * 64)) is None, "not about that VNode"
    assert known.brought(behind(pnode_id=STRANGER.node_id), commit("3" * 64)) is None, "not its own"
    assert known.brought(behind(replica="a.1"), commit("3" * 64)) is None, "not of that replica"
    found = known.brought(behind(), commit("3" * 64))
    assert found is not None
    proof, data = found
    assert proof.pnode_id == NODE.node_id
    assert model_pb2.FaultRecord.FromString(data).kind == model_pb2.FAULT_KIND_EQUIVOCATION


def test_mail_goes_to_the_newest_stream_and_a_slow_reader_gets_none() -> None:
    box, first, second = Mailbox(), list[object](), list[object]()
    message = orchestrator_pb2.OrchestratorMessage()
    assert not box.send("n", message)
    put_first, put_second = first.append, second.append
    box.opened("n", put_first)
    box.opened("n", put_second)
    assert box.send("n", message)
    box.closed("n", put_first)
    assert box.send("n", message)
    assert (len(first), len(second)) == (0, 2)

    def full(message: object) -> None:
        raise RemoteFault("it does not read", code="slow_reader")

    box.opened("n", full)
    assert not box.send("n", message)
    box.closed("n", full)
    assert not box.send("n", message)
