"""Goal: a demo takes nothing from the demo that runs in its directory, nor from anybody who has other things there, and clears what an earlier one left."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dcnr.demo.examples import Example
from dcnr.demo.run import MARK, Options, run_demo
from dcnr.errors import Refused
from dcnr.home_lock import LOCK_FILE, HomeLock, is_held

PREPARE = """
import sys
from pathlib import Path
from dcnr.home_lock import is_held

here = Path(sys.argv[1]).parent
raise SystemExit(f"held: {is_held(here)}, with {sorted(path.name for path in here.iterdir())}")
"""


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the demo is started; its own directory below has a path that is short enough for sockets."""
    directory = Path(tempfile.mkdtemp(prefix="dcnr-t-", dir="/tmp"))
    (directory / "prepare.py").write_text(PREPARE)
    monkeypatch.chdir(directory)
    yield directory
    shutil.rmtree(directory)


def demo(short: Path, directory: Path | None = None) -> int:
    """Ends with 1 as it prepares its data, and says what it found in its directory."""
    chosen = Example("none", "none", short, "CC0", "nowhere", 1.0, as_bytes=False)
    return run_demo(Options(directory=directory), environment={}, chosen=chosen)


@pytest.mark.parametrize("is_default", [True, False])
def test_another_demo_is_refused_while_one_runs(short: Path, is_default: bool) -> None:
    running = short / ".demo"
    running.mkdir()
    (running / MARK).touch()
    (running / "network.json").write_text("of the one that runs")
    with closing(HomeLock(running, "a demo", "")):
        with pytest.raises(Refused) as refused:
            demo(short, None if is_default else running)
        assert (refused.value.code, "another --directory" in refused.value.remedy) == ("already_running", True)
        assert (running / "network.json").read_text() == "of the one that runs"
        assert is_held(running)


@pytest.mark.parametrize("is_default", [True, False])
def test_a_directory_with_other_things_is_left_alone(short: Path, is_default: bool) -> None:
    own = short / ".demo"
    own.mkdir()
    (own / "thesis.txt").write_text("years of work")
    with pytest.raises(Refused) as refused:
        demo(short, None if is_default else own)
    assert refused.value.code == "directory_in_use"
    assert [path.name for path in own.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("left", [None, [], [LOCK_FILE], [MARK, "store"], [LOCK_FILE, MARK, "network.json", "store"]])
def test_what_an_earlier_demo_left_is_cleared_and_the_directory_held_to_the_end(
    short: Path, left: list[str] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: wherever the earlier one was interrupted."""
    directory = short / ".demo"
    if left is not None:
        directory.mkdir()
    for name in left or []:
        path = directory / name
        path.mkdir() if name == "store" else path.touch()
    assert demo(short) == 1
    assert f"held: True, with {[MARK, LOCK_FILE]}" in capsys.readouterr().out
    assert not is_held(directory)
    assert {MARK, LOCK_FILE} <= {path.name for path in directory.iterdir()}
