"""Goal: one process at a time holds a home, whoever dies frees it, and looking takes nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dcnr.errors import Refused, Unavailable
from dcnr.home_lock import HomeLock, is_held

HOLDER = """
import sys
from pathlib import Path
from dcnr.home_lock import HomeLock

held = HomeLock(Path(sys.argv[1]), "a PNode", "")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_home_has_one_holder(tmp_path: Path) -> None:
    assert not is_held(tmp_path / "home")
    first = HomeLock(tmp_path / "home", "a PNode", "see `pnode status`")
    assert is_held(tmp_path / "home")
    with pytest.raises(Refused, match="a PNode already runs on") as refused:
        HomeLock(tmp_path / "home", "a PNode", "see `pnode status`")
    assert (refused.value.code, refused.value.remedy) == ("already_running", "see `pnode status`")
    first.close()
    first.close()
    assert not is_held(tmp_path / "home")
    HomeLock(tmp_path / "home", "a PNode", "").close()


def test_who_is_killed_frees_it(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline()
        assert is_held(tmp_path)
        holder.kill()
    assert not is_held(tmp_path)


def test_a_home_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="cannot be used") as error:
        HomeLock(tmp_path / "file" / "home", "a PNode", "")
    assert error.value.code == "home_unusable"
