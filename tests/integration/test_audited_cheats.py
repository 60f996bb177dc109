"""Goal: in networks each way to cheat is found for what it is, an auditor that passes its friend's wrong work is found with it, and nobody else is blamed.

Several cheats are in one network, each with VNodes of its own, beside honest PNodes. Newcomers are in probation, so that each of their intervals is audited, by
the orchestrator's verifier. What cheats send is seen where somebody reads it, so these are in a chain; those that teach themselves wrongly have VNodes beside
one another, none of which goes back with the others.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import pytest
from network_rig import Rig, running_network
from test_audited_network import states_told

from dcnr.testing import LocalPNode
from dcnr.v1 import orchestrator_pb2
from examples.byzantine.behaviours import BEHAVIOURS
from examples.byzantine.process import COLLUDING
from trust.folding import AUDITS_DRAWN
from trust.standing import Terms

QUARANTINED = orchestrator_pb2.NODE_STATE_QUARANTINED
HONEST = tuple(LocalPNode(f"p{number}", 1.0, 360, ("--cpu-percent", "20")) for number in range(1, 3))
SENDING = ("zeros", "noise")
"""Wrong in what leaves them."""
LEARNING = tuple(one.name for one in BEHAVIOURS if one.name not in (*SENDING, "tenfold"))
"""Wrong in what they teach themselves; the one left out is in `test_audited_network`."""
LEARNED = ("loss", "output", "weights", "slots")
"""Where that may show first."""


def cheat(behaviour: str, *, cpu_percent: int = 40, memory_mb: int = 360) -> LocalPNode:
    """A PNode that lends more than the honest ones, so that plans choose it first; it comes from the nursery, as they do."""
    flags = ("--cpu-percent", str(cpu_percent), "--behaviour", behaviour)
    return LocalPNode(behaviour.partition("@")[0].replace("_", "-"), 1.0, memory_mb, flags)


@dataclass(frozen=True, slots=True)
class Told:
    """Something that the orchestrator has in its history."""

    subject: str
    reason: str
    facts: dict[str, str]


def history(rig: Rig, kind: str) -> list[Told]:
    """Everything of that kind, the oldest first."""
    [orchestrator] = rig.network.orchestrators
    with contextlib.closing(sqlite3.connect(f"file:{orchestrator.home / 'history.db'}?mode=ro", uri=True)) as database:
        rows = database.execute("SELECT subject, reason, facts FROM events WHERE kind = ? ORDER BY sequence", (kind,))
        return [Told(subject, reason, json.loads(facts)) for subject, reason, facts in rows]


def failures(rig: Rig) -> dict[str, Told]:
    """Intervals that failed, by evidence; writing the history takes a moment."""
    return {one.facts["evidence"]: one for one in history(rig, "interval_failed")}


def quarantined(rig: Rig) -> dict[str, orchestrator_pb2.NodeView]:
    """Who is in quarantine, by id."""
    return {one.node_id: one for one in rig.ask(lambda client: client.nodes()) if one.state == QUARANTINED}


def tasks(rig: Rig, auditor: str) -> set[str]:
    """What a PNode was drawn to audit: the beginnings of intervals' names."""
    return {one.facts["interval"] for one in history(rig, "audit_asked") if one.subject == auditor}


@pytest.mark.parametrize(
    ("behaviours", "is_chain"),
    [(SENDING, True), (LEARNING[::2], False), (LEARNING[1::2], False)],
    ids=["sent", "learned", "learned_too"],
)
def test_each_way_to_cheat_is_found_for_what_it_is_and_nobody_else_is_blamed(behaviours: tuple[str, ...], is_chain: bool) -> None:
    vnodes = [f"v{number}" for number in range(len(behaviours) + 2)]
    with running_network(
        (*HONEST, *map(cheat, behaviours)),
        num_orchestrators=1,
        vnodes=vnodes,
        audits=AUDITS_DRAWN,
        trusted=[one.name for one in HONEST],
    ) as rig:
        cheats = {process.node_id: name for process, name in zip(rig.network.pnodes[len(HONEST) :], behaviours, strict=True)}
        rig.submit("audited", passes=8, checkpoint_s=0.5, checkpoint_steps=16, is_chain=is_chain)
        rig.until(lambda: quarantined(rig).keys() >= cheats.keys(), f"all of {behaviours} are quarantined", 240.0, pause_s=1.0)
        assert quarantined(rig).keys() == cheats.keys(), "nobody else is blamed"
        rig.until(lambda: {one.facts["pnode"] for one in failures(rig).values()} >= cheats.keys(), "the history has it all", 30.0)
        failed = failures(rig)
        assert {one.facts["pnode"] for one in failed.values()} == cheats.keys()
        for node_id, shown in quarantined(rig).items():
            part = failed[shown.evidence].reason.removesuffix(" is wrong")
            assert failed[shown.evidence].facts["pnode"] == node_id, "the evidence that everybody is shown is about this one"
            assert part in (["output"] if cheats[node_id] in SENDING else LEARNED), f"{cheats[node_id]}: {part}"


@pytest.mark.long
def test_an_auditor_that_passes_its_friends_wrong_work_is_found_with_it(tmp_path: Path) -> None:
    """Nobody is trusted. Both work honestly until one may audit; then the other cheats, and the first is drawn to audit it, sees it, and tells nothing.

    Where it was busy and the verifier had to look in its place, the cheat is back within seconds, and cheats again.
    """
    begins = tmp_path / "now"
    friend = cheat(f"skipped@{begins}", cpu_percent=20)
    with running_network(
        (friend, cheat(COLLUDING, cpu_percent=80, memory_mb=720)), num_orchestrators=1, vnodes=("a", "b", "c"), audits=AUDITS_DRAWN, terms=Terms(4.0, 1),
        orchestrator_module="tests.integration.repeating_orchestrator",
    ) as rig:  # fmt: skip
        liar, colluder = (process.node_id for process in rig.network.pnodes)
        rig.submit("audited", passes=60, checkpoint_s=4.0, checkpoint_steps=16, batches_per_s=5.0)
        rig.until(lambda: bool(tasks(rig, colluder)), "one has passed ten audits and is drawn to audit", 240.0, pause_s=0.5)
        begins.touch()
        rig.until(lambda: bool(history(rig, "auditor_overturned")), "the verifier has repeated what it passed", 240.0, pause_s=0.5)
        [found] = history(rig, "auditor_overturned")
        assert (found.subject, found.reason) == (colluder, "it passed what is wrong")
        rig.until(lambda: "quarantined" in states_told(rig, colluder), "it is quarantined for it", 30.0)
        rig.until(
            lambda: found.facts["interval"] in {one.facts["interval"][:16] for one in failures(rig).values()},
            "the history has it",
            30.0,
        )
        assert {one.facts["pnode"] for one in failures(rig).values()} == {liar}, "whoever audits wrongly has learned rightly"
        assert found.facts["interval"] in tasks(rig, colluder), "it was drawn for what is wrong"
        passed = {one.facts["interval"][:16] for one in history(rig, "interval_passed")}
        assert found.facts["interval"] not in passed, "and what it passed was never taken for right"
