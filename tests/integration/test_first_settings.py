"""Goal: what the settings name is read before anything is started: a PNode finds its network through a file of nodes alone, and a file or a component that
cannot be had ends the start with its name.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from dataclasses import replace
from pathlib import Path

import pytest

from dcnr.errors import InvalidInput
from dcnr.settings import OrchestratorSettings, PNodeSettings
from dcnr.system import SystemClock
from orchestrator.service import run_orchestrator
from pnode.daemon import Daemon
from pnode.entry import run_pnode
from pnode.supervisor import executed
from trust.identity import NodeKey
from trust.in_force import InForce
from trust.network import NetworkPolicy, create_document, verify_chain
from trust.network_file import save_policy

SILENT = executed("-c", "import sys; sys.stdin.buffer.read()")
"""A worker that waits for its end."""
WITHIN_S = 60.0


def network() -> NetworkPolicy:
    """One whose orchestrator does not run."""
    document = create_document(
        NodeKey.generate(), name="n", now_wall=SystemClock().wall(), orchestrator_ids=[NodeKey.generate().node_id]
    )
    return verify_chain([document])


def test_a_pnode_finds_its_network_through_a_file_of_nodes(tmp_path: Path) -> None:
    policy, file, found = network(), tmp_path / "nodes.txt", asyncio.Event()
    save_policy(tmp_path / "network.json", policy)
    settings = replace(PNodeSettings(), listen_host="127.0.0.1", control_port=0, data_port=0, dht_port=0)

    async def story() -> None:
        known: asyncio.Future[Daemon] = asyncio.get_running_loop().create_future()

        def ready(daemon: Daemon) -> None:
            assert daemon.status().network_id == policy.network_id
            found.set()
            daemon.request_stop(hand_over=False)

        async with asyncio.TaskGroup() as group:
            one = replace(settings, network=str(tmp_path / "network.json"))
            group.create_task(run_pnode(one, tmp_path / "one", {}, on_ready=known.set_result, worker=SILENT))
            first = await known
            file.write_text(f"# ours\n\n{first.status().node_id}@{first.status().control_address}\n")
            other = replace(settings, network_id=policy.network_id, bootstrap_file=str(file))
            try:
                await run_pnode(other, tmp_path / "other", {}, on_ready=ready, worker=SILENT)
            finally:
                first.request_stop(hand_over=False)

    asyncio.run(asyncio.wait_for(story(), WITHIN_S))
    assert found.is_set()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"bootstrap_file": "absent.txt"}, "bad_bootstrap_file"),
        ({"bootstrap_file": "bad.txt"}, "bad_bootstrap_entry"),
        ({"components": ("absent.py",)}, "component_not_found"),
        ({"components": ("bad.py",)}, "bad_component"),
    ],
)
def test_what_cannot_be_had_ends_the_start_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], code: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.txt").write_text("127.0.0.1:1\nnonsense\n")
    (tmp_path / "bad.py").write_text("")
    (name,) = (str(value if isinstance(value, str) else value[0]) for value in changes.values())  # type: ignore[index]

    async def orchestrator() -> None:
        settings = replace(OrchestratorSettings(), **changes)  # type: ignore[arg-type]
        await run_orchestrator(
            settings, tmp_path / "o", key=NodeKey.generate(), network=InForce(network()), clock=SystemClock(), rng=random.Random(1),
            random_bytes=secrets.token_bytes, stop=asyncio.Event(),
        )  # fmt: skip

    async def pnode() -> None:
        await run_pnode(replace(PNodeSettings(), **changes), tmp_path / "p", {})  # type: ignore[arg-type]

    for start in (orchestrator, pnode):
        with pytest.raises(InvalidInput) as caught:
            asyncio.run(asyncio.wait_for(start(), WITHIN_S))
        assert caught.value.code == code
        assert name in caught.value.message
        assert caught.value.remedy
    assert not (tmp_path / "o").exists()
