"""Goal: whoever wishes for the evidence of an interval anew does not wait for, nor write beside, the gathering that nobody awaits any more."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from evidence_rig import closed_in
from test_evidence_kept import NAMES, Rig, run

from dcnr.errors import Unavailable
from dcnr.ids import digest_of
from dcnr.system import SystemClock
from pnode.gathering import Gatherings, Means
from pnode.pace import Pace


def _computes(_: object) -> Any:
    raise Unavailable("it computes", code="computes")


def test_who_wishes_for_a_bundle_again_gets_it_and_the_one_under_way_ends(tmp_path: Path) -> None:
    """Both would compute for minutes, the first for nobody."""

    async def scenario() -> None:
        rig = Rig(tmp_path, span_steps=2)
        for batch in range(3):
            await rig.learn(batch, 1024)
        await rig.end(NAMES[0])
        between = closed_in(rig.folder)[NAMES[0]] / "state-2"
        kept = between.read_bytes()
        between.write_bytes(b"to be computed")
        begun, may_end = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def computes_long(_: object) -> Any:
            loop.call_soon_threadsafe(begun.set)
            may_end.wait(60)
            return _computes(_)

        gatherings, pace = Gatherings(), Pace(SystemClock(), lambda: 0.0)
        ways = [Means(prepare, _computes, pace) for prepare in (computes_long, _computes)]
        wishes = [gatherings.gather(rig.folder, "a.1", NAMES[0], tmp_path / f"{at}.bundle", ways[at]) for at in range(2)]
        first = asyncio.create_task(wishes[0])
        await begun.wait()
        between.write_bytes(kept)
        made = await wishes[1]
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert digest_of(made.path.read_bytes()) == made.digest
        assert list(tmp_path.glob("*.bundle*")) == [made.path]
        rig.books.close()

    run(scenario)
