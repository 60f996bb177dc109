"""Goal: answered questions are counted by client, within bounds; each account is told once, and none is lost by books that are away."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dcnr.errors import Corrupt, InvalidInput, Unavailable
from dcnr.system import SystemClock
from dcnr.v1 import identity_pb2, ledger_pb2, orchestrator_pb2
from orchestrator import history as history_module
from orchestrator.access import Caller
from orchestrator.history import History
from orchestrator.metering import MAX_ACCOUNTS, STRANGERS_ACCOUNTS, Client, Meter, Metering, check_on_behalf
from orchestrator.usage import HistoryBooks
from trust.envelope import seal
from trust.identity import NodeKey
from trust.usage import open_quote, open_usage

NETWORK, MODEL = "n", "toy"
KEY = NodeKey.generate()


def caller(name: str, *, orchestrator: bool = False) -> Caller:
    return Caller(name, maintainer=False, orchestrator=orchestrator, pnode=False)


def answer(num_samples: int = 3, *, num_stages: int = 2, num_agreeing: int = 1) -> orchestrator_pb2.ForwardResponse:
    return orchestrator_pb2.ForwardResponse(
        model=MODEL, output=orchestrator_pb2.NamedTensor(shape=[num_samples, 4]), num_agreeing=num_agreeing,
        stages=[orchestrator_pb2.StageAnswer(vnode=f"v{number}") for number in range(num_stages)],
    )  # fmt: skip


class Books:
    """Of somebody else; ``trouble`` is raised as long as it is there."""

    def __init__(self) -> None:
        self.trouble: Exception | None = None
        self.asked: list[bytes] = []
        self.taken: list[ledger_pb2.UsageStatement] = []

    async def record_usage(self, statement: identity_pb2.Envelope) -> None:
        self.asked.append(statement.SerializeToString(deterministic=True))
        if self.trouble is not None:
            raise self.trouble
        self.taken.append(open_usage(statement, NETWORK))

    async def quote_cost(self, asked: object) -> int:
        return 0


def metering(books: Any, told: list[str] | None = None) -> Metering:
    numbers = count()
    shared: Any = SimpleNamespace(
        key=KEY, policy=SimpleNamespace(network_id=NETWORK), gateways=frozenset(), clock=SystemClock(),
        random_bytes=lambda size: next(numbers).to_bytes(size, "big"),
        history=SimpleNamespace(say=lambda kind, *rest, **facts: told.append(facts["code"]) if told is not None else None),
    )  # fmt: skip
    return Metering(shared, books)


def test_answers_of_a_client_are_one_signed_statement() -> None:
    async def story() -> None:
        books = Books()
        counted = metering(books)
        counted.answered(caller("a"), "", answer(3))
        counted.answered(caller("a"), "", answer(5, num_stages=3, num_agreeing=2))
        counted.answered(caller("g"), "key-1", answer(1))
        counted.wrote(caller("g"), "key-2", orchestrator_pb2.GenerateResponse(model=MODEL, stages=answer().stages))
        counted.answered(caller("o", orchestrator=True), "", answer(100))
        await counted.tell()
        await counted.tell()
        found = [
            (list(one.users), one.on_behalf, one.num_answers, one.num_samples, one.vnode_samples, one.kind) for one in books.taken
        ]
        kind = ledger_pb2.USAGE_KIND_QUESTIONS
        assert found == [
            (["a"], "", 2, 8, 3 * 2 + 5 * 3 * 2, kind), (["g"], "key-1", 1, 1, 2, kind), (["g"], "key-2", 1, 1, 2, kind)
        ]  # fmt: skip
        assert len({one.subject for one in books.taken}) == 3
        assert all(one.subject.startswith(one.users[0]) and 0 < one.since_unix_ms <= one.issued_unix_ms for one in books.taken)

    asyncio.run(story())


def test_books_that_are_away_hear_the_same_words_again_and_then_what_came_since() -> None:
    async def story() -> None:
        books, told = Books(), list[str]()
        counted = metering(books, told)
        books.trouble = Unavailable("closed", code="away")
        counted.answered(caller("a"), "", answer(3))
        await counted.tell()
        counted.answered(caller("a"), "", answer(4))
        await counted.tell()
        assert told == ["away"], "said once"
        books.trouble = None
        await counted.tell()
        assert len(set(books.asked)) == 1, "one subject, however often it is told"
        await counted.tell()
        assert [one.num_samples for one in books.taken] == [3, 4]

    asyncio.run(story())


def test_accounts_are_bounded_and_nothing_goes_uncounted() -> None:
    meter = Meter()
    for number in range(2 * MAX_ACCOUNTS):
        meter.count(Client(MODEL, f"s{number}"), is_known=False, num_samples=1, vnode_samples=1, now_unix_ms=number)
    for number in range(2 * MAX_ACCOUNTS):
        meter.count(Client(MODEL, f"m{number}"), is_known=True, num_samples=1, vnode_samples=1, now_unix_ms=number)
    found = meter.take({}, 3 * MAX_ACCOUNTS)
    assert len(found) == MAX_ACCOUNTS
    assert sum(one.num_answers for one in found.values()) == 4 * MAX_ACCOUNTS
    assert sum(one.node_id.startswith("s") for one in found) == STRANGERS_ACCOUNTS
    assert found[Client(MODEL, "")].num_answers == 4 * MAX_ACCOUNTS - (MAX_ACCOUNTS - 1)


def test_without_room_a_gateway_still_pays_for_its_keys() -> None:
    meter = Meter()
    meter.count(Client(MODEL, "g"), is_known=False, num_samples=1, vnode_samples=1, now_unix_ms=1)
    for number in range(STRANGERS_ACCOUNTS):
        meter.count(Client(MODEL, "g", f"key-{number}"), is_known=False, num_samples=1, vnode_samples=1, now_unix_ms=1)
    found = meter.take({}, MAX_ACCOUNTS)
    assert found[Client(MODEL, "g")].num_answers == 2
    assert Client(MODEL, "") not in found


def test_books_that_stay_away_hold_no_more_than_the_bound() -> None:
    async def story() -> None:
        books = Books()
        counted = metering(books)
        books.trouble = Unavailable("closed", code="away")
        for number in range(6 * STRANGERS_ACCOUNTS):
            counted.answered(caller(f"s{number}"), "", answer(1))
            if number % 100 == 0:
                await counted.tell()
        books.trouble = None
        for _ in range(4):
            await counted.tell()
        assert sum(one.num_answers for one in books.taken) == 6 * STRANGERS_ACCOUNTS
        assert len(books.taken) <= MAX_ACCOUNTS + STRANGERS_ACCOUNTS + 1

    asyncio.run(story())


@pytest.mark.parametrize("text", ["x" * 65, "a\nb", "\x00"])
def test_for_whom_is_short_and_printable(text: str) -> None:
    assert check_on_behalf("key-7") == "key-7"
    with pytest.raises(InvalidInput):
        check_on_behalf(text)


def test_questions_push_no_job_out_of_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "MAX_RESULT_ROWS", 5)
    monkeypatch.setattr(history_module, "PRUNE_EVERY", 1)

    async def story() -> None:
        history = History(tmp_path / "history.db", "me", SystemClock())
        await history.open()
        books = HistoryBooks(history, NETWORK)
        job = ledger_pb2.UsageStatement(
            network_id=NETWORK, model=MODEL, kind=ledger_pb2.USAGE_KIND_JOB, subject="job", orchestrator=KEY.node_id
        )
        await books.record_usage(seal(identity_pb2.DOMAIN_USAGE, job, KEY))
        counted = metering(books)
        for number in range(12):
            counted.answered(caller(f"c{number}"), "", answer(1))
            await counted.tell()
            await history.flush()
        rows = await history.usage(MODEL, 0, 100)
        assert len(rows) == 1 + 5
        assert rows[0][0] == 1
        own = await history.usage(MODEL, 0, 100, ("USAGE_KIND_JOB", "c11"))
        found = [open_usage(identity_pb2.Envelope.FromString(data), NETWORK) for _, data in own]
        assert [list(one.users) for one in found] == [[], ["c11"]]
        await history.close()

    asyncio.run(story())


def test_what_was_used_or_quoted_is_the_word_of_the_orchestrator_that_it_names() -> None:
    other = NodeKey.generate()
    used = ledger_pb2.UsageStatement(network_id=NETWORK, orchestrator=KEY.node_id, subject="s")
    quoted = ledger_pb2.CostQuote(network_id=NETWORK, orchestrator=KEY.node_id, vnode_batches=3)
    assert open_usage(seal(identity_pb2.DOMAIN_USAGE, used, KEY), NETWORK) == used
    assert open_quote(seal(identity_pb2.DOMAIN_QUOTE, quoted, KEY), NETWORK) == quoted
    for opened, domain, said, wrong_domain in (
        (open_usage, identity_pb2.DOMAIN_USAGE, used, identity_pb2.DOMAIN_QUOTE),
        (open_quote, identity_pb2.DOMAIN_QUOTE, quoted, identity_pb2.DOMAIN_USAGE),
    ):
        for envelope, network, code in (
            (seal(domain, said, other), NETWORK, "wrong_signer"),
            (seal(domain, said, KEY), "another", "wrong_network"),
            (seal(wrong_domain, said, KEY), NETWORK, "wrong_domain"),
        ):
            with pytest.raises(Corrupt) as refused:
                opened(envelope, network)
            assert refused.value.code == code
