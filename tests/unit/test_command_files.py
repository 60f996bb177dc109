"""Goal: a file that is named on the command line is read within a bound and written whole or not at all; what goes wrong with it is told with a way on."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcnr.cli.files import text_in, write_whole
from dcnr.errors import InvalidInput, Refused, Unavailable
from pnode.home import write_atomically


def test_a_file_is_read_up_to_its_bound_and_one_byte(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x" * 9)
    assert [len(text_in(path, most, code="bad", remedy="")) for most in (5, 9)] == [6, 9]


def test_what_is_no_text_or_not_there_is_refused_by_name(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    for path in (binary, tmp_path / "nowhere", tmp_path):
        with pytest.raises(InvalidInput, match=str(path)) as refused:
            text_in(path, 100, code="bad_draft", remedy="name another")
        assert (refused.value.code, refused.value.remedy) == ("bad_draft", "name another")


def test_a_file_replaces_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in (b"one", b"another"):
        write_whole(path, data, remedy="")
        assert path.read_bytes() == data
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("place", ["file/new", "nowhere/new", "folder"])
def test_a_place_that_takes_no_file_is_told_and_keeps_what_it_has(tmp_path: Path, place: str) -> None:
    """Also where not even the draft can be taken away."""
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(Refused) as refused:
        write_whole(tmp_path / place, b"{}", remedy="choose another")
    assert (refused.value.code, refused.value.remedy) == ("disk_trouble", "choose another")
    with pytest.raises(Unavailable) as home:
        write_atomically(tmp_path / place, b"{}")
    assert home.value.code == "disk_trouble"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "folder"]
