"""Goal: what people type works against a real network: data in, job signed and trained, model out, reasons and lineages told; and errors say so."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from collector_rig import Collector, Told
from commands_rig import GRAPH, NUM_BATCHES, Shell
from notebook_rig import NOTEBOOK, run_notebook
from nursery import forked, nursed
from trouble_rig import until

import dcnr.sdk
from dcnr.audit_lineage import audit_lineage
from dcnr.sdk.client import connect_async
from dcnr.testing import LocalNetwork, LocalPNode
from dcnr.tracing import of_job
from trust.identity import NodeKey


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    with tempfile.TemporaryDirectory(prefix="dcnr-") as directory:
        named = LocalPNode("p1", memory_mb=512, flags=("--log-json", "--name", "Ada's laptop"))
        pnodes = (named, LocalPNode("p2", memory_mb=512, flags=("--log-json",)))
        with (
            Collector() as collector,
            LocalNetwork(
                Path(directory) / "n", num_orchestrators=1, pnodes=nursed(pnodes), orchestrator_flags=("--gateway", "127.0.0.1:0", "--log-json"),
                starting=forked, additions={
                    "o1": {"ORCHESTRATOR_TRACING_ENDPOINT": collector.url}, "p1": {"PNODE_TRACING_ENDPOINT": collector.url},
                    "p2": {"PNODE_TRACING_ENDPOINT": collector.url},
                },
            ) as network,
            pytest.MonkeyPatch.context() as environment,
        ):  # fmt: skip
            environment.setenv("DCNR_HOME", str(network.maintainer_home))
            environment.setenv("DCNR_NETWORK", str(network.network_file))
            environment.setenv("DCNR_BOOTSTRAP", ",".join(network.bootstrap))
            with dcnr.sdk.connect(network.bootstrap, network=network.network_file) as client:
                until(lambda: sum(node.attached for node in client.nodes()) == len(pnodes), say=network.trouble)
            yield Shell(network, collector)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    teacher = rng.standard_normal((16, 4)).astype(np.float32)
    arrays = {}
    for split, count in (("train", 640), ("validation", 64), ("test", 100)):
        arrays[f"{split}_x"] = rng.standard_normal((count, 16)).astype(np.float32)
        arrays[f"{split}_y"] = (arrays[f"{split}_x"] @ teacher).argmax(axis=1)
    directory = tmp_path_factory.mktemp("data")
    np.savez(directory / "tiny.npz", **arrays)  # type: ignore[arg-type]  # numpy's stub wants no arrays by keyword
    (directory / "model.toml").write_text(GRAPH)
    return directory


def test_from_data_to_an_exported_model(shell: Shell, data: Path) -> None:
    shell.run("dcnr model plan --json", str(data / "model.toml"), code=1)  # no such data set yet
    staged = json.loads(shell.run("dcnr data stage --json --name tiny --licence CC0", str(data / "tiny.npz")))
    assert staged["splits"] == {"train": 640, "validation": 64, "test": 100}
    assert [info["digest"] for info in json.loads(shell.run("dcnr data list --json"))] == [staged["digest"]]
    submit = "dcnr model submit --json --idempotency-key one --checkpoint-s 2 --expires-after-s 3600"
    job = json.loads(shell.run(submit, str(data / "model.toml")))
    again = json.loads(shell.run(submit, str(data / "model.toml")))
    assert (again["job_id"], again["existed"]) == (job["job_id"], True)
    views = [json.loads(line) for line in shell.run("dcnr job watch --json", job["job_id"]).splitlines()]
    assert views[-1]["job"]["state"] == "completed"
    assert views[-1]["job"]["expires_unix_ms"] > 0
    assert {result["vnode"] for result in views[-1]["job"]["outcome"]["exits"]} == {"a", "b"}
    assert [item["report"]["num_learned"] for item in views[-1]["job"]["vnodes"]] == [NUM_BATCHES] * 2
    exports = [json.loads(shell.run(f"dcnr model export tiny --json --out {data / name}")) for name in ("one", "two")]
    assert exports[0]["digest"] == exports[1]["digest"], "an export is a function of its manifest"
    assert exports[0]["unnoticed"] is None
    assert "nobody checked" in shell.run(f"dcnr model export tiny --out {data / 'one'}")
    judged = json.loads(shell.run("dcnr model evaluate tiny --json"))
    told = {result["vnode"]: result for result in views[-1]["job"]["outcome"]["exits"]}
    for item in judged["exits"]:
        assert item["accuracy"] * item["count"] == pytest.approx(told[item["vnode"]]["correct"])
    assert "placed" in shell.run("dcnr job explain b")
    assert "active" in shell.run("dcnr job explain", shell.network.pnodes[0].node_id[:8]), "ids as screens show them are enough"
    told_of_r = shell.run("dcnr job explain r")
    assert "r: evaluated" in told_of_r, "what has no weights is evaluated by its successor"
    assert "b: placed" in told_of_r
    manifest = views[-1]["job"]["outcome"]["manifest_digest"]
    found = json.loads(shell.run("dcnr ledger verify tiny --json --manifest", manifest))
    assert (found["audits"], found["completed"], found["problem"]) == ("none", True, "")
    assert [(one["vnode"], one["batches"], one["exact"]) for one in found["vnodes"]] == [(name, NUM_BATCHES, True) for name in "ab"]
    assert "nobody checked" in shell.run("dcnr ledger verify tiny --manifest", manifest)
    shell.run("dcnr job pause", job["job_id"], code=1)  # it has ended
    shell.run("dcnr job explain nobody", code=1)
    assert "had ended before" in shell.run("dcnr job cancel", job["job_id"])


def test_a_question_over_rest_is_one_trace_to_the_component_that_computes_it(shell: Shell) -> None:
    """Goal: gateway, orchestrator and worker, each a process or part of its own, tell the collector that their owners named of the same trace."""
    log = shell.network.directory / "log" / "o1.log"
    until(lambda: re.search(r"gateway (http://\S+)", log.read_text()) is not None, say=shell.network.trouble)
    told = re.search(r"gateway (http://\S+)", log.read_text())
    assert told is not None
    key = json.loads(shell.run("dcnr gateway key add test --json", "--home", str(shell.network.orchestrators[0].home)))["key"]
    trace, parent = secrets.token_hex(16), secrets.token_hex(8)
    headers = {"Authorization": f"Bearer {key}", "traceparent": f"00-{trace}-{parent}-01"}
    question = {"model": "tiny", "inputs": [{"values": [[0.5] * 16]}], "full_depth": True}
    with httpx.Client(base_url=told[1], headers=headers, timeout=30.0) as client:
        until(lambda: client.post("/v1/forward", json=question).status_code == 200, say=shell.network.trouble)

    def ways(spans: list[Told]) -> list[list[Told]]:
        """From the last VNode's computation back to who asked, as far as all of that was told."""
        by_id, found = {span.span: span for span in spans}, []
        for computed in spans:
            line = [computed]
            while line[-1].parent in by_id:
                line.append(by_id[line[-1].parent])
            if computed.facts.get("vnode") == "b" and line[-1].parent == parent:
                found.append(line)
        return found

    line = ways(shell.collector.wait(trace, lambda spans: bool(ways(spans))))[0]
    names = [(span.service, span.name) for span in reversed(line)]
    assert names[:3] == [("dcnr-gateway", "POST /v1/forward"), ("dcnr-orchestrator", "Forward"), ("dcnr-orchestrator", "way")]
    assert set(names[3:-1]) == {("dcnr-worker", "question")}
    assert line[0].instance in {process.node_id for process in shell.network.pnodes}


def test_a_job_is_one_trace_from_its_acceptance_to_first_steps(shell: Shell) -> None:
    """Goal: who accepted it, the plans that placed it, and each VNode's restoring and first step are told of one trace, which the job's id names."""
    _, trace, root, _ = of_job(json.loads(shell.run("dcnr job list --json"))[0]["job_id"]).split("-")
    wanted = {("accept", None), ("plan", None), ("restore", "a"), ("restore", "b"), ("first step", "a"), ("first step", "b")}
    spans = shell.collector.wait(trace, lambda spans: wanted <= {(span.name, span.facts.get("vnode")) for span in spans})
    assert {span.parent for span in spans} == {root}
    services = {span.name: span.service for span in spans}
    assert services == dict.fromkeys(("accept", "plan"), "dcnr-orchestrator") | dict.fromkeys(
        ("restore", "first step"), "dcnr-worker"
    )


def test_logs_say_of_what_they_tell(shell: Shell) -> None:
    """Goal: as JSON every event has its node, and its job and VNode where it is about one."""
    job = json.loads(shell.run("dcnr job list --json"))[0]["job_id"]
    for processes, kind, wanted in (
        (shell.network.orchestrators, "job_accepted", {"job": job, "model": "tiny"}),
        (shell.network.orchestrators, "job_ended", {"job": job}),
        (shell.network.pnodes, "replica_hosted", {"job": job, "vnode": "[ab]", "replica": r"[ab]\.\d+"}),
    ):
        told = []
        for process in processes:
            lines = [json.loads(line) for line in process.log.read_text().splitlines() if line.startswith("{")]
            assert {line["node"] for line in lines} == {process.node_id}
            told += [line for line in lines if line["event"] == kind]
        assert told, kind
        assert all(re.fullmatch(pattern, line[name]) for line in told for name, pattern in wanted.items()), told


def test_lineages_and_the_blocking_client(shell: Shell) -> None:
    import asyncio

    key = NodeKey.load(shell.network.maintainer_key)

    async def audited() -> list[tuple[str, int, bool]]:
        async with await connect_async(shell.network.bootstrap, network=shell.network.network_file, key=key) as client:
            return [(item.vnode, item.num_batches, item.exact) for item in await audit_lineage(client, "tiny")]

    assert asyncio.run(audited()) == [("a", NUM_BATCHES, True), ("b", NUM_BATCHES, True)]
    address = shell.network.bootstrap[0].partition("@")[2]
    with dcnr.sdk.connect([address]) as client:  # no file, no id: the first document seen is believed, and that is told
        assert not client.pinned
        assert [job.model for job in client.jobs()] == ["tiny"]
        assert [view.job.job_id for view in client.watch(client.jobs()[0].job_id)][-1].startswith("tiny-")
        assert len(client.nodes()) >= 2


def test_the_notebook_runs_from_its_first_cell_to_its_last(shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Goal: an imported module is trained, asked and taken home, as the notebook says; in a pipe its bars are silent."""
    stderr = io.StringIO()
    with contextlib.redirect_stderr(stderr):
        left = run_notebook(NOTEBOOK, shell.network, monkeypatch, tmp_path)
    assert stderr.getvalue() == ""
    assert left["calls"] == ["start", "stop"]
    answer = left["answer"]
    assert [(result.vnode, result.count) for result in left["ended"].outcome.exits] == [("layer0", 160), ("layer2", 160)]
    assert (answer.degraded, answer.output.shape) == (answer.exit != "layer2", (8, 3)), (
        "seats of the deepest VNode may still be loading"
    )
    assert set(left["written"].files) == {"model.safetensors", "model.json", "graph.json", "README.txt"}


def test_daemons_tell_about_themselves(shell: Shell) -> None:
    lent, deciding = shell.network.pnodes[0], shell.network.orchestrators[0]
    told = json.loads(shell.run("pnode status --json", "--home", str(lent.home)))
    assert told["node_id"] == lent.node_id
    assert told["locality"] == "single_host"
    assert told["public_name"] == "Ada's laptop"
    with dcnr.sdk.connect(shell.network.bootstrap, network=shell.network.network_file) as client:
        assert {node.node_id for node in client.nodes() if node.public_name} == {lent.node_id}, "whoever said none has none"
    shell.run("pnode receipt", "--home", str(lent.home), code=1)  # audits are not in force here: nothing is credited
    note = json.loads(shell.run("pnode note --json", "--home", str(lent.home)))
    assert (note["pnode"], note["credit"]["audited"], note["credit"]["cleared"]) == (lent.node_id, False, 0)
    assert "single host" in shell.run("pnode status", "--home", str(lent.home))
    assert json.loads(shell.run("pnode why --json", "--home", str(lent.home)))["lines"]
    looks = [
        json.loads(line) for line in shell.run("pnode top --json --count 3 --interval 0.2", "--home", str(lent.home)).splitlines()
    ]
    assert [look["node_id"] for look in looks] == [lent.node_id] * 3
    assert looks[0]["cpu"]["limit_cores"] > 0
    assert looks[0]["download"]["bytes_per_s"] > 0, "it has fetched shards"
    assert looks[0]["attached"]
    [line] = shell.run("pnode top --count 1", "--home", str(lent.home)).splitlines()
    assert "attached 1/1" in line
    told = json.loads(shell.run("orchestrator status --json", "--home", str(deciding.home)))
    assert (told["node_id"], told["store_ok"]) == (deciding.node_id, True)


def test_top_fills_a_terminal_and_gives_it_back(shell: Shell) -> None:
    """Goal: in a terminal it is one screen that is drawn anew, without colours where none are wanted, and what was there before comes back."""
    ours, theirs = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "dcnr.cli.pnode",
        "top",
        "--count",
        "2",
        "--interval",
        "0.2",
        "--home",
        str(shell.network.pnodes[0].home),
    ]
    environment = {**os.environ, "NO_COLOR": "1", "TERM": "xterm", "COLUMNS": "160", "LINES": "50"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        drawn = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(ours, 65536):
                drawn += part
        assert process.wait(timeout=60) == 0, drawn
    os.close(ours)
    text = drawn.decode()
    assert "\x1b[?1049h" in text
    assert "\x1b[?1049l" in text
    assert text.count("questions  ") == 2
    assert shell.network.pnodes[0].node_id[:8] in text
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", text)


def test_refusals_have_their_codes(shell: Shell, data: Path, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger.pem"
    NodeKey.generate().save(stranger)
    shell.run("dcnr model submit --key", str(stranger), str(data / "model.toml"), code=5)
    shell.run("dcnr job cancel nothing-here", code=1)
    shell.run("dcnr data stage --name far --licence CC0 https://example.org/far.npz", code=2)  # without its digest
    draft = tmp_path / "draft.json"
    saved = shell.run("dcnr model submit --idempotency-key two --save-draft", str(draft), str(data / "model.toml"))
    assert f"next: dcnr model submit --draft {draft}" in saved, "of one maintainer one signature is enough"
    assert re.search("dcnr model submit --draft", shell.run("dcnr model sign", str(draft)))


def test_the_owner_is_obeyed(shell: Shell) -> None:
    """Goal: a pause is kept and shown with its reason and its way back, and the settings shown are those that the daemon took."""
    home = ("--home", str(shell.network.pnodes[0].home))
    settings = json.loads(shell.run("pnode config show --json", *home))
    assert settings["running"]
    assert settings["settings"]["limits.memory_mb"] == {"value": 512, "origin": "flag --memory-mb"}
    assert "limits.memory_mb = 512  # flag --memory-mb" in shell.run("pnode config show --origin", *home)
    assert json.loads(shell.run("pnode pause --json --for 2h", *home)) == {"paused": True, "for_s": 7200}
    shell.run("pnode pause --for 2h --until 07:00", *home, code=2)
    shell.run("pnode pause --for soon", *home, code=2)
    told = json.loads(shell.run("pnode status --json", *home))
    assert (told["state"], told["next_action"]) == ("paused", "`pnode resume`")
    assert "paused: paused by its owner until 20" in shell.run("pnode why", *home)
    assert json.loads(shell.run("pnode resume --json", *home)) == {"paused": False}
    assert json.loads(shell.run("pnode status --json", *home))["state"] != "paused"


def test_the_owner_has_a_page_of_their_own(shell: Shell) -> None:
    """Goal: `pnode dashboard` shows the network and this machine, obeys whoever has its token and nobody else, and ends with its standard input."""
    home = shell.network.pnodes[0].home
    line = [
        sys.executable,
        "-m",
        "dcnr.cli.pnode",
        "dashboard",
        "--home",
        str(home),
        "--listen",
        "127.0.0.1:0",
        "--until-stdin-closes",
    ]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"(http://127\.0\.0\.1:\d+)/#/here/(\S+)", process.stdout.readline())
        assert found is not None
        with httpx.Client(base_url=found[1], timeout=30.0, headers={"X-DCNR-Local-Token": found[2]}) as client:
            told = client.get("/v1/here").json()
            assert told["status"]["node_id"] == shell.network.pnodes[0].node_id
            assert told["why"]
            assert {"key": "limits.memory_mb", "value": "512", "origin": "flag --memory-mb"} in client.get(
                "/v1/here/settings"
            ).json()["settings"]
            assert isinstance(client.get("/v1/here/log").json()["lines"], list)
            note = client.get("/v1/here/note").json()
            assert note["pnode"] == told["status"]["node_id"]
            assert (note["credit"] is None) == bool(note["credit_unknown"]), "known, or it says why not"
            assert client.post("/v1/here/pause", json={"for_s": 60}).json()["within_s"] > 0
            assert client.get("/v1/here").json()["status"]["state"] == "paused"
            for wrong in ({"for_s": -1}, {"for_s": "soon"}, {"more": 1}, []):
                assert client.post("/v1/here/pause", json=wrong).status_code == 400
            for token in ("", "x", found[2][:-1], "\xe9"):
                for method, path in (("GET", ""), ("GET", "/log"), ("GET", "/note"), ("POST", "/resume"), ("POST", "/finish")):
                    answer = client.request(
                        method, f"/v1/here{path}", headers={"X-DCNR-Local-Token": token.encode("latin-1")}, json={}
                    )  # type: ignore[arg-type]
                    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "UNAUTHORIZED_KEY")
            assert client.post("/v1/here/resume", headers={"Host": "evil.example"}).status_code == 421
            assert client.get("/v1/here").json()["status"]["state"] == "paused", "nobody else was obeyed"
            assert client.post("/v1/here/resume").json() == {"paused": False}
            assert "This machine" in client.get("/dashboard/main.js").text
            until(lambda: client.get("/readyz").status_code == 200, say=shell.network.trouble)
            until(lambda: measured(client, told["status"]["node_id"]), say=shell.network.trouble)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


def measured(client: httpx.Client, node_id: str) -> bool:
    """Whether the network's page knows how far that machine is, and how busy."""
    [node] = [one for one in client.get("/v1/nodes").json()["nodes"] if one["node_id"] == node_id]
    return bool(0 < node["round_trip_s"] < 60 and node["answers"] and 0 <= node.get("load", {}).get("cores", -1) < 64)


def test_a_machine_that_starts_again_says_whose_it_is(shell: Shell, tmp_path: Path) -> None:
    process = shell.network.pnodes[1]
    told = json.loads(shell.run(f"pnode own --json --key {tmp_path / 'owner.pem'} --home {process.home}"))
    shell.network.kill(process)
    process.start()
    deadline = time.monotonic() + 120.0
    seen = ""
    while seen != told["owner"]:
        assert time.monotonic() < deadline, f"{seen!r}\n{shell.network.trouble()}"
        with dcnr.sdk.connect(shell.network.bootstrap, network=shell.network.network_file) as client:
            seen = next((node.owner for node in client.nodes() if node.node_id == process.node_id), "")


def test_stopping_politely(shell: Shell) -> None:
    lent, deciding = shell.network.pnodes[1], shell.network.orchestrators[0]
    assert json.loads(shell.run("pnode finish --json", "--home", str(lent.home))) == {"stopped": True}
    shell.run("pnode status", "--home", str(lent.home), code=3)
    assert json.loads(shell.run("orchestrator stop --json", "--home", str(deciding.home))) == {"stopped": True}
    shell.run("orchestrator status", "--home", str(deciding.home), code=3)
