"""Goal: a SIGKILL at a durable write of an orchestrator, a daemon, a worker or a maintainer's command loses nothing that was accepted.

The most telling points, one process each; all of them are in ``python -m chaos crashes``.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from nursery import forked, nursed

from chaos.commands import Drives
from chaos.crashes import Networks, new_stand
from chaos.rounds import ROUNDS, Round
from chaos.stand import Stand, died_at, died_by_kill
from chaos.work import Clouds
from dcnr import crashpoints
from dcnr.testing import LocalPNode

WORK = Clouds("crash", num_vnodes=2, passes=3)
LIMIT_S = 180.0
IN_ORCHESTRATORS = "manifest.stored"
IN_WORKERS = "snapshot.renamed"
IN_DAEMONS = "desired.persisted"


@pytest.fixture
def directory() -> Iterator[Path]:
    """Short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="dcnr-c-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def round_of(point: str) -> Round:
    """The round that the long form plays."""
    return next(round_ for round_ in ROUNDS if round_.point == point)


def died(stand: Stand, note: Path, point: str) -> None:
    """A process of the network dies there, by SIGKILL."""
    stand.until(lambda: died_at(note, point) is not None, LIMIT_S, f"a process dies at {point}")
    pid = died_at(note, point)
    assert pid is not None
    stand.until(
        lambda: died_by_kill(stand, pid, {end.pid: end.code for end in stand.supervisor.ends}), LIMIT_S, f"{pid} ended by SIGKILL"
    )


def test_orchestrator_worker_and_daemon_die_in_the_middle_of_a_write(directory: Path) -> None:
    """Two jobs: in the first an orchestrator dies with a manifest that no head names, and a worker with a state that no daemon knows of; in the
    second a daemon dies with a desired state that it has not begun to obey.
    """
    notes = {point: directory / point for point in (IN_ORCHESTRATORS, IN_WORKERS, IN_DAEMONS)}
    additions = {
        **{name: crashpoints.setting(IN_ORCHESTRATORS, notes[IN_ORCHESTRATORS]) for name in ("o1", "o2")},
        "p1": crashpoints.setting(IN_WORKERS, notes[IN_WORKERS]),
        "p2": crashpoints.setting(IN_WORKERS, notes[IN_WORKERS]),
    }
    pnodes = nursed((LocalPNode("p1", memory_mb=512), LocalPNode("p2", memory_mb=512)))
    with contextlib.ExitStack() as stack:
        stand = new_stand(stack, num_orchestrators=2, pnodes=pnodes, additions=additions, starting=forked)
        stand.stage(WORK)
        first = stand.submit(WORK, "first")
        for point in (IN_ORCHESTRATORS, IN_WORKERS):
            died(stand, notes[point], point)
        lineages = stand.completed(first, WORK.name, LIMIT_S)
        assert [(lineage.num_batches, lineage.exact) for lineage in lineages] == [(WORK.num_batches, True)] * WORK.num_vnodes
        stand.again(stand.network.pnodes, crashpoints.setting(IN_DAEMONS, notes[IN_DAEMONS]))
        second = stand.submit(WORK, "second")
        died(stand, notes[IN_DAEMONS], IN_DAEMONS)
        lineages = stand.completed(second, WORK.name, LIMIT_S)
        assert [lineage.exact for lineage in lineages] == [True] * WORK.num_vnodes


@pytest.mark.parametrize("point", ["key.drafted", "key.linked", "demo.emptied", "store.kept", "apikey.written", "apikey.committed"])
def test_a_command_dies_and_does_its_work_when_it_is_run_again(point: str) -> None:
    with Networks() as networks:
        assert networks.play(round_of(point))["reached_s"] >= 0


def test_a_round_that_is_not_reached_fails() -> None:
    """A round must not pass because nothing died."""
    from dcnr.errors import Unavailable

    never = Round("key.linked", round_of("key.linked").where, times=2)
    with pytest.raises(Unavailable) as caught:
        Drives(None, 0).play(never)
    assert caught.value.code == "not_killed"
