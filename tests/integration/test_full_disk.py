"""Goal: on a disk that is full, as the kernel says, what was there stays whole, no half of anything keeps it full, and all goes on once there is room."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import full_disk
import pytest

from pnode.evidence import Interval
from pnode.hosted import write_whole

UNSHARED = ("unshare", "--user", "--map-root-user", "--mount")


def _may_mount() -> bool:
    try:
        return subprocess.run([*UNSHARED, "true"], capture_output=True, timeout=30, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What became of everything on a disk of a mebibyte that was filled."""
    command = [*UNSHARED, sys.executable, full_disk.__file__, str(tmp_path_factory.mktemp("disk"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(not _may_mount(), reason="needs a mount namespace of one's own; the tests behind /dev/full do not")
def test_on_a_full_disk_what_is_there_stays_and_what_comes_later_is_written(seen: Any) -> None:
    refusals = {"spool": "spool_write", "snapshot": "ENOSPC", "evidence": "ENOSPC", "home": "disk_trouble"}
    for name, said in refusals.items():
        assert seen[name]["said"].startswith(said), name
        assert "ENOSPC" in seen[name]["said"] or "No space left on device" in seen[name]["said"], name
        assert seen[name]["kept"], name
        assert seen[name]["goes_on"], name
    left = {name: seen[name]["left"] for name in refusals}
    assert left == {"spool": [], "snapshot": ["a.safetensors"], "evidence": ["begin"], "home": ["settings"]}
    assert seen["log"] == {"alive": [True] * 3, "code": 0, "before": True, "after": True}


@pytest.mark.parametrize(
    ("draft", "write"),
    [("a.draft", lambda path, data: write_whole(path / "a.safetensors", data)), (".a", lambda path, data: Interval(path).write("a", data))],
)  # fmt: skip
def test_no_draft_stays_that_the_disk_had_no_room_for(tmp_path: Path, draft: str, write: Callable[[Path, bytes], None]) -> None:
    write(tmp_path, b"old")
    (there,) = tmp_path.iterdir()
    (tmp_path / draft).symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as caught:
        write(tmp_path, b"new")
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == [there]
    assert there.read_bytes() == b"old"
    write(tmp_path, b"new")
    assert there.read_bytes() == b"new"
