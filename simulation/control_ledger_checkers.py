"""What must hold of the ledger, read anew from the manifests whenever one comes under the head.

It contradicts itself nowhere, every batch counts once, nothing is cleared that waits for an audit, what was drawn and is wrong is part of no result, nor is
what was wrong and spared of a PNode that was found out after it and before the job settled.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dcnr.errors import Corrupt
from dcnr.v1 import model_pb2
from trust.folding import chronicle_of
from trust.ledger import Ledger, Verdict

if TYPE_CHECKING:
    from simulation.control_world import ControlWorld


class LedgerCheckers:
    """Follows the chain of manifests of the job that is active."""

    def __init__(self, world: ControlWorld) -> None:
        self._world = world
        self._chain: list[model_pb2.Manifest] = []
        self._intervals: dict[str, model_pb2.Contribution] = {}
        self._found_out_s: dict[str, float] = {}
        """PNodes that were found out before the job settled: when."""
        self.num_drawn = self.num_spared = self.num_failed = self.num_back = 0

    def begin(self, manifest: model_pb2.Manifest) -> None:
        """A job begins with that manifest."""
        self._chain, self._found_out_s = [manifest], {}

    def landed(self, manifest: model_pb2.Manifest, *, settles: bool) -> None:
        """The head names the next one; its job ``settles`` already, or not yet."""
        world = self._world
        self._chain.append(manifest)
        try:
            ledger = chronicle_of(self._chain, ()).ledger
        except Corrupt as error:
            world.fail("ledger", error.message)
        for one in manifest.contributions:
            if one.interval not in self._intervals:
                self._intervals[one.interval] = one
                self.num_drawn += one.verdict == Verdict.OPEN.value
                self.num_spared += one.verdict == Verdict.SPARED.value
            self.num_failed += one.verdict == Verdict.FAILED.value
            if one.verdict == Verdict.FAILED.value and not settles:
                self._found_out_s.setdefault(one.pnode_id, one.decided_unix_ms / 1000)
        self.num_back += bool(manifest.retracted) and list(manifest.retracted) != list(self._chain[-2].retracted)
        for entry in manifest.entries:
            self._cleared(ledger, entry)

    def _cleared(self, ledger: Ledger, entry: model_pb2.ManifestEntry) -> None:
        line = ledger.lines[entry.vnode]
        place = next((at for at, one in enumerate(line) if one.digest == entry.cleared.digest), None)
        is_clear = place is not None and place < ledger.num_cleared(entry.vnode)
        self._world.require(is_clear, "cleared", f"{entry.vnode}: {entry.cleared.digest[:12]} is named cleared at {place}")
        held = ledger.held(entry.vnode, len(line) - 1)
        newest = entry.working[0]
        self._world.require(
            len(line) == 1 or len(held) == newest.step, "ledger", f"{entry.vnode} has {newest.step} batches, its line {len(held)}"
        )

    def completed(self, job_id: str, reason: str) -> None:
        """A job has ended well: whatever was drawn of its result has passed, unless the deadline came first."""
        chronicle = chronicle_of(self._chain, ())
        ledger = chronicle.ledger
        spared_s = {one.interval: one.decided_s for one in chronicle.told if one.verdict is Verdict.SPARED}
        for line in ledger.lines.values():
            for interval in (ledger.intervals[name] for one in line for name in one.intervals):
                is_open = interval.verdict is Verdict.OPEN
                self._world.require(not is_open or bool(reason), "unaudited", f"{job_id} ends with {interval.name[:12]} open")
                is_wrong = interval.name in self._world.cheats and interval.verdict not in (Verdict.SPARED, Verdict.OPEN)
                self._world.require(not is_wrong, "unaudited", f"{job_id} ends with {interval.name[:12]}, which was found wrong")
                is_left = interval.name in self._world.cheats and interval.verdict is Verdict.SPARED
                is_left &= spared_s.get(interval.name, math.inf) <= self._found_out_s.get(interval.pnode_id, -math.inf)
                self._world.require(
                    not is_left or bool(reason), "left_behind", f"{job_id} ends with {interval.name[:12]} of who was found out"
                )
