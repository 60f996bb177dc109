"""Goal: whatever is wrong when a daemon starts, its owner is told what, why and what to do next; and nothing hangs or runs on."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nursery import DAEMON, nursery
from trouble_rig import Command, asked, processes_of, run, told, until

from dcnr.rpc.dialer import Dialer
from dcnr.system import SystemClock
from dcnr.testing import LocalNetwork
from dcnr.v1 import membership_pb2
from trust.identity import NodeKey
from trust.network import create_document, verify_chain
from trust.network_file import save_policy
from trust.records import make_advert

PNODE = ("-m", "dcnr.cli.pnode")
PORTS = ("--listen-host", "127.0.0.1", "--control-port", "0", "--data-port", "0", "--dht-port", "0", "--memory-mb", "512")
OTHER_NETWORK = "ab" * 20


@pytest.fixture(scope="module")
def network(small_network: LocalNetwork) -> LocalNetwork:
    return small_network


@pytest.fixture
def home() -> Iterator[Path]:
    """A home whose path is short enough for a socket, of which no process is left afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="dcnr-t-"))
    yield directory
    until(lambda: not processes_of(directory), 10.0, say=lambda: str(processes_of(directory)))
    shutil.rmtree(directory)


def start(network: LocalNetwork, home: Path, *flags: str) -> tuple[str, ...]:
    """A start by the address alone, as a volunteer does it, but for its worker, which is forked; later flags win."""
    daemon = (str(DAEMON), str(nursery("workers")), "start", "--home", str(home))
    return (*daemon, "--bootstrap", network.bootstrap[0].partition("@")[2], *PORTS, *flags)


def why(home: Path) -> dict[str, str]:
    """The first reason that the daemon gives."""
    line: dict[str, str] = json.loads(asked("why", "--json", "--home", str(home)))["lines"][0]
    return line


def ended(command: Command, *, within_s: float = 30.0) -> None:
    """Ctrl-C ends it in order."""
    command.interrupt()
    assert command.end(within_s) == 0, command.text
    assert "Traceback" not in command.text, command.text


def test_while_nobody_answers_it_keeps_trying_says_why_and_joins_when_somebody_comes(network: LocalNetwork, home: Path) -> None:
    orchestrator = network.orchestrators[0]
    network.kill(orchestrator)
    address = network.bootstrap[0].partition("@")[2]
    with Command(*start(network, home)) as pnode:
        assert address in pnode.line("nobody_found")
        reason = why(home)
        assert reason["code"] == "nobody_found"
        assert "cannot be reached" in reason["reason"]
        assert "--bootstrap" in reason["change"]
        assert "joining" in run(*PNODE, "status", "--home", str(home), code=0)
        network.restart(orchestrator)
        pnode.line(f"PNode {NodeKey.load(home / 'key.pem').node_id}")
        ended(pnode)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_search_in_vain_ends_when_it_is_told(home: Path, number: int) -> None:
    with Command(*PNODE, "start", "--home", str(home), "--bootstrap", "127.0.0.1:1", *PORTS) as pnode:
        pnode.line("nobody_found")
        os.kill(pnode.pid, number)
        assert pnode.end(10) == 0, pnode.text
    told(run(*PNODE, "why", "--home", str(home), code=3), code="not_running", what="nothing runs", remedy="pnode start")


def test_a_known_network_whose_nodes_are_silent(home: Path) -> None:
    """The document came by file, so the daemon runs; nobody of the network can be found."""
    policy = verify_chain(
        [create_document(NodeKey.generate(), name="far", now_wall=SystemClock().wall(), orchestrator_ids=["cd" * 20])]
    )
    save_policy(home / "given.json", policy)
    flags = ("--network", str(home / "given.json"), "--bootstrap", "127.0.0.1:1")
    with Command(*PNODE, "start", "--home", str(home), *PORTS, *flags) as pnode:
        pnode.line("PNode ")
        until(lambda: "127.0.0.1:1" in json.dumps(_reasons(home)))
        ended(pnode)


def test_a_machine_that_starts_before_its_line_is_up_waits_for_it(home: Path) -> None:
    """As a laptop does whose daemon starts with the system: the name of a node cannot be looked up, so it has no address to tell others yet."""
    policy = verify_chain(
        [create_document(NodeKey.generate(), name="far", now_wall=SystemClock().wall(), orchestrator_ids=["cd" * 20])]
    )
    save_policy(home / "given.json", policy)
    flags = ("--network", str(home / "given.json"), "--bootstrap", "nowhere.invalid:7700", "--listen-host", "0.0.0.0")
    with Command(*PNODE, "start", "--home", str(home), *PORTS, *flags) as pnode:
        assert "nowhere.invalid" in pnode.line("nobody_found")
        assert "no way to nowhere.invalid" in why(home)["reason"]
        assert "joining" in run(*PNODE, "status", "--home", str(home), code=0)
        ended(pnode)


def _reasons(home: Path) -> list[dict[str, str]]:
    lines: list[dict[str, str]] = json.loads(asked("why", "--json", "--home", str(home)))["lines"]
    return [line for line in lines if line["code"] == "nobody_found"]


def test_another_network_than_wanted_is_refused(network: LocalNetwork, home: Path) -> None:
    text = run(*start(network, home, "--network-id", OTHER_NETWORK), code=5)
    told(text, code="wrong_network", what=OTHER_NETWORK, remedy="network")
    assert not (home / "network.pb").exists(), "nothing is pinned"


def test_a_missing_network_file_is_named(network: LocalNetwork, home: Path) -> None:
    told(
        run(*start(network, home, "--network", str(home / "none.json")), code=1),
        code="no_network",
        what="none.json",
        remedy="--bootstrap",
    )


def test_a_key_that_others_can_read_is_refused(network: LocalNetwork, home: Path) -> None:
    NodeKey.generate().save(home / "key.pem")
    (home / "key.pem").chmod(0o644)
    told(run(*start(network, home), code=5), code="key_permissions", what="can be read by others", remedy="chmod 600")


@pytest.mark.parametrize("kind", ["control", "dht"])
def test_a_taken_port_of_the_daemon_is_named(network: LocalNetwork, home: Path, kind: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM if kind == "control" else socket.SOCK_DGRAM) as holder:
        holder.bind(("127.0.0.1", 0))
        if kind == "control":
            holder.listen()
        port = str(holder.getsockname()[1])
        text = run(*start(network, home, f"--{kind}-port", port), code=4)
    told(text, code="port_in_use", what=port, remedy="choose another")


def test_a_taken_port_of_the_worker_is_a_reason_and_no_crash(network: LocalNetwork, home: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        with Command(*start(network, home, "--data-port", port)) as pnode:
            pnode.line("worker_ended")
            said = pnode.line("not ready")
            assert f"cannot listen on port {port}" in said or "SIGKILL" in said, said
            heard: list[dict[str, str]] = []

            def refused() -> bool:  # one that has not come so far is killed and started again
                heard[:] = [why(home)]
                return f"cannot listen on port {port}" in heard[0]["reason"]

            until(refused, say=lambda: str(heard))
            assert heard[0]["code"] == "no_worker"
            assert "--data-port" in heard[0]["reason"], heard
            ended(pnode)


def test_a_second_start_on_the_same_home_is_refused_and_the_first_goes_on(network: LocalNetwork, home: Path) -> None:
    with Command(*start(network, home)) as pnode:
        pnode.line("worker_started")
        told(run(*start(network, home), code=5), code="already_running", what="already runs", remedy="--home")
        until(lambda: why(home)["code"] == "no_assignment")
        ended(pnode)


@pytest.mark.parametrize(
    "command", ["pnode start", "orchestrator start", "orchestrator key", "dcnr network create --name x --orchestrator " + "cd" * 20]
)
def test_a_home_that_cannot_be_used_is_named(network: LocalNetwork, home: Path, command: str) -> None:
    (home / "file").write_text("no directory")
    name, *words = command.split()
    flags = ("--bootstrap", network.bootstrap[0], *PORTS) if name == "pnode" else ()
    if command == "orchestrator start":
        flags = ("--network", str(network.network_file))
    with Command("-m", f"dcnr.cli.{name}", *words, "--home", str(home / "file" / "home"), *flags) as started:
        assert started.end(20) in (2, 4, 5), started.text
        told(started.text, code="", what=str(home / "file"), remedy="--home")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_home_without_permission_is_named(network: LocalNetwork, home: Path) -> None:
    home.chmod(0o500)
    try:
        told(run(*start(network, home), code=4), code="home_unusable", what=str(home), remedy="--home")
    finally:
        home.chmod(0o700)


def test_an_unknown_setting_names_the_nearest(network: LocalNetwork, home: Path) -> None:
    (home / "config.toml").write_text("[limits]\nmemry_mb = 512\n")
    told(run(*start(network, home), code=2), code="unknown_setting", what="limits.memry_mb", remedy="limits.memory_mb")


def test_an_orchestrator_that_the_document_does_not_name_does_not_start(network: LocalNetwork, home: Path) -> None:
    text = run("-m", "dcnr.cli.orchestrator", "start", "--home", str(home), "--network", str(network.network_file), code=5)
    told(text, code="not_listed", what="does not list this orchestrator", remedy="dcnr network amend --add-orchestrator")


def test_pnodes_ignore_an_orchestrator_that_the_document_does_not_name(network: LocalNetwork, home: Path) -> None:
    assert network.policy is not None
    clock, stranger, network_id = SystemClock(), NodeKey.generate(), network.policy.network_id
    advert = make_advert(
        stranger, network_id=network_id, kind=membership_pb2.NODE_KIND_ORCHESTRATOR, incarnation=1, sequence=1, now_wall=clock.wall(),
        lifetime_s=60, control_addresses=["127.0.0.1:1"],
    )  # fmt: skip
    with Command(*start(network, home)) as pnode:
        pnode.line("attached")
        until(lambda: any(contact["attached"] for contact in status(home)["orchestrators"]))
        before = status(home)
        dialer = Dialer(stranger, network_id, clock=clock, rng=secrets.token_bytes)
        asyncio.run(dialer.join(before["control_address"], membership_pb2.JoinRequest(network_id=network_id, advert=advert), None))
        after = status(home)
        assert [contact["node_id"] for contact in after["orchestrators"]] == [network.orchestrators[0].node_id]
        assert after["num_known"] == before["num_known"]
        ended(pnode)


def status(home: Path) -> dict[str, Any]:
    """The screen as JSON."""
    told: dict[str, Any] = json.loads(asked("status", "--json", "--home", str(home)))
    return told


def test_a_second_orchestrator_on_a_home_is_refused_and_harms_not_the_first(network: LocalNetwork) -> None:
    """It is refused before it opens anything, whatever ports it is told; status and stop still find the one that runs."""
    first = network.orchestrators[0]
    flags = (*(word for word in first.command[1:] if word != "--until-stdin-closes"), "--control-port", "0")
    told(run(*flags, code=5), code="already_running", what="an orchestrator already runs", remedy="orchestrator status")
    assert first.node_id in run("-m", "dcnr.cli.orchestrator", "status", "--home", str(first.home), code=0)
    assert first.alive


@pytest.mark.parametrize(
    ("flags", "code", "what", "remedy"),
    [
        (("--store-url", "127.0.0.1:7790"), "bad_address", "no address of a store", "write http://127.0.0.1:7790"),
        (("--store-url", "http://127.0.0.1:7790"), "no_store_file", "store.json does not exist", "--store-file"),
    ],
)
def test_an_orchestrator_that_is_told_of_its_store_by_halves(
    home: Path, flags: tuple[str, ...], code: str, what: str, remedy: str
) -> None:
    key = NodeKey.load_or_create(home / "key.pem")
    policy = verify_chain(
        [create_document(NodeKey.generate(), name="n", now_wall=SystemClock().wall(), orchestrator_ids=[key.node_id])]
    )
    save_policy(home / "given.json", policy)
    if code == "bad_address":
        (home / "store.json").write_text(json.dumps({"access_key": "a", "secret_key": "s"}))
        (home / "store.json").chmod(0o600)
    start = ("-m", "dcnr.cli.orchestrator", "start", "--home", str(home), "--network", str(home / "given.json"))
    text = run(*start, "--control-port", "0", "--dht-port", "0", *flags, code=3 if code == "no_store_file" else 2)
    told(text, code=code, what=what, remedy=remedy)


def test_a_store_that_does_not_answer_is_told_once_and_ctrl_c_starts_nothing(home: Path) -> None:
    key = NodeKey.load_or_create(home / "key.pem")
    policy = verify_chain(
        [create_document(NodeKey.generate(), name="n", now_wall=SystemClock().wall(), orchestrator_ids=[key.node_id])]
    )
    save_policy(home / "given.json", policy)
    (home / "store.json").write_text(json.dumps({"access_key": "a", "secret_key": "s"}))
    (home / "store.json").chmod(0o600)
    start = ("-m", "dcnr.cli.orchestrator", "start", "--home", str(home), "--network", str(home / "given.json"))
    with Command(*start, "--control-port", "0", "--dht-port", "0", "--store-url", "http://127.0.0.1:1") as orchestrator:
        assert "http://127.0.0.1:1 does not answer" in orchestrator.line("store_away")
        orchestrator.interrupt()
        assert orchestrator.end(20.0) == 0, orchestrator.text
    assert orchestrator.text.count("store_away") == 1
    assert f"orchestrator {key.node_id}" not in orchestrator.text, "nothing has started"
