"""Goal: clients of stores that one process opens share what is dear to make, and nothing of where they go or how they sign."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime

import botocore.loaders
import botocore.utils
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.s3 import S3Store, StoreAddress, when

ONE = StoreAddress("http://127.0.0.1:7001", "first", "key-one", "secret-one")
OTHER = StoreAddress("http://127.0.0.1:7002", "second", "key-two", "secret-two", region="eu-west-1")


def test_a_further_store_reads_no_description_of_the_calls_again(monkeypatch: pytest.MonkeyPatch) -> None:
    S3Store(ONE).close()

    def read(self: botocore.loaders.JSONFileLoader, path: str) -> None:
        raise AssertionError(f"{path} is read again")

    monkeypatch.setattr(botocore.loaders.JSONFileLoader, "load_file", read)
    S3Store(OTHER).close()


def test_each_store_signs_for_itself() -> None:
    one, other = S3Store(ONE), S3Store(OTHER)
    first, second, again = one.presign_get("a", 60), other.presign_get("a", 60), one.presign_get("a", 60)
    for store in (one, other):
        store.close()
    assert first.startswith("http://127.0.0.1:7001/first/a?")
    assert "key-one" in first
    assert "us-east-1" in first
    assert second.startswith("http://127.0.0.1:7002/second/a?")
    assert "key-two" in second
    assert "eu-west-1" in second
    assert "key-one" in again


@given(st.datetimes(datetime(1971, 1, 1), datetime(2400, 1, 1)))
def test_times_are_read_as_boto_reads_them(at: datetime) -> None:
    aware = at.replace(tzinfo=UTC, microsecond=at.microsecond // 1000 * 1000)
    whole = aware.replace(microsecond=0)
    forms = {
        aware.isoformat(timespec="milliseconds").replace("+00:00", "Z"): aware,
        whole.isoformat().replace("+00:00", "Z"): whole,
        whole.isoformat(): whole,
        format_datetime(whole, usegmt=True): whole,
    }
    for text, meant in forms.items():
        assert when(text) == botocore.utils.parse_timestamp(text) == meant


@pytest.mark.parametrize(
    "text", ["1700000000", 1700000000, 1.5, "20240229", "2024-02-29 10:00:00Z", "29 Feb 2024 10:00 GMT", "2024-02-29T10:00:00"]
)
def test_other_times_are_left_to_boto(text: object) -> None:
    assert when(text) == botocore.utils.parse_timestamp(text)


@pytest.mark.parametrize("text", ["", "yesterday", "2024-02-30T10:00:00Z", "Thu, 30 Feb 2024 10:00:00 GMT", None])
def test_what_is_no_time_is_refused(text: object) -> None:
    with pytest.raises(ValueError):
        when(text)


def test_answers_are_read_so() -> None:
    """Goal: boto's general parser, which takes half of the time of a list, is asked for no time that a store says."""
    store = S3Store(ONE)
    parsers = store._client._endpoint._response_parser_factory
    assert parsers.create_parser("rest-xml")._timestamp_parser is when
    store.close()
