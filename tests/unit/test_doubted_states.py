"""Goal: what doubts take back costs nobody but its maker: nothing of others is looked at without end, nobody who has left loses work for it, and who made the
state in which last bits grow is looked at also where that came with the same checkpoint.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
from audited_rig import NODES, judged, name_of, piece
from audited_rig import drawn as drawing
from test_late_draw import HERE, Network

from dcnr.intervals import IntervalSet
from orchestrator.audit_doubters import HELD_S, Doubters
from orchestrator.audit_events import Decision, People, Report, Word
from orchestrator.audited_late import opened_late
from orchestrator.audits import AuditDesk
from orchestrator.verdicts import news
from trust.draw import Secret
from trust.going_back import Cause
from trust.late_draw import SPARED_KEPT_S
from trust.ledger import Interval, Ledger, Named, Verdict
from trust.separation import Separation

DOUBTED = frozenset({name_of("a-3")})


def rounds(network: Network, num: int, unclear: frozenset[str] = DOUBTED, *, cheats: Sequence[str] = ()) -> None:
    for _ in range(num):
        network.round("", frozenset(map(name_of, cheats)), unclear=unclear)


def test_what_was_named_behind_a_doubt_is_not_drawn_for_it() -> None:
    """A VNode before it goes on for days, and would be audited whole: by the verifier too."""
    network = Network("a-3")
    network.ahead = {"a": ("b",)}
    rounds(network, 12)
    assert network.verdict("b-1") is Verdict.PASSED, "it may have been the cause"
    network.job.named(judged("b2", "b1", piece("b-2", 4, 8, "z"), held=[(0, 8)]))
    network.tells()
    rounds(network, 6)
    assert network.verdict("b-2") is Verdict.SPARED
    assert name_of("b-2") not in network.told
    assert network.desk.doubters.taken_back
    network.now_s += SPARED_KEPT_S
    rounds(network, 1)
    assert not network.desk.doubters.taken_back, "nothing is looked for any more whose evidence is gone"


def test_nobody_who_has_left_is_asked_for_what_was_spared_before_a_doubt() -> None:
    """It cannot show anything, and all that stands on its work would go back."""
    network = Network("a-3")
    del network.here[NODES["x"]]
    rounds(network, 12)
    assert [network.verdict(f"a-{number}") for number in (1, 2, 3)] == [Verdict.SPARED, Verdict.SPARED, Verdict.UNVERIFIABLE]
    assert network.job.working("a")[0] == name_of("a2")


def test_where_what_is_learned_anew_is_doubted_again_those_who_left_are_asked_too() -> None:
    """Whoever made such a state and left would have the VNode stand still for ever."""
    network = Network("a-3")
    del network.here[NODES["x"]]
    rounds(network, 12)
    again = judged("a4", "a2", piece("a-4", 8, 12, "y", "a.1"), held=[(0, 12)], replica="a.8", node="y")
    network.job.primaries["a"] = "a.8"
    assert network.job.named(again, draw=drawing("a-4")).manifest is not None
    network.tells()
    rounds(network, 12, frozenset({name_of("a-4")}))
    assert network.verdict("a-4") is Verdict.UNVERIFIABLE
    assert [network.verdict(f"a-{number}") for number in (1, 2)] == [Verdict.SPARED, Verdict.UNVERIFIABLE], "one after another"
    assert network.job.working("a")[0] == name_of("a1")


@pytest.mark.parametrize("word", [Word.DOUBT, Word.PASS])
def test_a_successor_knows_what_doubts_took_back(word: Word) -> None:
    """Whoever made such a state and left would have it counted anew with each takeover."""
    network = Network("a-3")
    del network.here[NODES["x"]]
    rounds(network, 12)
    network.desk = AuditDesk(Secret(b"k" * 32), Separation(single_host=True), map("{:032x}".format, itertools.count()).__next__)
    network.tells()
    words = [Report("t" * 32, NODES[name], name_of("a-3"), word) for name in ("y", "z")]
    network.desk.recalled(words, [network.now_s] * 2)
    again = judged("a4", "a2", piece("a-4", 8, 12, "y", "a.1"), held=[(0, 12)], replica="a.8", node="y")
    network.job.primaries["a"] = "a.8"
    assert network.job.named(again, draw=drawing("a-4")).manifest is not None
    network.tells()
    rounds(network, 12, frozenset({name_of("a-4")}))
    assert network.verdict("a-4") is Verdict.UNVERIFIABLE
    assert network.verdict("a-2") is (Verdict.UNVERIFIABLE if word is Word.DOUBT else Verdict.SPARED)


def with_one_checkpoint_of_two() -> Network:
    """x leads, and its a-4 is spared; y has learned a-5 from an anchor of it, and is drawn."""
    network = Network()
    both = piece("a-4", 12, 16), piece("a-5", 16, 20, "y", "a.1")
    assert network.job.named(judged("a4", "a3", *both, held=[(0, 20)]), draw=drawing("a-5")).manifest is not None
    network.tells()
    return network


def test_who_leads_and_lays_its_anchors_on_kinks_is_found_though_its_work_came_with_what_is_doubted() -> None:
    network = with_one_checkpoint_of_two()
    rounds(network, 12, frozenset({name_of("a-5")}), cheats=["a-4"])
    assert network.told == {name_of("a-5"): "doubt", name_of("a-4"): "fault"}, "nothing before it is looked at"
    assert (network.verdict("a-4"), network.verdict("a-5")) == (Verdict.FAILED, Verdict.DROPPED)


def test_where_nobody_has_made_it_so_what_is_doubted_goes_back_as_soon_as_that_is_known() -> None:
    network = with_one_checkpoint_of_two()
    rounds(network, 12, frozenset({name_of("a-5")}))
    assert network.told[name_of("a-4")] == "pass"
    assert network.verdict("a-5") is Verdict.UNVERIFIABLE
    assert network.verdict("a-4") is Verdict.DROPPED
    assert network.job.working("a")[0] == name_of("a3")
    assert not network.desk.doubters.held


@pytest.mark.parametrize(("silent", "within_s"), [("", 300), (NODES["x"], HELD_S + 300), (name_of("a-4"), HELD_S + 300)])
def test_what_is_doubted_goes_back_whatever_others_show(silent: str, within_s: float) -> None:
    """Who leads is not here, or shows nothing, or nobody audits it."""
    network = with_one_checkpoint_of_two()
    network.silent.add(silent)
    if not silent:
        del network.here[NODES["x"]]
    until_s = network.now_s + within_s
    while network.verdict("a-5") is Verdict.OPEN and network.now_s < until_s:
        rounds(network, 1, frozenset({name_of("a-5")}))
    assert network.verdict("a-5") in (Verdict.UNVERIFIABLE, Verdict.DROPPED)
    assert name_of("a4") not in network.job.line("a")


def test_of_a_failure_and_what_takes_it_back_the_failure_comes_first() -> None:
    """What went back is looked at no more: its maker would never be blamed."""
    network = Network("a-2", "a-3")
    network.job.named(judged("a4", "a3", piece("a-4", 12, 16, "z"), held=[(0, 16)]), draw=drawing("a-4"))
    back = Decision(name_of("a-3"), Verdict.UNVERIFIABLE, "", Cause.UNVERIFIABLE)
    failed = Decision(name_of("a-4"), Verdict.FAILED, "", Cause.FAULT, "e" * 64)
    assert news(network.job.chain(), [back, failed]) == [failed]
    network.job.named(decisions=[back, failed])
    network.job.named(decisions=[back, failed])
    assert (network.verdict("a-3"), network.verdict("a-4")) == (Verdict.UNVERIFIABLE, Verdict.FAILED)


def test_those_who_left_are_asked_too_where_something_was_spared_before_what_is_doubted_again() -> None:
    """What went on from the state that somebody broke is seldom drawn at once: each time what was spared there was taken back as if for the first time."""
    network = Network("a-3")
    del network.here[NODES["x"]]
    rounds(network, 12)
    network.job.primaries["a"] = "a.8"
    spared = judged("a4", "a2", piece("a-4", 8, 12, "y", "a.1"), held=[(0, 12)], replica="a.8", node="y")
    again = judged("a5", "a4", piece("a-5", 12, 16, "y", "a.1"), held=[(0, 16)], replica="a.8", node="y")
    for one, drawn in ((spared, ()), (again, ("a-5",))):
        assert network.job.named(one, draw=drawing(*drawn)).manifest is not None
    network.tells()
    rounds(network, 20, frozenset({name_of("a-4"), name_of("a-5")}))
    assert [network.verdict(f"a-{number}") for number in (5, 4)] == [Verdict.UNVERIFIABLE, Verdict.UNVERIFIABLE]
    assert [network.verdict(f"a-{number}") for number in (1, 2)] == [Verdict.SPARED, Verdict.UNVERIFIABLE], "one after another"
    assert network.job.working("a")[0] == name_of("a1")


def test_intervals_that_nobody_is_to_judge_hide_no_newer_one_from_what_is_drawn_for_a_doubt() -> None:
    """Where the store loses a checkpoint, what is open in it is judged by nobody, and keeps its number: as many of the newest were taken for later ones."""
    doubted, batches = name_of("a-9"), IntervalSet.span(8, 12)
    one = Interval(doubted, 9, "a", "a.0", NODES["x"], batches, Verdict.OPEN)
    ledger = Ledger({"a": (Named(name_of("a0"), ()), Named(name_of("a1"), (doubted,)))}, {doubted: one})
    doubters = Doubters()
    doubters.held[doubted] = one, -math.inf
    doubters.look(ledger, {}, (), 1.0)
    assert doubters.taken_back["a"].num_known == 10


def test_nothing_is_drawn_beside_what_is_doubted_while_a_job_settles() -> None:
    ledger = with_one_checkpoint_of_two().job.chain().ledger
    for has_time in (True, False):
        people = People(HERE, recent=frozenset(ledger.intervals), has_time=has_time)
        assert [one.interval for one in opened_late(ledger, people, [name_of("a-5")])] == [name_of("a-4")] * has_time


def test_what_is_doubted_waits_for_nothing_while_a_job_settles() -> None:
    """It settles for ten minutes, and what is doubted waited longer: the job was completed with it, where who came with it showed nothing for so long."""
    network = with_one_checkpoint_of_two()
    network.silent.add(NODES["x"])
    rounds(network, 6, frozenset({name_of("a-5")}))
    assert network.verdict("a-5") is Verdict.OPEN, "it waits for what came with it"
    network.has_time = False
    rounds(network, 2, frozenset({name_of("a-5")}))
    assert network.verdict("a-5") is Verdict.UNVERIFIABLE
