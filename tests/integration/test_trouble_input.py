"""Goal: a graph, data set or job that is wrong is refused where it is given, by name, field and line, with the next step; nothing of it is stored."""

from __future__ import annotations

import contextlib
import io
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nursery import nursed
from trouble_rig import asked, graph_text, until, write_data

from dcnr.cli import dcnr as maintainer
from dcnr.cli import errors
from dcnr.graph import graph_from_toml, stages_of_graph
from dcnr.limits import MIB
from dcnr.sdk.blocking import Client, connect
from dcnr.sdk.staging import Source
from dcnr.sdk.submission import JobOptions
from dcnr.testing import LocalNetwork, LocalPNode
from dcnr.v1 import model_pb2, orchestrator_pb2
from orchestrator.costs import stage_costs
from trust.envelope import seal
from trust.identity import NodeKey
from vnode.registry import default_registry


@pytest.fixture(scope="module")
def network(small_network: LocalNetwork) -> Iterator[LocalNetwork]:
    """With one PNode that lends less than any VNode needs: 34 MiB beside what the daemon takes."""
    process = small_network.add_pnode(*nursed([LocalPNode("little", memory_mb=290)]))
    yield small_network
    small_network.kill(process)
    small_network.pnodes.remove(process)


@pytest.fixture(scope="module")
def client(network: LocalNetwork) -> Iterator[Client]:
    with connect(network.bootstrap, network=network.network_file, key=NodeKey.load(network.maintainer_key)) as opened:
        opened.stage(Source(str(write_data(network.directory / "tiny.npz")), "tiny", "CC0", "a teacher"))
        yield opened


def said(*arguments: str, code: int, network: LocalNetwork | None = None) -> str:
    """What a maintainer's command says on standard error, in this process; it must end with ``code``."""
    where = (
        ()
        if network is None
        else ("--network", str(network.network_file), "--bootstrap", network.bootstrap[0], "--home", str(network.maintainer_home))
    )
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        ended = errors.exit_code(maintainer.app, "dcnr", [*arguments, *where])
    assert ended == code, f"{ended}: {out.getvalue()}{err.getvalue()}"
    return err.getvalue()


def line_of(text: str, vnode: str, field: str) -> int:
    """The line (from 1) of a VNode's field, or of its id where it has no line of its own."""
    lines = text.splitlines()
    own = lines.index(f'id = "{vnode}"')
    block = range(own, next((at for at in range(own, len(lines)) if lines[at].startswith("[[")), len(lines)))
    return next((at for at in block if lines[at].startswith(f"{field} =")), own) + 1


GRAPHS: dict[str, tuple[Callable[[str], str], str, str]] = {
    "cycle": (lambda text: text.replace('inputs = ["input"]', 'inputs = ["b"]'), "a", "inputs"),
    "shape mismatch": (lambda text: text.replace('"linear"\nconfig = { out_features = 32 }', '"conv_block"\nconfig = { out_channels = 4 }'), "a", "inputs"),
    "unknown component": (lambda text: text.replace('component = "linear"', 'component = "linaer"', 1), "a", "component"),
    "missing objective": (lambda text: text.replace('objective = { name = "local_ce" }\n', "", 1), "a", "objective"),
    "too large": (lambda text: text.replace("out_features = 16", "out_features = 1000000000000"), "b", "out_features"),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(GRAPHS))
def test_a_wrong_graph_is_refused_with_vnode_field_and_line(case: str, tmp_path: Path) -> None:
    change, vnode, field = GRAPHS[case]
    text = change(graph_text())
    assert text != graph_text()
    (tmp_path / "model.toml").write_text(text)
    told = said("model", "validate", str(tmp_path / "model.toml"), code=2)
    assert f"{tmp_path / 'model.toml'}:{line_of(text, vnode, field)}:" in told
    assert field in told
    assert f"  why: {'unknown_component' if case == 'unknown component' else 'bad_graph'}" in told


def test_a_graph_file_without_end_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "model.toml").write_text(graph_text() + "#" * (1 << 20))
    told = said("model", "validate", str(tmp_path / "model.toml"), code=2)
    assert "1048576" in told


def npz(path: Path, **changed: Any) -> Path:
    """The tiny data set with other arrays."""
    with np.load(write_data(path)) as file:
        arrays = {name: file[name] for name in file.files} | changed
    np.savez(path, **arrays)
    return path


DATA: dict[str, tuple[dict[str, Any], str]] = {
    "lengths": ({"train_y": np.zeros(3, np.int64)}, "train"),
    "shapes": ({"test_x": np.zeros((64, 9), np.float32)}, "test"),
    "targets": ({"train_y": np.full(640, -1)}, "train"),
    "not finite": ({"train_x": np.full((640, 16), np.nan, np.float32)}, "train"),
}


@pytest.mark.parametrize("case", sorted(DATA))
def test_wrong_arrays_are_refused_by_split(case: str, network: LocalNetwork, client: Client, tmp_path: Path) -> None:
    arrays, split = DATA[case]
    path = npz(tmp_path / "wrong.npz", **arrays)
    told = said("data", "stage", str(path), "--name", "wrong", "--licence", "CC0", code=2, network=network)
    assert split in told
    assert client.list_datasets("wrong") == []


@pytest.mark.parametrize(
    ("name", "flags", "code", "why"),
    [
        ("data.csv", (), 2, "--format"),
        ("data.csv", ("--format", "npz"), 1, "not a zip file"),
        ("tiny.npz", ("--sha256", "ab" * 32), 1, "sha256"),
        ("none.npz", (), 2, "none.npz"),
        ("broken.npz", (), 1, "broken.npz"),
    ],
)
def test_a_wrong_file_is_refused_by_name(
    name: str, flags: tuple[str, ...], code: int, why: str, network: LocalNetwork, client: Client, tmp_path: Path
) -> None:
    write_data(tmp_path / "tiny.npz")
    (tmp_path / "data.csv").write_text("1,2,3\n")
    (tmp_path / "broken.npz").write_bytes((tmp_path / "tiny.npz").read_bytes()[:1000])
    told = said("data", "stage", str(tmp_path / name), "--name", "wrong", "--licence", "CC0", *flags, code=code, network=network)
    assert why in told.lower()
    assert "  next: " in told
    assert client.list_datasets("wrong") == []


def test_a_graph_that_does_not_fit_its_data_is_refused(network: LocalNetwork, client: Client, tmp_path: Path) -> None:
    (tmp_path / "model.toml").write_text(graph_text(name="misfit").replace("shape = [16]", "shape = [17]"))
    told = said("model", "submit", str(tmp_path / "model.toml"), code=2, network=network)
    assert "[17]" in told
    assert "[16]" in told
    (tmp_path / "model.toml").write_text(graph_text(name="misfit", dataset="absent"))
    told = said("model", "submit", str(tmp_path / "model.toml"), code=1, network=network)
    assert "absent" in told
    assert "next: dcnr data stage" in told
    assert client.jobs("misfit") == []


def test_a_job_signed_by_too_few_or_by_a_stranger_is_refused(network: LocalNetwork, client: Client, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger.pem"
    NodeKey.generate().save(stranger)
    (tmp_path / "model.toml").write_text(graph_text(name="unsigned"))
    told = said("model", "submit", str(tmp_path / "model.toml"), "--key", str(stranger), code=5, network=network)
    assert "  next: " in told
    draft = client.prepare(graph_from_toml(graph_text(name="unsigned")), JobOptions(idempotency_key="u"))
    (tmp_path / "draft.json").write_text(draft.to_json())
    told = said("model", "submit", "--draft", str(tmp_path / "draft.json"), code=5, network=network)
    assert "too_few_signatures" in told
    assert "dcnr model sign" in told.partition("next: ")[2]
    assert client.jobs("unsigned") == []


@pytest.mark.parametrize("case", ["another network", "a stranger", "changed after signing"])
def test_orchestrators_judge_requests_themselves(case: str, network: LocalNetwork, client: Client) -> None:
    """Whatever a client forgot to check."""
    from dcnr.errors import DcnrError
    from dcnr.v1 import identity_pb2
    from dcnr.v1.orchestrator_pb2_grpc import OrchestratorServiceStub

    key = NodeKey.load(network.maintainer_key)
    draft = client.prepare(graph_from_toml(graph_text(name="foreign")), JobOptions(idempotency_key="f"))
    request = model_pb2.JobRequest.FromString(draft.request.SerializeToString())
    if case == "another network":
        request.network_id = "ab" * 20
    envelope = seal(identity_pb2.DOMAIN_JOB_REQUEST, request, NodeKey.generate() if case == "a stranger" else key)
    if case == "changed after signing":
        request.num_batches += 1
        envelope.payload = request.SerializeToString(deterministic=True)
    inner = client._client
    with pytest.raises(DcnrError) as caught:
        client._loop.run(
            inner.orchestrators.call(OrchestratorServiceStub, "SubmitJob", orchestrator_pb2.SubmitJobRequest(request=envelope))
        )
    assert caught.value.code in {"wrong_network", "unsigned_job", "bad_signature"}
    assert client.jobs("foreign") == []


def test_a_pnode_that_is_too_small_is_told_and_says_what_is_needed(network: LocalNetwork, client: Client, tmp_path: Path) -> None:
    """b has 3000 x 3000 weights, with as many gradients and momenta: more than 100 MiB."""
    until(lambda: any(node.attached and node.capability.gflops > 0 for node in client.nodes()))
    text = (
        graph_text(name="huge")
        .replace("out_features = 32", "out_features = 3000")
        .replace("out_features = 16", "out_features = 3000")
    )
    (tmp_path / "model.toml").write_text(text)
    options = JobOptions(idempotency_key="huge", unit_batches=20)
    key = NodeKey.load(network.maintainer_key)
    job_id = client.submit(graph_from_toml(text), [key], options).job_id

    def explained() -> str:
        lines = client.explain(orchestrator_pb2.ExplainRequest(model="huge", vnode="b"))
        return "\n".join(f"{line.verdict}: {line.reason} {dict(line.inputs)}" for line in lines)

    until(lambda: "waiting" in explained() and "rejected" in explained() and "MiB" in explained(), say=explained)
    little = next(process for process in network.pnodes if process.name == "little")

    def told() -> dict[str, str]:
        line: dict[str, str] = json.loads(asked("why", "--json", "--home", str(little.home)))["lines"][0]
        return line

    until(lambda: told()["code"] == "too_small", say=lambda: json.dumps(told()))
    least = min(
        stage_costs(stages_of_graph(graph_from_toml(text), default_registry()), default_registry(), 16),
        key=lambda cost: cost.memory_bytes,
    )
    assert f"huge: no VNode needs less than {math.ceil(least.memory_bytes / MIB)} MiB of memory ({least.vnode})" in told()["reason"]
    assert "--memory-mb" in told()["change"]
    of_it = client.explain(orchestrator_pb2.ExplainRequest(node_id=NodeKey.load(little.home / "key.pem").node_id))
    why = {line.subject: line.reason for line in of_it if line.verdict == "rejected" and line.inputs["model"] == "huge"}
    assert set(why) == {"a", "b"}
    assert all("MiB of memory" in reason for reason in why.values()), why
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        where = ["--network", str(network.network_file), "--bootstrap", network.bootstrap[0]]
        assert errors.exit_code(maintainer.app, "dcnr", ["model", "plan", "--json", str(tmp_path / "model.toml"), *where]) == 0
    planned = json.loads(out.getvalue())
    assert "b" in planned["plan"]["waiting"]
    assert any("memory" in refused["reason"] for refused in planned["plan"]["rejections"])
    client.cancel(job_id, [key], model="huge")  # others use this network
    until(lambda: client.job(job_id, "huge").state == model_pb2.JOB_STATE_CANCELLED)
