"""Goal: an owner reads why a machine does not work as it could: what an orchestrator holds against it, with the proof, and what waits for an audit; and
how others reach it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dcnr.cli.screens import pnode_screen
from dcnr.ids import NodeId
from dcnr.limits import MIB
from dcnr.settings import LimitSettings, PNodeSettings
from dcnr.v1 import local_pb2, membership_pb2, model_pb2, orchestrator_pb2
from pnode.lent import beyond
from pnode.probe import Machine
from pnode.reach import REACHED, UNREACHED, Look
from pnode.reaching import NOT_YET, ONE_MACHINE
from pnode.reasons import WorkerFacts, state_of, why
from pnode.telling import Condition

PROOF = "e" * 64


def lines(*contacts: local_pb2.Contact, reason: str = "") -> list[local_pb2.WhyLine]:
    hosted = [orchestrator_pb2.ReplicaReport(replica="a.1", state=orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE, reason=reason)]
    return why(
        draining=False, paused="", attached=1, known_orchestrators=1, membership_trouble="", worker=WorkerFacts(pid=1), hosted=hosted,
        upload_trouble="", capability=membership_pb2.Capability(), contacts=contacts,
    )  # fmt: skip


def contact(state: orchestrator_pb2.NodeState.ValueType, *, attached: bool = True) -> local_pb2.Contact:
    return local_pb2.Contact(node_id="c" * 40, attached=attached, state=state, state_reason="weights moved wrongly", evidence=PROOF)


def test_a_quarantine_is_told_with_its_reason_and_its_proof() -> None:
    found = lines(contact(orchestrator_pb2.NODE_STATE_QUARANTINED))
    assert (found[0].code, state_of(found)) == ("quarantined", "quarantined")
    assert "weights moved wrongly" in found[0].reason
    assert PROOF in found[0].reason


def test_rehab_is_told_and_what_nobody_says_any_more_is_not() -> None:
    assert lines(contact(orchestrator_pb2.NODE_STATE_REHAB))[0].code == "rehab"
    assert lines(contact(orchestrator_pb2.NODE_STATE_QUARANTINED, attached=False))[0].code == "working"
    assert lines(contact(orchestrator_pb2.NODE_STATE_ACTIVE))[0].code == "working"


def test_waiting_for_an_audit_is_told() -> None:
    found = lines(reason="waiting_for_audit: 5 intervals are not cleared")
    assert (found[0].code, state_of(found)) == ("waiting_for_audit", "waiting")
    assert "a.1" in found[0].reason


def test_a_job_that_its_maintainers_paused_is_told() -> None:
    found = lines(reason="job_paused: its maintainers have called the job to a halt")
    assert (found[0].code, state_of(found)) == ("job_paused", "waiting")


def test_who_lends_nothing_is_not_told_to_wait_for_jobs() -> None:
    def told(**lent: float) -> tuple[str, str, str]:
        (found,) = why(
            draining=False, paused="", attached=1, known_orchestrators=1, membership_trouble="", worker=WorkerFacts(pid=1), hosted=[],
            upload_trouble="", capability=membership_pb2.Capability(cores=1, **lent),
        )  # fmt: skip
        assert state_of([found]) == "idle"
        return found.code, found.reason, found.change

    assert told(memory_bytes=MIB, disk_bytes=MIB)[2] == "work comes when a job needs 1 cores"
    code, reason, change = told(disk_bytes=MIB)
    assert (code, "no memory is lent" in reason, "--memory-mb" in change) == ("no_assignment", True, True)
    code, reason, change = told(memory_bytes=MIB)
    assert (code, "no disk is lent" in reason, "--disk-mb" in change) == ("no_assignment", True, True)


def test_what_ended_with_its_worker_is_not_called_refused() -> None:
    """A pause ends the worker, and with it every replica: that is no assignment that failed, and no limit would change it."""
    failed = orchestrator_pb2.ReplicaReport(
        replica="a.1", state=orchestrator_pb2.ASSIGNMENT_STATE_FAILED, reason="the worker was ended by signal 15"
    )

    def codes(paused: str, pid: int) -> list[str]:
        found = why(
            draining=False, paused=paused, attached=1, known_orchestrators=1, membership_trouble="", worker=WorkerFacts(pid=pid), hosted=[failed],
            upload_trouble="", capability=membership_pb2.Capability(),
        )  # fmt: skip
        return [line.code for line in found]

    assert codes("paused by its owner", 0) == ["paused"]
    assert codes("", 0) == ["no_worker"]
    assert codes("", 1) == ["assignment_failed"]


@pytest.mark.parametrize(
    ("state", "shown"), [("paused", ["paused", "-", "-", "-", "-"]), ("no_worker", ["failed", "0", "0", "0.0/s", "-"])]
)
def test_a_replica_of_a_paused_machine_has_not_failed(state: str, shown: list[str]) -> None:
    """And no loss of zero is told of one that has made no step."""
    report = orchestrator_pb2.ReplicaReport(
        replica="a.1", role=model_pb2.ROLE_PRIMARY, state=orchestrator_pb2.ASSIGNMENT_STATE_FAILED, reason="ended"
    )
    status = local_pb2.StatusResponse(network_id="f" * 40, state=state, replicas=[report])
    assert next(line.split() for line in pnode_screen(status, Path("/home")).splitlines() if line.startswith("a.1")) == [
        "a.1", "primary", *shown, "ended",
    ]  # fmt: skip


def test_a_machine_that_only_serves_is_told_why_it_does_not_learn_too() -> None:
    def codes(*contacts: local_pb2.Contact, hosted: Sequence[orchestrator_pb2.ReplicaReport] = ()) -> list[str]:
        found = why(
            draining=False, paused="", attached=1, known_orchestrators=1, membership_trouble="", worker=WorkerFacts(pid=1), hosted=list(hosted),
            upload_trouble="", capability=membership_pb2.Capability(), contacts=contacts, num_seats=2,
        )  # fmt: skip
        assert state_of(found) == ("working" if hosted else "serving")
        return [line.code for line in found]

    lacking = local_pb2.Contact(node_id="c" * 40, attached=True, lacks="the component ring")
    assert codes() == ["serving", "no_assignment"]
    assert codes(lacking) == ["serving", "component_lacking"]
    assert codes(lacking, hosted=[orchestrator_pb2.ReplicaReport(replica="a.1")]) == ["working"]


@pytest.mark.parametrize(
    ("num_done", "num_seats", "told"),
    [(2, 0, ("all_learned", "idle")), (2, 1, ("serving", "serving")), (1, 1, ("working", "working"))],
)
def test_who_has_nothing_left_to_learn_does_not_say_that_it_works(num_done: int, num_seats: int, told: tuple[str, str]) -> None:
    hosted = [
        orchestrator_pb2.ReplicaReport(replica=name, state=orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE) for name in ("a.1", "b.1")
    ]
    found = why(
        draining=False, paused="", attached=1, known_orchestrators=1, membership_trouble="", worker=WorkerFacts(pid=1), hosted=hosted,
        upload_trouble="", capability=membership_pb2.Capability(), num_seats=num_seats, num_done=num_done,
    )  # fmt: skip
    assert [line.code for line in found] == [told[0]]
    assert state_of(found) == told[1]


def test_a_screen_never_says_that_a_machine_was_seen_from_outside_and_was_not() -> None:
    """On one machine nobody dials from elsewhere, though orchestrators say in their welcome that they reach it."""

    def line(**facts: object) -> str:
        screen = pnode_screen(local_pb2.StatusResponse(network_id="a" * 40, **facts), Path("/home"))  # type: ignore[arg-type]
        return next(line for line in screen.splitlines() if line.startswith("reachable"))

    tested = [local_pb2.Tested(tester="c" * 40, host="203.0.113.7", age_s=40.0)]
    assert "outside" not in line(reachable="direct", reach_note=ONE_MACHINE)
    assert "outside" not in line(reachable="not", reach_note=NOT_YET)
    assert "not as seen from outside, and no relay takes it" in line(reachable="not", reach_note="no relay", tested=tested)
    assert "direct as seen from outside" in line(reachable="direct", tested=tested)


def test_only_what_waits_for_the_store_is_said_to_wait_for_it() -> None:
    def change(*, store_is_away: bool) -> str:
        found = why(
            draining=False, paused="", attached=1, known_orchestrators=1, membership_trouble="", worker=WorkerFacts(pid=1), hosted=[],
            upload_trouble="it waits", store_is_away=store_is_away, capability=membership_pb2.Capability(),
        )  # fmt: skip
        return found[0].change

    assert "until the store is back" in change(store_is_away=True)
    assert "store" not in change(store_is_away=False)


def test_who_tells_no_address_to_try_is_relayed_or_not_yet_and_never_found_out_of_reach() -> None:
    """Else its owner would be told to forward a port, or to start it as it was started."""
    now = Condition(0.0, outbound_only=True, reachable="not")
    assert now.reached == "unknown"
    now.worker.listens_at = ("c" * 40,)
    assert now.reached == "relayed"
    assert Condition(0.0, reachable="not").reached == "not"


def test_who_was_found_out_of_reach_is_relayed_as_soon_as_a_relay_takes_it_and_its_owner_sees_who_found_out() -> None:
    found = Look(NodeId("c" * 40), "203.0.113.7", control=REACHED, data=UNREACHED, at_s=0.0)
    now = Condition(0.0, reachable="direct", looks=(found,), is_data_told=False)
    assert now.reached == "not"
    now.worker.listens_at = ("c" * 40,)
    assert now.reached == "relayed"
    dialled = Condition(0.0, reachable="not", looks=(replace(found, data=REACHED),))
    assert dialled.reached == "direct", "an orchestrator that welcomes a machine dials its daemon only"
    tested = local_pb2.Tested(tester=found.tester, host=found.host, control=found.control, data=found.data, age_s=40.0)
    screen = pnode_screen(
        local_pb2.StatusResponse(network_id="a" * 40, tested=[tested], reach_note="relays lead to it"), Path("/home")
    )
    assert "cccccccc dialled 203.0.113.7 40 s ago: control reached, data unreached\n  relays lead to it" in screen


def test_a_worker_that_has_not_started_yet_is_no_worker_that_ended() -> None:
    def change(worker: WorkerFacts) -> str:
        found = why(
            draining=False, paused="", attached=1, known_orchestrators=1, membership_trouble="", worker=worker, hosted=[],
            upload_trouble="", capability=membership_pb2.Capability(),
        )  # fmt: skip
        assert (found[0].code, state_of(found)) == ("no_worker", "starting")
        return found[0].change

    assert "log/worker.log" not in change(WorkerFacts())
    assert "log/worker.log" in change(WorkerFacts(reason="the worker ended with exit code 1"))


def test_a_screen_says_where_the_memory_stays_that_was_allowed_and_is_not_lent() -> None:
    def lent(memory_bytes: int) -> str:
        capability = membership_pb2.Capability(cores=2, memory_bytes=memory_bytes)
        screen = pnode_screen(local_pb2.StatusResponse(network_id="a" * 40, capability=capability), Path("/home"))
        return next(line for line in screen.splitlines() if line.startswith("lends"))

    assert "768.0 MiB memory (of 1024 MiB allowed; 256 MiB are the daemon's own)" in lent(768 * MIB)
    assert "no memory (the daemon itself needs 256 MiB)" in lent(0)


def test_limits_beyond_the_machine_are_named() -> None:
    machine = Machine(4, 2048 * MIB, 1024 * MIB, 1 << 30, 1.0, "x86_64", "linux")

    def remarks(cores: float, memory_mb: int) -> list[str]:
        return beyond(PNodeSettings(limits=LimitSettings(cores=cores, memory_mb=memory_mb)), machine)

    assert remarks(4, 2048) == remarks(0, 0) == []
    assert remarks(400, 9999999) == [
        "limits.cores is 400, but this machine has 4: it lends 4",
        "limits.memory_mb is 9999999, but this machine has 2048: it lends no more",
    ]
