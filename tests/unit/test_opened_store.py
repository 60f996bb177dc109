"""Goal: an orchestrator that would give out a store's address which no PNode takes does not start, and says what to do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dcnr.errors import Refused
from dcnr.settings import OrchestratorSettings
from orchestrator.opened_store import check_public, opened_store
from trust.identity import NodeKey
from trust.network import NetworkPolicy, create_document, verify_chain

PUBLIC = "http://203.0.113.7:7790"


def policy(store: str = "", *data_hosts: str) -> NetworkPolicy:
    key = NodeKey.generate()
    document = create_document(
        key,
        name="garden",
        now_wall=1e9,
        orchestrator_ids=[key.node_id],
        store_address=store,
        store_scheme="http",
        data_hosts=data_hosts,
    )
    return verify_chain([document])


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("", policy()),
        ("", policy("203.0.113.7:7790")),
        (PUBLIC, policy("203.0.113.7:7790")),
        (f"{PUBLIC}/", policy("203.0.113.7:7790")),
        ("https://store.example.org", policy("", "store.example.org")),
    ],
)
def test_what_the_document_names_is_given_out(url: str, named: NetworkPolicy) -> None:
    check_public(url, named.document)


@pytest.mark.parametrize(
    ("url", "named", "told"),
    [
        (PUBLIC, policy(), "bytes go through orchestrators"),
        (PUBLIC, policy("203.0.113.7:7791"), "the document's address is given out"),
        ("https://203.0.113.7:7790", policy("203.0.113.7:7790"), "the document's address is given out"),
    ],
)
def test_what_it_does_not_name_is_refused_before_anything_starts(tmp_path: Path, url: str, named: NetworkPolicy, told: str) -> None:
    async def story() -> None:
        async with opened_store(OrchestratorSettings(store_public_url=url), tmp_path, named, None):
            raise AssertionError("it must not start")

    with pytest.raises(Refused) as refused:
        asyncio.run(story())
    assert refused.value.code == "store_not_named"
    assert url in refused.value.message
    assert f"dcnr network amend --store {url}" in refused.value.remedy
    assert told in refused.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_address_is_called_that() -> None:
    with pytest.raises(Refused) as refused:
        check_public("203.0.113.7:7790", policy().document)
    assert refused.value.code == "bad_url"
