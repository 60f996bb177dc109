"""Goal: restarts, deaths, wrong clocks and new documents: every view becomes right again within seconds, and nobody is killed by a claim."""

from __future__ import annotations

import secrets
import shutil
import time
from pathlib import Path

import pytest
from still_disk_rig import standing_still
from town_rig import MAINTAINER, SkewedClock, Town, in_town, until

from dcnr.errors import DcnrError, Refused
from dcnr.rpc.dialer import Dialer
from dcnr.sdk.contact import Contact, look_again
from dcnr.sdk.publishing import publish
from dcnr.system import SystemClock
from dcnr.testing import free_ports
from dcnr.v1 import identity_pb2, membership_pb2, membership_pb2_grpc
from membership.gossip import Gone, GoneReason
from membership.node import MembershipSettings
from membership.probing import Verdict
from trust.identity import NodeKey
from trust.in_force import Amended
from trust.network import MAX_HISTORY, draft_successor, sign_document


def test_a_restarted_node_comes_back_with_what_it_remembers(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        first = await town.orchestrator()
        path = tmp_path / "nodes.json"
        node = await town.add(cache_path=path)
        await until(lambda: node.knows(first) and first.knows(node) and path.exists(), "no contact")
        town.nodes.remove(node)
        await node.stop()
        again = await town.add(node.key, entries=[], cache_path=path)
        await until(lambda: again.knows(first), "the cache did not help")
        await until(
            lambda: (
                (a := first.membership.find(node.key.node_id)) is not None and list(a.advert.control_addresses) == [again.address]
            ),
            "the new address did not spread",
        )

    in_town(scene)


def test_contacts_that_wait_for_a_disk_keep_no_gossip_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(town: Town) -> None:
        await town.orchestrator()
        path = tmp_path / "nodes.json"
        with standing_still(monkeypatch, tmp_path, "open") as disk:
            node = await town.add(cache_path=path)
            await until(disk.waiting.is_set, "nothing is saved")
            later = await town.add()
            await until(lambda: node.knows(later), "the node that waits for its disk hears of nobody")
        await until(path.exists, "what waited is not saved")

    in_town(scene)


def test_contacts_are_on_disk_soon_after_the_start(tmp_path: Path) -> None:
    """A node that is killed young finds the others again although all entries that it was given are gone."""
    settings = MembershipSettings(exchange_s=0.1)
    first_run, second_run = tmp_path / "nodes.json", tmp_path / "again.json"

    async def scene(town: Town) -> None:
        key = NodeKey.generate()
        orchestrator = await town.orchestrator(settings=settings)
        other = await town.add(settings=settings)
        young = await town.add(key, cache_path=first_run, settings=settings)
        await until(
            lambda: first_run.exists() and other.key.node_id in first_run.read_text(), "the other PNode is not in the cache"
        )
        shutil.copy(first_run, second_run)  # as a power cut leaves it
        for node in (young, orchestrator):
            await node.stop()
            town.nodes.remove(node)
        again = await town.add(key, entries=[orchestrator.address], cache_path=second_run, settings=settings)
        await until(lambda: again.knows(other) and other.knows(again), "they do not know each other")

    in_town(scene)


def test_a_life_with_a_lower_incarnation_overtakes_its_own_past() -> None:
    async def scene(town: Town) -> None:
        first = await town.orchestrator()
        key = NodeKey.generate()
        node = await town.add(key, incarnation=1000)
        await until(lambda: first.knows(node), "no contact")
        town.nodes.remove(node)
        await node.die()
        again = await town.add(key, incarnation=7)
        await until(
            lambda: (a := first.membership.find(key.node_id)) is not None and list(a.advert.control_addresses) == [again.address],
            "the old life's advert stayed",
        )

    in_town(scene)


def test_a_dead_node_leaves_every_view_and_table_within_seconds() -> None:
    """Its adverts would live for minutes; nobody waits for that. A later life is welcome, an older advert is not."""

    async def scene(town: Town) -> None:
        first = await town.orchestrator()
        for _ in range(4):
            await town.add()
        victim = await town.add(incarnation=1000)
        name = victim.key.node_id
        await until(lambda: all(node.knows(*town.nodes) for node in town.nodes), "not everybody knows everybody")
        await until(lambda: any(name in node.tables() for node in town.nodes), "no table has it")
        old = victim.membership.own_advert
        town.nodes.remove(victim)
        await victim.die()
        began = time.monotonic()
        await until(lambda: not any(node.membership.find(name) for node in town.nodes), "somebody still takes it for a member")
        await until(lambda: not any(name in node.tables() for node in town.nodes), "some table still has it")
        assert time.monotonic() - began < 15  # s; its advert lives for three minutes
        reasons = {event.reason for node in town.nodes for event in node.events if isinstance(event, Gone)}
        assert reasons == {GoneReason.DEAD}
        connection = await town.nodes[1].dialer.connect(first.key.node_id, [first.address])
        stub = membership_pb2_grpc.MembershipServiceStub(connection.channel)
        await connection.call(stub.Exchange, membership_pb2.ExchangeRequest(adverts=[old]))
        assert first.membership.find(name) is None
        await connection.close()
        again = await town.add(victim.key, incarnation=1001)
        await until(lambda: all(node.knows(again) for node in town.nodes), "its next life is not welcome")

    in_town(scene)


def test_a_claim_kills_nobody_and_who_hears_of_its_own_death_says_otherwise() -> None:
    async def scene(town: Town) -> None:
        first = await town.orchestrator()
        liar, living = await town.add(), await town.add()
        name = living.key.node_id
        await until(lambda: all(node.knows(*town.nodes) for node in town.nodes), "not everybody knows everybody")
        advert = first.membership.find(name)
        assert advert is not None
        claim = membership_pb2.KnownNode(node_id=name, incarnation=advert.order[0], sequence=2**62)
        for target in (first, living):
            connection = await liar.dialer.connect(target.key.node_id, [target.address])
            stub = membership_pb2_grpc.MembershipServiceStub(connection.channel)
            own = living.membership._own.order
            claim.sequence = own[1] if target is living else 2**62
            await connection.call(stub.Exchange, membership_pb2.ExchangeRequest(suspects=[claim]))
            await connection.close()
        found = await first.membership.probe(name)
        assert found is not None
        assert found.verdict is Verdict.REACHED
        await until(
            lambda: (seen := first.membership.find(name)) is not None and seen.order > advert.order, "it did not say that it lives"
        )
        assert not [event for node in town.nodes for event in node.events if isinstance(event, Gone)]

    in_town(scene)


def test_a_node_that_only_others_reach_is_reached() -> None:
    """An orchestrator that cannot reach a PNode hears from others that it lives."""

    async def scene(town: Town) -> None:
        first = await town.orchestrator()
        living = await town.add()
        await town.add()
        await until(lambda: all(node.knows(*town.nodes) for node in town.nodes), "not everybody knows everybody")
        first.dialer.cut_off.add(living.key.node_id)
        found = await first.membership.probe(living.key.node_id)
        assert found is not None
        assert (found.direct, found.verdict) == (False, Verdict.REACHED)
        assert "does not" in found.reason

    in_town(scene)


def test_network_time_heals_a_wrong_clock() -> None:
    async def scene(town: Town) -> None:
        await town.orchestrator()
        for _ in range(3):
            await town.add()
        wrong = await town.add(clock=SkewedClock(ahead_s=120.0))
        await until(lambda: wrong.knows(*town.nodes), "a wrong clock kept the node out")
        await until(lambda: abs(wrong.membership.network_time() - time.time()) < 1.0, "network time was not found")
        assert "ahead of" in wrong.membership.trouble

    in_town(scene)


@pytest.mark.parametrize("ahead_s", [600.0, -600.0])
@pytest.mark.parametrize("num_entries", [1, 4])
def test_a_clock_too_wrong_for_any_advert_is_healed_by_those_who_introduce(ahead_s: float, num_entries: int) -> None:
    """Every advert is expired by such a clock, or not issued yet: without their time no view would ever begin."""

    async def scene(town: Town) -> None:
        await town.orchestrator()
        for _ in range(3):
            await town.add()
        await until(lambda: all(node.knows(*town.nodes) for node in town.nodes), "not everybody knows everybody")
        wrong = await town.add(clock=SkewedClock(ahead_s), entries=[node.address for node in town.nodes[:num_entries]])
        await until(lambda: wrong.knows(*town.nodes), "a wrong clock kept the node out")
        await until(lambda: all(node.knows(wrong) for node in town.nodes), "nobody heard of it")
        await until(lambda: abs(wrong.membership.network_time() - time.time()) < 1.0, "network time was not found")
        told = "600 s ahead of" if ahead_s > 0 else "600 s behind"
        await until(lambda: told in wrong.membership.trouble, "it is not told")  # 601 by a slow answer, till the next

    in_town(scene)


def test_too_few_who_tell_the_time_heal_nothing_and_the_owner_hears_of_the_clock() -> None:
    async def scene(town: Town) -> None:
        first = await town.orchestrator()
        wrong = await town.add(clock=SkewedClock(600.0))
        await until(lambda: "600 s ahead of the one node that answers" in wrong.membership.trouble, "the clock is not named")
        assert "orchestrators" in wrong.membership.trouble
        assert not first.knows(wrong)

    in_town(scene)


def test_strangers_move_no_clock_by_which_an_honest_advert_is_in_force() -> None:
    """However many of those that introduce tell another time: what partners say by and by counts, and nothing else."""

    async def scene(town: Town) -> None:
        await town.orchestrator()
        for _ in range(3):
            await town.add(clock=SkewedClock(120.0))
        await until(lambda: all(node.knows(*town.nodes) for node in town.nodes), "not everybody knows everybody")
        right = await town.add(entries=[node.address for node in town.nodes])
        await until(lambda: right.knows(*town.nodes), "no contact")
        assert not right.membership._time._strangers

    in_town(scene)


def test_a_clock_that_is_set_while_the_node_runs_costs_it_nobody() -> None:
    """Right after it was wrong at the start, and wrong after it was right: each time the others stay known and are believed anew."""

    async def scene(town: Town) -> None:
        first = await town.orchestrator()
        for _ in range(3):
            await town.add()
        clock = SkewedClock(-250.0)
        node = await town.add(clock=clock)
        for set_to_s in (0.0, 600.0, -600.0, 0.0):
            await until(lambda: node.knows(*town.nodes), "the others are not known")
            await until(lambda: len(node.membership._time._partners) >= 3, "their time is not known")
            node.events.clear()
            clock.ahead_s = set_to_s
            assert node.membership._time.is_unsure, "it has noticed"
            await until(lambda: len(node.membership._time._partners) >= 3, "their time is not heard again")
            assert abs(node.membership.network_time() - time.time()) < 1.0
            assert [one.node_id for one in node.membership.orchestrators()] == [first.key.node_id]
        await until(lambda: all(one.knows(node) for one in town.nodes), "the others lost it")
        assert not [event for event in node.events if isinstance(event, Gone)]

    in_town(scene)


def test_nobody_there_is_told_and_tried_for_ever() -> None:
    async def scene(town: Town) -> None:
        seed = await town.add(entries=["127.0.0.1:1"])
        await until(lambda: "bootstrap entries answered" in seed.membership.trouble, "the reason is not told")
        alone = await town.add(entries=[])
        await until(lambda: "no bootstrap entry" in alone.membership.trouble, "the reason is not told")
        late = await town.orchestrator(entries=[seed.address])
        await until(lambda: late.knows(seed) and seed.knows(late), "who came late was not found")
        await until(lambda: seed.membership.trouble == "", "the trouble is over")

    in_town(scene)


def test_orchestrators_that_missed_each_other_meet_also_after_others_have_entered_by_one() -> None:
    async def scene(town: Town) -> None:
        second_key, [port] = NodeKey.generate(), free_ports(1)
        draft = draft_successor(town.policy)
        draft.orchestrator_ids.append(second_key.node_id)
        both = town.policy.successor([*town.policy.history, sign_document(draft, MAINTAINER)])
        second = await town.add(second_key, entries=[f"127.0.0.1:{port}"], policy=both)
        entered = await town.add(entries=[second.address], policy=both)
        await until(lambda: second.knows(entered) and not second.membership.trouble, "nobody entered")
        await town.orchestrator(entries=[], policy=both, port=port)
        await until(lambda: all(node.knows(*town.nodes) for node in town.nodes), "the network stays split")

    in_town(scene)


def test_two_parts_that_know_nothing_of_each_other_meet_though_nobody_in_them_is_alone() -> None:
    """As after a cut that lasted longer than adverts live: each part has two of the four orchestrators, and one part has been told where the others are."""

    async def scene(town: Town) -> None:
        draft, keys, ports = draft_successor(town.policy), [NodeKey.generate() for _ in range(3)], free_ports(2)
        draft.orchestrator_ids.extend(key.node_id for key in keys)
        policy = town.policy.successor([*town.policy.history, sign_document(draft, MAINTAINER)])
        there = [f"127.0.0.1:{port}" for port in ports]
        first = await town.orchestrator(entries=there, policy=policy)
        second = await town.add(keys[0], entries=[first.address, *there], policy=policy)
        await until(lambda: first.knows(second) and second.knows(first), "the first part is none")
        third = await town.add(keys[1], entries=there[1:], policy=policy, port=ports[0])
        await town.add(keys[2], entries=[third.address], policy=policy, port=ports[1])
        await until(lambda: all(node.knows(*town.nodes) for node in town.nodes), "the network stays split")

    in_town(scene)


def test_a_new_version_of_the_document_spreads() -> None:
    """Goal: gossip brings it to everybody, from whomever it begins; who is listed no longer leaves every view; what is not signed by the rule is refused."""
    settings = MembershipSettings(exchange_s=0.1, document_s=3600.0)  # nobody is asked but by gossip

    async def scene(town: Town) -> None:
        first = await town.orchestrator(settings=settings)
        nodes = [await town.add(settings=settings) for _ in range(3)]
        await until(lambda: all(node.knows(*town.nodes) for node in town.nodes), "not everybody knows everybody")
        heard: list[Amended] = []
        nodes[2].network.follow(heard.append)
        draft = draft_successor(town.policy)
        draft.store_bucket = "moved"
        second = town.policy.successor([*town.policy.history, sign_document(draft, MAINTAINER)])
        assert nodes[0].network.take(second.history, now_wall=time.time()), "a PNode has it first"
        await until(lambda: all(node.network.version == 2 for node in town.nodes), "the new version did not arrive")
        assert [one.now.document.store_bucket for one in heard] == ["moved"]

        connection = await nodes[1].dialer.connect(first.key.node_id, [first.address])
        stub = membership_pb2_grpc.MembershipServiceStub(connection.channel)
        draft = draft_successor(second)
        draft.orchestrator_ids[:] = [NodeKey.generate().node_id]
        forged = membership_pb2.DocumentRequest(history=[*second.history, sign_document(draft, NodeKey.generate())])
        with pytest.raises(Refused) as refused:
            await connection.call(stub.Document, forged)
        assert refused.value.code == "too_few_signatures"
        answer = await connection.call(stub.Document, membership_pb2.DocumentRequest(version=1, history=town.policy.history))
        assert (answer.version, list(answer.history)) == (2, list(second.history)), "who comes with an older one gets the newer"
        assert first.network.policy.document == second.document

        address, now = (first.key.node_id, (first.address,)), time.time()
        contact = await look_again(nodes[1].dialer, Contact(town.policy, (address,), True, ()), now)
        assert (contact.policy.document.version, contact.orchestrators) == (2, (address,)), "a client that looks again has it"
        third = second.successor([*second.history, sign_document(draft, MAINTAINER)])
        told = await publish(nodes[1].dialer, third, [first.address, "127.0.0.1:1"], SystemClock())
        assert [(one.node_id, one.version, one.taken) for one in told] == [(first.key.node_id, 3, True), ("", 0, False)]
        draft.store_bucket = "elsewhere"
        fork = second.successor([*second.history, sign_document(draft, MAINTAINER)])
        [told_of_fork] = await publish(nodes[1].dialer, fork, [first.address], SystemClock())
        assert (told_of_fork.version, told_of_fork.taken) == (3, False), "two drafts of one version: the first one counts"
        await until(lambda: all(node.network.version == 3 for node in nodes), "what takes an orchestrator out did not arrive")
        assert not any(node.membership.orchestrators() for node in nodes)
        await connection.close()

    in_town(scene)


def test_a_large_chain_uses_up_what_a_subnet_may_ask() -> None:
    """Goal: worthless chains cost whoever is offered them by their size: one of the largest kind takes the whole burst, and half a minute to come back."""

    async def scene(town: Town) -> None:
        node = await town.orchestrator()
        stranger = Dialer(NodeKey.generate(), town.policy.network_id, clock=SystemClock(), rng=secrets.token_bytes)
        connection = await stranger.connect(node.key.node_id, [node.address])
        stub = membership_pb2_grpc.MembershipServiceStub(connection.channel)
        documents = [identity_pb2.NetworkDocument(version=number, name="n" * 200_000) for number in range(2, MAX_HISTORY + 1)]
        junk = [identity_pb2.Envelope(payload=document.SerializeToString()) for document in documents]
        codes = []
        for history in 2 * ([*town.policy.history, *junk],):
            try:
                await connection.call(stub.Document, membership_pb2.DocumentRequest(history=history))
            except DcnrError as error:
                codes.append(error.code)
        assert codes == ["wrong_domain", "rate_limited"]
        await connection.close()

    in_town(scene)
