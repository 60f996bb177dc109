"""Goal: a daemon serves what the holder of the confirmed head wishes, and only states that manifests on its chain name, of a graph that maintainers signed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from seat_rig import AUDITED, GRAPH, HOLDER, MAINTAINER, MODEL, OTHER, POLICY, STATES, World, play, ready, reported

from dcnr.graph import graph_to_bytes
from dcnr.ids import NodeId, digest_of
from dcnr.limits import MIB
from dcnr.v1 import identity_pb2, model_pb2, orchestrator_pb2
from pnode.authority import Term
from pnode.budget import Reservation
from pnode.seat_duties import MAX_GONE, SeatDuties
from trust.envelope import seal
from trust.identity import NodeKey
from trust.network import draft_successor, sign_document


def test_who_may_ask_a_worker_that_runs_follows_the_network_document(tmp_path: Path) -> None:
    """Whoever is taken out asks it nothing more, and whoever comes need not wait for its next start."""
    world, newcomer = World(tmp_path), NodeKey.generate()

    async def scenario(duties: SeatDuties) -> None:
        assert world.callers == sorted([HOLDER.node_id, OTHER.node_id])
        draft = draft_successor(POLICY)
        draft.orchestrator_ids[:] = [OTHER.node_id, newcomer.node_id]
        world.policy = POLICY.successor([*POLICY.history, sign_document(draft, MAINTAINER)])
        await world.until(lambda: world.callers == sorted([OTHER.node_id, newcomer.node_id]))

    play(world, scenario)


def test_a_new_state_is_loaded_beside_the_one_before_which_goes_when_nobody_keeps_it(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def scenario(duties: SeatDuties) -> None:
        assert world.callers == sorted([HOLDER.node_id, OTHER.node_id])
        duties.wished(HOLDER.node_id, world.wish(world.first, "a"))
        await world.until(lambda: len(world.sent) == 1)
        first = world.sent[0]
        assert (first.state_digest, Path(first.state_path).read_bytes()) == (digest_of(STATES[0]), STATES[0])
        assert first.graph == graph_to_bytes(GRAPH)
        duties.heard([ready(first)])
        (report,) = duties.reports()
        assert (report.ready, report.manifest_digest, report.delegation.payload) == (True, world.first, b"delegation")
        duties.wished(HOLDER.node_id, world.wish(world.second, "a", previous_manifest_digest=world.first))
        await world.until(lambda: len(world.sent) == 2)
        duties.heard([ready(first), ready(world.sent[1])])
        assert {report.manifest_digest for report in duties.reports()} == {world.first, world.second}
        duties.wished(HOLDER.node_id, world.wish(world.second, "a"))
        await world.until(lambda: len(world.sent) == 3)
        assert (world.sent[2].state_digest, world.sent[2].state_path) == (digest_of(STATES[0]), "")
        duties.wished(HOLDER.node_id, world.wish(world.second))
        await world.until(lambda: len(world.sent) == 4)
        assert (world.sent[3].state_digest, world.sent[3].state_path) == (digest_of(STATES[1]), "")
        assert duties.reports() == []

    play(world, scenario)


def test_a_wish_counts_when_a_confirmed_head_names_who_sent_it(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def scenario(duties: SeatDuties) -> None:
        duties.wished(NodeId("9" * 40), world.wish(world.first, "a"))
        assert any("unlisted_orchestrator" in said for said in world.said)
        duties.wished(OTHER.node_id, world.wish(world.first, "a"))
        duties.wished(HOLDER.node_id, world.wish(world.second, "a"))
        await world.until(lambda: bool(world.sent))
        assert world.sent[0].state_digest == digest_of(STATES[1])
        duties.heard([ready(world.sent[0])])
        world.term = Term(2, OTHER.node_id)
        await world.until(lambda: len(world.sent) == 2)
        assert world.sent[1].state_digest == digest_of(STATES[0])

    play(world, scenario)


def of_another_graph(world: World) -> str:
    """A manifest on the chain, of states that the graph which maintainers signed does not have."""
    world.head = world.manifest(b"other", world.second, graph="f" * 64)
    return world.head


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        (lambda world: world.wish(world.manifest(b"elsewhere", world.first), "a"), "not_on_chain"),
        (lambda world: world.wish(world.first, "b"), "no_state"),
        (lambda world: world.wish(world.first, "a", cleared=True), "no_state"),
        (lambda world: world.wish(of_another_graph(world), "a"), "unsigned_job"),
    ],
)
def test_what_the_chain_does_not_name_is_not_loaded(
    tmp_path: Path, wish: Callable[[World], orchestrator_pb2.SeatWish], reason: str
) -> None:
    world = World(tmp_path)

    async def scenario(duties: SeatDuties) -> None:
        duties.wished(HOLDER.node_id, wish(world))
        await reported(duties, reason)
        assert world.sent == []

    play(world, scenario)


def released(world: World, manifest: str, *, model: str = MODEL, key: NodeKey = MAINTAINER) -> identity_pb2.Envelope:
    """Maintainers say that it answers."""
    release = model_pb2.Release(network_id=world.policy.network_id, model=model, number=1, manifest_digest=manifest)
    return seal(identity_pb2.DOMAIN_RELEASE, release, key)


def test_what_maintainers_released_is_loaded_though_no_chain_leads_there(tmp_path: Path) -> None:
    """A job that began anew leaves every manifest before it behind."""
    world = World(tmp_path)
    world.head = world.manifest(b"anew", "")

    async def scenario(duties: SeatDuties) -> None:
        duties.wished(HOLDER.node_id, world.wish(world.first, "a"))
        await reported(duties, "not_on_chain")
        duties.wished(HOLDER.node_id, world.wish(world.first, "a", release=released(world, world.first)))
        await world.until(lambda: bool(world.sent))
        assert world.sent[0].state_digest == digest_of(STATES[0])

    play(world, scenario)


@pytest.mark.parametrize(
    ("release", "reason"),
    [
        (lambda world: released(world, world.first, key=HOLDER), "unsigned_job"),
        (lambda world: released(world, world.second), "not_released"),
        (lambda world: released(world, world.first, model="other"), "not_released"),
        (lambda world: identity_pb2.Envelope(), "unsigned_job"),
    ],
)
def test_what_is_said_to_be_released_and_is_not_is_not_loaded(
    tmp_path: Path, release: Callable[[World], identity_pb2.Envelope], reason: str
) -> None:
    world = World(tmp_path)
    world.head = world.manifest(b"anew", "")

    async def scenario(duties: SeatDuties) -> None:
        duties.wished(HOLDER.node_id, world.wish(world.first, "a", release=release(world)))
        await reported(duties, reason)
        assert world.sent == []

    play(world, scenario)


def test_what_was_taken_back_is_not_served_though_it_is_released(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.head = world.manifest(b"third", world.second, retracted=[digest_of(STATES[0])])

    async def scenario(duties: SeatDuties) -> None:
        duties.wished(HOLDER.node_id, world.wish(world.first, "a", release=released(world, world.first)))
        await reported(duties, "retracted")
        assert world.sent == []

    play(world, scenario)


def test_a_state_that_was_taken_back_is_not_served(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.head = world.manifest(b"third", world.second, retracted=[digest_of(STATES[0])])

    async def scenario(duties: SeatDuties) -> None:
        duties.wished(HOLDER.node_id, world.wish(world.first, "a"))
        await reported(duties, "retracted")
        assert world.sent == []

    play(world, scenario)


def test_what_is_taken_back_while_it_is_served_goes(tmp_path: Path) -> None:
    world = World(tmp_path, policy=AUDITED)

    async def scenario(duties: SeatDuties) -> None:
        duties.wished(HOLDER.node_id, world.wish(world.first, "a"))
        await reported(duties, "not_cleared")
        duties.wished(HOLDER.node_id, world.wish(world.first, "a", cleared=True))
        await world.until(lambda: len(world.sent) == 1)
        duties.heard([ready(world.sent[0])])
        world.head = world.manifest(b"third", world.second, retracted=[digest_of(STATES[0])])
        await world.until(lambda: len(world.sent) == 2)
        assert (world.sent[1].state_digest, world.sent[1].state_path) == (digest_of(STATES[0]), "")

    play(world, scenario)


def test_a_new_worker_serves_what_the_last_one_did(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def scenario(duties: SeatDuties) -> None:
        duties.wished(HOLDER.node_id, world.wish(world.first, "a"))
        await world.until(lambda: len(world.sent) == 1)
        duties.heard([ready(world.sent[0])])
        duties.worker_down()
        assert not any(report.ready for report in duties.reports())
        await duties.worker_up()
        await world.until(lambda: len(world.sent) == 2)
        assert world.sent[1] == world.sent[0]

    play(world, scenario)


def test_the_seats_of_a_model_that_is_forgotten_go(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def scenario(duties: SeatDuties) -> None:
        duties.wished(HOLDER.node_id, world.wish(world.first, "a"))
        await world.until(lambda: len(world.sent) == 1)
        world.term = None
        await world.until(lambda: len(world.sent) == 2)
        assert (world.sent[1].state_path, duties.reports()) == ("", [])

    play(world, scenario)


def test_replicas_have_the_memory_before_seats(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def scenario(duties: SeatDuties) -> None:
        duties.wished(HOLDER.node_id, world.wish(world.first, "a"))
        await world.until(lambda: len(world.sent) == 1)
        duties.heard([ready(world.sent[0])])
        lent = world.cache_bytes
        assert MIB <= lent < world.memory_bytes
        world.budget.admit("r.1", Reservation(world.memory_bytes - MIB, 0), free_disk_bytes=1 << 30)
        await world.until(lambda: len(world.sent) == 2)
        assert world.cache_bytes <= MIB
        assert world.sent[1].state_path == ""
        assert "too_little_memory" in duties.reports()[0].reason
        world.budget.release("r.1")
        await world.until(lambda: len(world.sent) == 3)
        assert (world.sent[2].state_path != "", world.cache_bytes) == (True, lent)

    play(world, scenario)


def test_a_state_whose_file_went_before_the_worker_read_it_is_brought_again_without_a_word(tmp_path: Path) -> None:
    """A snapshot of this machine lies there until a newer one takes its place, which may be at any moment."""
    world = World(tmp_path)

    async def scenario(duties: SeatDuties) -> None:
        duties.wished(HOLDER.node_id, world.wish(world.second, "a"))
        await world.until(lambda: len(world.sent) == 1)
        order = world.sent[0]
        gone = orchestrator_pb2.SeatReport(
            model=order.model, vnode=order.vnode, state_digest=order.state_digest, reason="state_gone: its file was removed"
        )
        for number in range(MAX_GONE):
            Path(world.sent[-1].state_path).unlink()
            await asyncio.sleep(0)  # the order that was sent is over
            duties.heard([gone])
            await world.until(lambda number=number: len(world.sent) == number + 2)
            assert Path(world.sent[-1].state_path).read_bytes() == STATES[1]
        assert world.said == []
        await asyncio.sleep(0)
        duties.heard([gone])
        assert world.said == ["seat_failed state_gone: its file was removed"]

    play(world, scenario)


def test_others_hear_that_a_vnode_answers_and_when_that_changes_but_not_of_every_newer_state(tmp_path: Path) -> None:
    """Whoever watches a job sees what changes: checkpoints are taken all the time."""
    world = World(tmp_path)
    states = (*STATES, b"third", b"fourth")

    async def scenario(duties: SeatDuties) -> None:
        async def tried(manifest: str, state: bytes, trouble: str = "", previous: str = "") -> None:
            digest, num_sent = digest_of(state), len(world.sent)
            duties.wished(HOLDER.node_id, world.wish(manifest, "a", previous_manifest_digest=previous))
            await world.until(lambda: any(one.state_path for one in world.sent[num_sent:] if one.state_digest == digest))
            await asyncio.sleep(0)  # the order that was sent is over
            duties.heard(
                [orchestrator_pb2.SeatReport(model=MODEL, vnode="a", state_digest=digest, ready=not trouble, reason=trouble)]
            )

        await tried(world.first, states[0])
        await tried(world.second, states[1], previous=world.first)
        ready_once = f"seat_ready state {digest_of(states[0])[:12]} of m"
        assert world.said == [ready_once]
        world.head = world.manifest(states[2], world.second)
        await tried(world.head, states[2], "bad_state: no weights")
        world.head = world.manifest(states[3], world.head)
        await tried(world.head, states[3], "bad_state: no weights")
        assert world.said == [ready_once, "seat_failed bad_state: no weights"]
        await tried(world.first, states[0])
        assert world.said == [ready_once, "seat_failed bad_state: no weights", ready_once]
        duties.worker_down()
        await duties.worker_up()
        num_sent = len(world.sent)
        await world.until(lambda: len(world.sent) > num_sent)
        await asyncio.sleep(0)
        duties.heard([ready(world.sent[-1])])
        assert world.said[3:] == [ready_once]

    play(world, scenario)
