"""What a lost history can be given back: the chain of manifests names who learned what, so each contribution is a result in time again.

Times, failures and losses are in no document and stay lost; credibility never was in the history, it follows from the chain (`orchestrator.standings`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dcnr.v1 import model_pb2
from orchestrator.results import Kind, Result
from orchestrator.view import ViewLoader

MAX_MANIFESTS: Final = 512
"""Read on the way back, the newest."""
FIRST_NAMED: Final = frozenset(("unaudited", "open", "spared"))
"""Verdicts with which a contribution is named for the first time; later ones are about the same work."""


async def results_of_chain(
    loader: ViewLoader, model: str, newest: str, components: Mapping[str, str], now_s: float
) -> list[Result]:  # fmt: skip
    """Oldest first, without numbers; ``components`` by VNode. What has no time happened at ``now_s``. Raises NotFound, Corrupt, Unavailable."""
    chain: list[model_pb2.Manifest] = []
    while newest and len(chain) < MAX_MANIFESTS:
        manifest, _ = await loader.manifest(model, newest)
        chain.append(manifest)
        newest = manifest.parent_digest
    return [
        Result(
            0, min(now_s, one.decided_unix_ms / 1000 or now_s), one.pnode_id, model, manifest.job_id, one.vnode, one.replica,
            components.get(one.vnode, ""), "", Kind.NAMED, on_time=True,
        )
        for manifest in reversed(chain)
        for one in manifest.contributions
        if one.verdict in FIRST_NAMED and one.pnode_id
    ]  # fmt: skip
