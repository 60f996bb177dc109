"""Goal: a gateway is started as people start it, beside an orchestrator or alone, and its keys are made, changed and shown by commands."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from nursery import forked
from schemas_rig import check_output
from trouble_rig import graph_text, write_data

from dcnr.cli import dcnr as program
from dcnr.cli import errors
from dcnr.testing import LocalNetwork

WAIT_S = 60.0


def command(*arguments: str, code: int = 0) -> Any:
    """What a command prints as JSON."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        assert errors.exit_code(program.app, "dcnr", [*arguments, *(["--json"] if code == 0 else [])]) == code
    if code:
        return None
    check_output(" ".join(["dcnr", *arguments, "--json"]), out.getvalue())
    return json.loads(out.getvalue())


@pytest.fixture(scope="module")
def beside() -> Iterator[tuple[LocalNetwork, Path]]:
    """A network whose orchestrator has a gateway."""
    with tempfile.TemporaryDirectory(prefix="dcnr-g-") as directory:
        network = LocalNetwork(
            Path(directory) / "n",
            num_orchestrators=1,
            pnodes=(),
            orchestrator_flags=("--gateway", "127.0.0.1:0"),
            starting=forked,
        )
        with network as running:
            yield running, running.directory / "o1"


def url_in(log: Path) -> str:
    """Where the gateway of a process says that it listens."""
    deadline = time.monotonic() + WAIT_S
    while not (found := re.search(r"gateway (http://\S+)", log.read_text())):
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    return found[1]


def until_status(client: httpx.Client, path: str, status: int, **options: Any) -> None:
    deadline = time.monotonic() + WAIT_S
    while client.get(path, **options).status_code != status:
        assert time.monotonic() < deadline, client.get(path, **options).text
        time.sleep(0.1)


def test_beside_an_orchestrator(beside: tuple[LocalNetwork, Path]) -> None:
    network, home = beside
    with httpx.Client(base_url=url_in(network.orchestrators[0].log), timeout=30.0) as client:
        until_status(client, "/readyz", 200)
        assert client.get("/version").json()["network_name"] == "local"
        assert client.get("/v1/stats").json()["reporter"] == network.orchestrators[0].node_id
        made = command("gateway", "key", "add", "alice", "--home", str(home))
        authorization = {"Authorization": f"Bearer {made['key']}"}
        until_status(client, "/v1/stats", 200, headers=authorization)
        turned = command("gateway", "key", "rotate", made["id"], "--home", str(home))
        until_status(client, "/v1/stats", 401, headers=authorization)
        authorization = {"Authorization": f"Bearer {turned['key']}"}
        until_status(client, "/v1/stats", 200, headers=authorization)
        command("gateway", "key", "revoke", made["id"], "--home", str(home))
        until_status(client, "/v1/stats", 401, headers=authorization)
    [shown] = command("gateway", "key", "list", "--home", str(home))
    assert (shown["id"], shown["name"], shown["scope"], shown["in_force"]) == (made["id"], "alice", "client", False)
    assert {use["key"] for use in command("gateway", "key", "log", "--home", str(home))} == {made["id"]}
    command("gateway", "key", "revoke", made["id"], "--home", str(home), code=1)
    command("gateway", "key", "add", "bob", "--scope", "king", "--home", str(home), code=2)


def test_a_draft_of_one_maintainer_is_submitted_by_its_signed_request_alone(
    beside: tuple[LocalNetwork, Path], tmp_path: Path
) -> None:
    """Goal: the recipe of docs/rest.md works: what is saved with the draft is all that the request needs in the store."""
    network, home = beside
    where = ("--home", str(network.maintainer_home), "--network", str(network.network_file), "--bootstrap", network.bootstrap[0])
    data, graph, draft = write_data(tmp_path / "tiny.npz"), tmp_path / "model.toml", tmp_path / "draft.json"
    graph.write_text(graph_text())
    command("data", "stage", "--name", "tiny", "--licence", "CC0", str(data), *where)
    command("model", "submit", str(graph), "--unit-batches", "5", "--save-draft", str(draft), *where)
    made = command("gateway", "key", "add", "carol", "--home", str(home))
    authorization = {"Authorization": f"Bearer {made['key']}"}
    with httpx.Client(base_url=url_in(network.orchestrators[0].log), timeout=30.0) as client:
        until_status(client, "/v1/stats", 200, headers=authorization)
        envelope = json.loads(draft.read_text())["signed_request"]
        answer = client.post("/v1/jobs", json={"envelope": envelope}, headers=authorization)
        assert answer.is_success, answer.text
        job = client.get(f"/v1/jobs/{answer.json()['job_id']}", headers=authorization).json()
    assert job["state"] in ("JOB_STATE_QUEUED", "JOB_STATE_PLACING"), job  # nobody is there to learn it


def test_alone(beside: tuple[LocalNetwork, Path], tmp_path: Path) -> None:
    """Started by bootstrap alone; ended by its standard input; a second one on its address is told so."""
    network, _ = beside
    log = tmp_path / "log"
    line = [sys.executable, "-m", "dcnr.cli.dcnr", "gateway", "start", "--home", str(tmp_path)]
    line += ["--bootstrap", network.bootstrap[0]]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*line, "--listen", "127.0.0.1:0", "--until-stdin-closes"], stdin=subprocess.PIPE, stdout=file, stderr=file
        )
    try:
        url = url_in(log)
        with httpx.Client(base_url=url, timeout=30.0) as client:
            until_status(client, "/readyz", 200)
            nodes = client.get("/v1/nodes").json()["nodes"]
        assert [node["node_id"] for node in nodes] == [network.orchestrators[0].node_id]
        again = subprocess.run(
            [*line, "--listen", url.removeprefix("http://")],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=WAIT_S,
            check=False,
        )
        assert again.returncode == 4
        assert b"address_in_use" in again.stderr
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        process.wait(WAIT_S)
