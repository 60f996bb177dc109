"""How much of a job may be wrong without anybody having noticed, for who looks at it: from the chain alone, as whoever reads it finds it too."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.view import ModelView
from trust.exposure import Exposure
from trust.network import NetworkPolicy
from trust.unnoticed import exposure_of_job, rules_of


class Unnoticed:
    """One per model. It takes time in proportion to the chain, so once for each manifest, and only where somebody looks."""

    def __init__(self, policy: Callable[[], NetworkPolicy]) -> None:
        self._policy = policy
        self._found: tuple[str, NetworkPolicy, Exposure] | None = None

    def of(self, view: ModelView) -> Exposure | None:
        """Of the job that the manifest under the head belongs to; None where audits are not in force for it."""
        if view.chain is None:
            return None
        manifest, policy = view.head.manifest_digest, self._policy()
        if self._found is None or self._found[0] != manifest or self._found[1] is not policy:
            self._found = manifest, policy, exposure_of_job(view.chain.chronicle, rules_of(policy), view.chain.earlier)
        return self._found[2]
