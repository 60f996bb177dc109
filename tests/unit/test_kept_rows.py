"""Goal: a measurement that is broken off loses no row but the one it was at, and measures again only what follows from something else."""

from __future__ import annotations

from pathlib import Path

from benchmarks.kept import Kept, key_of
from benchmarks.result import Row


def test_a_row_is_measured_once_and_again_where_its_line_was_torn(tmp_path: Path) -> None:
    measured: list[str] = []

    def row(kept: Kept, key: str) -> Row:
        return kept.row(key, lambda: measured.append(key) or {"key": key})  # type: ignore[func-returns-value]

    path = tmp_path / "kept" / "rows.jsonl"
    first = Kept(path)
    assert [row(first, key) for key in "aba"] == [{"key": "a"}, {"key": "b"}, {"key": "a"}]
    path.write_text(path.read_text()[:-3])
    for _ in range(2):
        again = Kept(path)
        assert [row(again, key) for key in "abc"] == [{"key": "a"}, {"key": "b"}, {"key": "c"}]
    assert measured == ["a", "b", "b", "c"]


def test_a_key_tells_parts_apart_wherever_they_part() -> None:
    assert len({key_of(parts) for parts in ([b"ab", b"c"], [b"a", b"bc"], [b"abc"], [b"abc", b""], [])}) == 5
    assert key_of([b"ab", b"c"]) == key_of(iter([b"ab", b"c"]))
