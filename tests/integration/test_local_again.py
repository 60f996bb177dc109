"""Goal: a local network that is started again in its directory is the one that it was: what was asked of it before is done now."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nursery import forked, nursed
from trouble_rig import graph_text, write_data

from dcnr.errors import Refused
from dcnr.graph import graph_from_toml
from dcnr.sdk.blocking import connect
from dcnr.sdk.staging import Source
from dcnr.sdk.submission import JobOptions
from dcnr.testing import LocalNetwork, LocalPNode
from dcnr.v1 import model_pb2
from trust.identity import NodeKey
from trust.network import create_document, verify_chain
from trust.network_file import load_policy, save_policy


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose path is short enough for sockets."""
    directory = Path(tempfile.mkdtemp(prefix="dcnr-t-"))
    yield directory / "n"
    shutil.rmtree(directory)


def test_a_job_of_the_first_start_is_trained_in_the_second(short: Path) -> None:
    """Also where another program took the store's port meanwhile: then the document has a new version."""
    with LocalNetwork(short, num_orchestrators=1, pnodes=(), starting=forked) as network:
        assert network.policy is not None
        network_id = network.policy.network_id
        key = NodeKey.load(network.maintainer_key)
        with connect(network.bootstrap, network=network.network_file, key=key) as client:
            client.stage(Source(str(write_data(short / "tiny.npz")), "tiny", "CC0", "a teacher"))
            job_id = client.submit(graph_from_toml(graph_text()), [key], JobOptions("again", unit_batches=5)).job_id
        network.stop()
    (short / "store" / "ports.json").unlink()
    with LocalNetwork(short, num_orchestrators=1, pnodes=nursed([LocalPNode("p1", memory_mb=512)]), starting=forked) as network:
        again = load_policy(network.network_file)
        assert (again.network_id, again.document.version) == (network_id, 2)
        with connect(network.bootstrap, network=network.network_file) as client:
            *_, last = client.watch(job_id)
            assert (last.job.state, [vnode.report.num_learned for vnode in last.job.vnodes]) == (
                model_pb2.JOB_STATE_COMPLETED,
                [80, 80],
            )


def _no_change(directory: Path) -> None:
    """It is the number of orchestrators that differs."""


def _damage(directory: Path) -> None:
    (directory / "network.json").write_text("{")


def _another_maintainer(directory: Path) -> None:
    (directory / "maintainer" / "key.pem").unlink()
    NodeKey.generate().save(directory / "maintainer" / "key.pem")


def _lost_key(directory: Path) -> None:
    (directory / "o1" / "key.pem").unlink()


@pytest.mark.parametrize(
    ("change", "num_orchestrators", "why"),
    [
        (_no_change, 1, "2 orchestrators"),
        (_damage, 2, "it is not JSON"),
        (_another_maintainer, 2, "not the key that signed"),
        (_lost_key, 2, "no key file"),
    ],
)
def test_what_cannot_go_on_is_refused_before_anything_starts(
    short: Path, change: Callable[[Path], None], num_orchestrators: int, why: str
) -> None:
    keys = {name: NodeKey.generate() for name in ("maintainer", "o1", "o2")}
    for name, key in keys.items():
        key.save(short / name / "key.pem")
    ids = [keys[name].node_id for name in ("o1", "o2")]
    save_policy(
        short / "network.json",
        verify_chain([create_document(keys["maintainer"], name="local", now_wall=1.0, orchestrator_ids=ids)]),
    )
    change(short)
    before = {path: path.read_bytes() for path in short.rglob("*") if path.is_file()}
    network = LocalNetwork(short, num_orchestrators=num_orchestrators, pnodes=())
    with contextlib.ExitStack() as stack:
        stack.callback(network.stop, hand_over=False)
        with pytest.raises(Refused, match=why) as caught:
            network.start()
    assert (caught.value.code, "another directory" in caught.value.remedy) == ("network_kept", True)
    assert {path: path.read_bytes() for path in short.rglob("*") if path.is_file()} == before
