"""The network document in force in one process: everybody reads it here at the moment of use, and nobody keeps a copy.

A newer version is taken over while the process runs. It is verified against the one in force, kept for the next start, and then in force for everybody at
once. How running replicas were set up follows the version with which the process began (`NetworkPolicy.begun`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dcnr.errors import DcnrError, for_others
from dcnr.v1 import identity_pb2
from trust.network import NetworkPolicy, claimed_versions


@dataclass(frozen=True, slots=True)
class Amended:
    """A newer version is in force."""

    before: NetworkPolicy
    now: NetworkPolicy
    trouble: str
    """Why it could not be kept for the next start; empty if it was."""

    @property
    def removed(self) -> frozenset[str]:
        """Orchestrators that are listed no longer."""
        return self.before.orchestrator_ids - self.now.orchestrator_ids

    def __str__(self) -> str:
        trouble = f"; it could not be kept: {self.trouble}" if self.trouble else ""
        return f"version {self.now.document.version} of the network document, after version {self.before.document.version}{trouble}"


class InForce:
    """See the module. ``keep`` puts a newer version where the next start finds it, or raises; it is in force all the same."""

    def __init__(self, policy: NetworkPolicy, keep: Callable[[NetworkPolicy], None] = lambda policy: None) -> None:
        self._policy, self._begun, self._keep = policy, policy.document, keep
        self._followers: list[Callable[[Amended], None]] = []

    @property
    def policy(self) -> NetworkPolicy:
        """The newest version known here."""
        return self._policy

    @property
    def version(self) -> int:
        """Its number."""
        return int(self._policy.document.version)

    def follow(self, callback: Callable[[Amended], None]) -> None:
        """Calls back whenever a newer version has come in force, in the order of asking. ``callback`` must not raise."""
        self._followers.append(callback)

    def take(self, history: Sequence[identity_pb2.Envelope], *, now_wall: float) -> bool:
        """Whether the chain ends in a newer version, which is in force from now on. Where it is refused nothing changes.

        Raises Corrupt, Refused, Stale (``document_expired``), as `NetworkPolicy.successor`.
        """
        if not history or claimed_versions(history[-1:])[0] <= self.version:
            return False
        before, newer = self._policy, self._policy.successor(history, now_wall=now_wall)
        trouble = ""
        try:
            self._keep(newer)
        except DcnrError as error:
            trouble = for_others(error)
        self._policy = replace(newer, begun=self._begun)
        for callback in self._followers:
            callback(Amended(before, self._policy, trouble))
        return True
