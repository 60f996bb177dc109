"""Goal: only who k maintainers signed for a time, or who stands in the operator's own file, is checked less; a file that is wrong is refused with its line."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcnr.errors import InvalidInput
from trust.envelope import merge_signatures
from trust.identity import NodeKey
from trust.network import NetworkPolicy, create_document, draft_successor, sign_document, verify_chain
from trust.trusted import MAX_FILE_BYTES, MAX_LINES, OwnList, is_trusted, own_list, read_own_list

NOW = 1_700_000_000.0
ALICE, BOB = NodeKey.generate(), NodeKey.generate()
SIGNED, OWN, OTHER = "a" * 40, "b" * 40, "c" * 40
NOBODY = OwnList()


def policy(until_s: float, *, lifetime_s: float = 0.0) -> NetworkPolicy:
    """A network whose two maintainers signed `SIGNED` until then."""
    first = create_document(ALICE, BOB, name="n", now_wall=NOW, orchestrator_ids=["d" * 40], threshold=2, lifetime_s=lifetime_s)
    draft = draft_successor(verify_chain([first]))
    draft.trusted_pnodes.add(node_id=SIGNED, expires_unix_ms=int(until_s * 1000))
    return verify_chain([first, merge_signatures([sign_document(draft, ALICE), sign_document(draft, BOB)])])


def test_maintainers_trust_until_their_date() -> None:
    signed = policy(NOW + 10)
    assert is_trusted(signed, NOBODY, SIGNED, NOW)
    assert not is_trusted(signed, NOBODY, SIGNED, NOW + 10)
    assert not is_trusted(signed, NOBODY, OTHER, NOW)


def test_an_expired_document_trusts_nobody_but_the_own_file_still_does() -> None:
    signed = policy(NOW + 100, lifetime_s=50.0)
    assert is_trusted(signed, NOBODY, SIGNED, NOW + 49)
    assert not is_trusted(signed, NOBODY, SIGNED, NOW + 50)
    assert is_trusted(signed, own_list(OWN.encode()), OWN, NOW + 50)


def test_the_own_file_takes_ids_dates_and_remarks() -> None:
    own = own_list(f"# mine\n\n{OWN}  # cellar\n {OTHER} 2027-01-31 # lent\n".encode())
    end_s = datetime(2027, 1, 31, tzinfo=UTC).timestamp()
    assert own.names(OWN, 1e15)
    assert own.names(OTHER, end_s - 1)
    assert not own.names(OTHER, end_s)
    assert not own.names(SIGNED, 0.0)


@pytest.mark.parametrize(
    "data",
    [b"abc", OWN[:-1].encode(), f"{OWN} soon".encode(), f"{OWN} 2027-01-31 x".encode(), f"{OWN}\n{OWN}".encode(), b"\xff\xfe",
     b"\n" * (MAX_LINES + 1), b"#" * (MAX_FILE_BYTES + 1), OWN.upper().encode() + b"G"],
)  # fmt: skip
def test_a_wrong_file_is_refused_whole(data: bytes) -> None:
    with pytest.raises(InvalidInput) as refused:
        own_list(data)
    assert refused.value.code == "bad_trusted_list"


def test_the_largest_file_is_read_and_the_wrong_line_is_named() -> None:
    assert own_list(b"\n" * (MAX_LINES - 1) + OWN.encode()).names(OWN, NOW)
    assert own_list(OWN.encode().ljust(MAX_FILE_BYTES)).names(OWN, NOW)
    with pytest.raises(InvalidInput, match="line 2:"):
        own_list(f"{OWN}\nabc".encode())


@given(st.binary(max_size=200))
def test_any_bytes_give_a_list_or_a_typed_refusal(data: bytes) -> None:
    with contextlib.suppress(InvalidInput):
        assert not own_list(data).names(OTHER, NOW)


def test_a_file_is_read_and_one_that_cannot_be_says_so(tmp_path: Path) -> None:
    (tmp_path / "list").write_text(f"{OWN}  # mine\n")
    assert read_own_list(tmp_path / "list").names(OWN, NOW)
    (tmp_path / "long").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    for name in ("missing", "long"):
        with pytest.raises(InvalidInput) as refused:
            read_own_list(tmp_path / name)
        assert refused.value.code == "bad_trusted_list"
