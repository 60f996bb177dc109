"""Goal: clients of stores that one process opens share what is dear to make, and nothing of where they go or how they sign."""

from __future__ import annotations

import botocore.loaders
import pytest

from dataservice.s3 import S3Store, StoreAddress

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
