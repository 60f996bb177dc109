"""Goal: what audits are drawn with is made once, kept over restarts, and used by nobody else."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

import pytest

from dcnr.errors import Corrupt, Refused
from trust.draw_secret import load_or_create_secret


def test_a_secret_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "home" / "draw.key"
    first, again = (load_or_create_secret(path, secrets.token_bytes) for _ in range(2))
    assert first.number(b"p", "x") == again.number(b"p", "x")
    assert [stat.S_IMODE(one.stat().st_mode) for one in (path, path.parent)] == [0o600, 0o700]
    assert [one.name for one in path.parent.iterdir()] == ["draw.key"]
    other = load_or_create_secret(tmp_path / "draw.key", secrets.token_bytes)
    assert other.number(b"p", "x") != first.number(b"p", "x")


def test_one_that_others_could_read_or_that_is_damaged_is_not_drawn_with(tmp_path: Path) -> None:
    path = tmp_path / "draw.key"
    load_or_create_secret(path, secrets.token_bytes)
    path.chmod(0o644)
    with pytest.raises(Refused, match="read by others"):
        load_or_create_secret(path, secrets.token_bytes)
    path.chmod(0o600)
    path.write_bytes(b"short")
    with pytest.raises(Corrupt):
        load_or_create_secret(path, secrets.token_bytes)


def test_a_longer_file_is_damaged_too(tmp_path: Path) -> None:
    path = tmp_path / "draw.key"
    path.write_bytes(bytes(33))
    path.chmod(0o600)
    with pytest.raises(Corrupt):
        load_or_create_secret(path, secrets.token_bytes)


def test_a_place_that_takes_no_secret_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Refused) as refused:
        load_or_create_secret(tmp_path / "file" / "draw.key", secrets.token_bytes)
    assert refused.value.code == "key_unusable"


def test_one_that_is_there_is_read_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "draw.key"
    load_or_create_secret(path, secrets.token_bytes)

    def read_only(*_: object) -> None:
        raise PermissionError(1, "a read-only file system")

    monkeypatch.setattr(os, "link", read_only)
    assert load_or_create_secret(path, secrets.token_bytes)
    with pytest.raises(Refused):
        load_or_create_secret(tmp_path / "other", secrets.token_bytes)


def test_of_two_processes_that_make_a_secret_the_faster_ones_is_drawn_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, link = tmp_path / "draw.key", os.link

    def late(draft: Path, name: Path) -> None:
        name.write_bytes(b"f" * 32)
        name.chmod(0o600)
        link(draft, name)

    monkeypatch.setattr(os, "link", late)
    found = load_or_create_secret(path, secrets.token_bytes)
    assert found.number(b"p", "x") == load_or_create_secret(path, secrets.token_bytes).number(b"p", "x")
    assert path.read_bytes() == b"f" * 32
    assert [one.name for one in tmp_path.iterdir()] == ["draw.key"]
