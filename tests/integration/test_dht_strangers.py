"""Goal: what strangers send to the directory is bounded, checked or ignored, and stopping it leaves nothing behind."""

from __future__ import annotations

import asyncio
import random
import socket
import time

import pytest
from dht_rig import Net, Owner, datagram_from_outside, network, request, run, until, verify

from dcnr.errors import NotRunning
from dcnr.ids import NodeId
from membership.dht import DhtDirectory
from membership.dht_peers import Contact
from membership.directory import record_key


def test_host_names_are_resolved_and_unknown_ones_are_not_fatal() -> None:
    """kademlia: addresses must be IPs."""

    async def scenario() -> None:
        async with network(3) as net:
            node = await net.add(entries=[("localhost", net.ports[net.nodes[0]])])
            assert await node.bootstrap([("name.invalid", 7700), ("", 0), ("x" * 300, 1)]) == 0
            assert len(node.export_contacts()) == 3
            assert all(host == "127.0.0.1" for host, _, _ in node.export_contacts())

    run(scenario())


def test_malformed_datagrams_are_counted_and_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with network(2) as net:
            victim = net.nodes[0]
            rng, ids = random.Random(1), bytes(20)
            noise = [
                b"", b"\x00", b"\x00" * 21, b"\x07" + bytes(40), b"\x01" + bytes(40), b"\x00" * 3000,
                b"\x00" + bytes(20) + b"\x91" * 2000, b"\x00" + bytes(20) + b"\xc1", b"\x00" + bytes(20) + b"\xdd\xff\xff\xff\xff",
                request("store", ids, ids), request("store", ids, ids, "text"), request("store", ids, ids, [1]), request("store", 1, 2, 3),
                request("find_node", ids, ids[:5]), request("find_node", "x" * 20, ids), request("ping", None), request("ping", victim._own_id),
                request("__init__"), request("connection_lost", ids), request(["ping"], ids), request("ping", ids, ids), request({"a": 1}),
                request("find_value", ids, {"a": ids}),
            ]  # fmt: skip
            noise += [b"\x00" + bytes(20) + rng.randbytes(rng.randrange(200)) for _ in range(200)]
            for data in noise:
                datagram_from_outside(net.ports[victim], data)
            await until(lambda: sum(victim.stats().rejected.values()) >= 200)
            record = Owner().sign("k", 1)
            assert await net.nodes[1].put("k", record) == 1
            assert await victim.get("k") == record
            assert set(victim.stats().rejected) <= {
                "datagram_size", "unknown_kind", "unasked_answer", "malformed", "unknown_method", "bad_arguments", "undeliverable",
            }  # fmt: skip
            assert victim.stats().num_contacts == 1

    run(scenario())
    assert caplog.records == []


def test_answers_of_wrong_shape_and_impostors_are_ignored() -> None:
    """A peer that answers nonsense, or that claims another's id, neither breaks a look-up nor enters the table."""

    async def scenario() -> None:
        async with network(5) as net:
            liar = net.nodes[4]
            endpoint = liar._endpoint
            junk: list[object] = [None, 5, "x", [1, 2], [[1, 2, 3]], {"value": 7}, {"value": b"unsigned"}, {"other": 1}, [[b"i" * 20, "x.y", 1]],
                                  [[b"i" * 20, "127.0.0.1", net.ports[net.nodes[0]]]] * 500]  # fmt: skip
            endpoint.rpc_find_node = lambda *args: net.rng.choice(junk[:9])  # type: ignore[union-attr]
            endpoint.rpc_find_value = lambda *args: net.rng.choice(junk)  # type: ignore[union-attr]
            record = Owner().sign("k", 1)
            assert await net.nodes[0].put("k", record) >= 3
            for _ in range(20):
                assert await net.nodes[1].get("k") == record
                assert await net.nodes[1].get("missing") is None
            known = {name for _, _, name in net.nodes[1].export_contacts()}
            assert NodeId((b"i" * 20).hex()) not in known

    run(scenario())


def test_an_id_counts_only_at_an_address_that_echoes_it() -> None:
    """A liar names an honest node's address under an id made up to be closest to a key."""

    async def scenario() -> None:
        async with network(5) as net:
            key = record_key("k")
            made_up = key[:-1] + bytes([key[-1] ^ 1])
            honest, liar, asker = net.nodes[0], net.nodes[4]._endpoint, net.nodes[1]
            assert liar is not None
            assert asker._walker is not None
            liar.rpc_find_node = lambda *args: [[made_up, "127.0.0.1", net.ports[honest]]]  # type: ignore[attr-defined]
            keepers, further = await asker._walker.closest(key)
            assert {c.id for c in keepers + further} == {n._own_id for n in net.nodes if n is not asker}
            assert NodeId(made_up.hex()) not in {name for _, _, name in asker.export_contacts()}

    run(scenario())


def test_a_flood_from_one_address_is_cut_and_others_are_served() -> None:
    async def scenario() -> None:
        async with network(3) as net:
            victim = net.nodes[0]
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.bind(("127.0.0.1", 0))
                async with asyncio.timeout(40):
                    while victim.stats().rejected.get("rate_limited", 0) < 50:
                        for _ in range(10):
                            sock.sendto(request("find_node", bytes(20), bytes(20)), ("127.0.0.1", net.ports[victim]))
                        await asyncio.sleep(0)
                record = Owner().sign("k", 1)
                async with asyncio.timeout(40):
                    while await net.nodes[1].put("k", record) != 2:  # the flood's rest still fills the socket's buffer
                        pass
                assert await net.nodes[2].get("k") == record

    run(scenario())


def test_the_table_takes_few_contacts_of_one_subnet() -> None:
    async def scenario() -> None:
        net = Net()
        node = DhtDirectory(NodeId("0" * 40), clock=net.clock, rng=net.rng, verify=verify, single_host=False)
        try:
            await node.start("127.0.0.1", 0)
            for i in range(1, 50):
                node._endpoint._welcome(Contact(net.rng.randbytes(20), f"8.8.8.{i}", 7700))  # type: ignore[union-attr]
            assert node.stats().num_contacts <= 3
            for i in range(1, 50):
                node._endpoint._welcome(Contact(net.rng.randbytes(20), f"8.8.{i + 10}.1", 7700))  # type: ignore[union-attr]
            assert node.stats().num_contacts > 20
            node._endpoint._welcome(Contact(net.rng.randbytes(20), "127.0.0.1", 7700))  # type: ignore[union-attr]
            assert "127.0.0.1" not in {host for host, _, _ in node.export_contacts()}
        finally:
            await node.stop()

    run(scenario())


def test_stop_ends_look_ups_at_once_and_frees_the_port() -> None:
    async def scenario() -> None:
        async with network(3) as net:
            node = net.nodes[0]
            for other in net.nodes[1:]:
                await net.kill(other)
            lookup = asyncio.create_task(node.get("k"))
            await asyncio.sleep(0)
            since = time.perf_counter()
            await node.stop()
            assert await lookup is None
            assert time.perf_counter() - since < 5.0
            await node.stop()
            with pytest.raises(NotRunning):
                await node.get("k")
            again = DhtDirectory(NodeId("a" * 40), clock=net.clock, rng=net.rng, verify=verify, single_host=True)
            assert await again.start("127.0.0.1", net.ports[node]) == net.ports[node]
            await again.stop()

    run(scenario())
