"""Goal: a worker uses no more processor time than its volunteer lends, over all its replicas, and reports steps as long as they take that way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest
from worker_rig import make_job, worker

SHARE = 0.2
WATCHED_S = 4.0


def cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def test_two_replicas_keep_their_workers_share(tmp_path: Path) -> None:
    async def story() -> None:
        job = make_job(tmp_path, width=256, batch_size=32, passes=2000)
        async with worker(tmp_path) as end:
            here = {"s1": end, "s2": end}
            for vnode in here:
                await end.host(job, vnode, here, cpu_share=SHARE)
            await end.until(lambda: len(end.reports) == 2 and all(item.num_learned > 30 for item in end.reports.values()))
            loop = asyncio.get_running_loop()
            before_s, began_s = cpu_s(end.process.pid), loop.time()
            learned = end.reports["s2.1"].num_learned
            await end.until(lambda: loop.time() - began_s >= WATCHED_S)
            used_s, passed_s = cpu_s(end.process.pid) - before_s, loop.time() - began_s
            assert used_s <= 1.3 * SHARE * passed_s
            assert end.reports["s2.1"].num_learned > learned
            per_batch_s = sum(item.step_s for item in end.reports.values())
            rate = (end.reports["s2.1"].num_learned - learned) / passed_s
            assert per_batch_s == pytest.approx(1 / rate, rel=0.5), "the planner takes step times of one worker together"

    asyncio.run(story())
