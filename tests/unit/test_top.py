"""Goal: `pnode top` shows what is used per second between two looks, against what was lent, with every VNode, seat and event; a restart counts from 0."""

from __future__ import annotations

import pytest

from dcnr.cli.top_view import Look, Rates, rates_between, top_data, top_line, top_screen
from dcnr.v1 import common_pb2, local_pb2, membership_pb2, model_pb2, orchestrator_pb2

NODE, DECIDES = "1" * 40, "2" * 40


def status(**more: float) -> local_pb2.StatusResponse:
    made = local_pb2.StatusResponse(
        node_id=NODE, network_id="f" * 64, network_name="garden", uptime_s=100.0, state="working", reason="1 VNode hosted", epoch=3,
        holder=DECIDES, num_known=7, next_action="nothing", memory_bytes=2**28, disk_bytes=2**30,
        capability=membership_pb2.Capability(cores=2.0, memory_bytes=2**30, disk_bytes=2**31, uplink_mbit=32.0),
        orchestrators=[local_pb2.Contact(node_id=DECIDES, attached=True), local_pb2.Contact(node_id="3" * 40)],
        replicas=[
            orchestrator_pb2.ReplicaReport(
                replica="a.1", vnode="a", state=orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE, role=model_pb2.ROLE_PRIMARY, num_learned=30,
                rate=4.5, loss=1.25,
            )
        ],
        seats=[orchestrator_pb2.SeatReport(model="m", vnode="a", state_digest="d" * 64, ready=True, num_answered=9)],
        events=[common_pb2.Event(kind=f"kind{number}", subject=NODE, reason="because") for number in range(20)],
        num_batches={"a.1": 40}, upload_limit_bytes_s=125_000.0,
    )  # fmt: skip
    for name, value in more.items():
        setattr(made, name, int(value) if name != "cpu_s" else value)
    return made


def test_rates_are_those_between_two_looks() -> None:
    before = Look(10.0, status(cpu_s=5.0, num_questions=10, uploaded_bytes=1000, downloaded_bytes=0))
    now = Look(12.0, status(cpu_s=8.0, num_questions=16, uploaded_bytes=5000, downloaded_bytes=100))
    assert rates_between(before, now) == Rates(1.5, 3.0, 2000.0, 50.0)
    assert rates_between(None, now) == Rates(0.08, 0.16, 50.0, 1.0), "the first look: the mean of its life"


def test_what_counts_from_zero_again_was_restarted() -> None:
    before, now = Look(10.0, status(cpu_s=500.0, num_questions=90)), Look(11.0, status(cpu_s=0.5, num_questions=2))
    assert rates_between(before, now) == Rates(0.5, 2.0, 0.0, 0.0)


def test_two_looks_at_one_moment_divide_by_nothing() -> None:
    look = Look(10.0, status(cpu_s=1.0))
    assert rates_between(look, look).cores == 0.0
    assert rates_between(None, Look(0.0, local_pb2.StatusResponse())) == Rates(0.0, 0.0, 0.0, 0.0)


def test_the_screen_holds_all_that_an_owner_asks_for() -> None:
    text = top_screen(Look(0.0, status()), Rates(1.5, 3.25, 62_500.0, 0.0))
    for part in (
        "PNode 11111111  garden ffffffff", "working: 1 VNode hosted", "to 1 of 2: 22222222; 22222222 decides, epoch 3; 7 nodes known",
        "[###############.....] 1.50 of 2 cores", "[#####...............] 256.0 MiB of 1.0 GiB", "1.0 GiB of 2.0 GiB",
        "0.50 Mbit/s of 1 Mbit/s, uplink 32 Mbit/s\n", "0.00 Mbit/s (no limit)\n", "3.2 per second", "a.1", "30/40", "4.5/s", "1.250", "m a", "ready",
        "kind19 11111111",
    ):  # fmt: skip
        assert part in text, part
    assert "kind0 " not in text, "only the newest events"
    assert len(top_line(Look(0.0, status()), Rates(1.5, 3.25, 0.0, 0.0)).splitlines()) == 1


def test_json_names_the_units() -> None:
    told = top_data(Look(0.0, status()), Rates(1.5, 3.25, 62_500.0, 0.0), 1_700_000_000_000)
    assert told["cpu"] == {"cores": 1.5, "limit_cores": 2.0}
    assert told["upload"] == {"bytes_per_s": 62_500.0, "limit_bytes_per_s": 125_000.0, "uplink_bytes_per_s": 4_000_000.0}
    assert told["attached"] == [DECIDES]
    [replica] = told["replicas"]
    assert (replica["num_learned"], replica["num_batches"], replica["batches_per_s"]) == (30, 40, 4.5)
    assert replica["loss"] == pytest.approx(1.25)
    assert len(told["events"]) == 8


def test_a_node_that_does_nothing_has_no_empty_tables() -> None:
    empty = local_pb2.StatusResponse(node_id=NODE, state="idle", reason="no work")
    text = top_screen(Look(0.0, empty), Rates(0.0, 0.0, 0.0, 0.0))
    assert "(none)" not in text
    assert "of 0 cores" in text
