"""Goal: a job that ran through a real runtime leaves results, a score and one signed statement of usage; a lost history gets back what documents say."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from orchestrator_parts import BATCHES, VNODES, small_graph
from runtime_rig import CLOCK, JOB, MAINTAINER, MODEL, Orchestrator, World, until, world

from dcnr.errors import Corrupt, InvalidInput, Unavailable
from dcnr.graph import graph_digest, graph_to_bytes
from dcnr.v1 import identity_pb2, ledger_pb2, model_pb2
from orchestrator.access import Caller
from orchestrator.admission import record_cancel
from orchestrator.changes import MAX_DECIDED
from orchestrator.history import History
from orchestrator.keeping import Keeper
from orchestrator.ledger_rpc import LedgerServicer
from orchestrator.observing import Observer
from orchestrator.track import TrackRecords
from orchestrator.usage import Books, HistoryBooks
from trust.envelope import seal
from trust.usage import open_quote, open_usage


class Desk:
    """What an orchestrator's service keeps, over its own history file."""

    def __init__(self, orchestrator: Orchestrator, path: Path, books: Books | None = None) -> None:
        self.shared, self.runtime = orchestrator.shared, orchestrator.runtime
        self.history = History(path, self.shared.key.node_id, CLOCK)
        self.shared.observer, self.shared.records = Observer(), TrackRecords()
        self.books = books or HistoryBooks(self.history, self.shared.policy.network_id)
        self.keeper = Keeper(self.shared, {MODEL: self.runtime}, self.books)
        self.service = LedgerServicer(self.shared, self.books, self.keeper.passes)
        self.service._caller = lambda context: Caller("c" * 40, maintainer=True, orchestrator=False, pnode=False)  # type: ignore[method-assign]

    async def open(self) -> asyncio.Task[None]:
        await self.history.open()
        self.shared.history = self.history
        await self.keeper.begin()
        return asyncio.create_task(self.keeper.run())

    async def close(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await self.shared.history.close()

    async def usage(self) -> list[ledger_pb2.UsageStatement]:
        answer = await self.service.ListUsage(ledger_pb2.ListUsageRequest(model=MODEL), None)
        return [open_usage(entry.statement, self.shared.policy.network_id) for entry in answer.entries]

    async def scores(self) -> ledger_pb2.ListScoresResponse:
        return await self.service.ListScores(ledger_pb2.ListScoresRequest(), None)

    def num_charged(self) -> int:
        return sum(event.kind == "usage_recorded" for event in self.shared.history.since(0, 1000))

    async def until_charged(self) -> None:
        await until(lambda: self.num_charged() > 0, "the job is charged")


async def complete(made: World) -> Orchestrator:
    await made.submit()
    holder = await made.running()
    for worker in made.workers:
        worker.learn_all()
    await made.record_all(holder)
    await until(lambda: made.end() is not None, "the job has ended")
    return holder


def test_a_job_leaves_results_scores_and_one_statement_of_usage(tmp_path: Path) -> None:
    async def story() -> None:
        async with world() as made:
            desk = Desk(made.orchestrators[0], tmp_path / "history.db")
            task = await desk.open()
            holder = await complete(made)
            await desk.until_charged()
            [said] = await desk.usage()
            assert (said.kind, said.subject, said.outcome) == (ledger_pb2.USAGE_KIND_JOB, JOB, "completed")
            assert list(said.users) == [MAINTAINER.node_id]
            assert said.orchestrator == holder.shared.key.node_id
            assert {one.vnode: one.batches for one in said.vnodes} == dict.fromkeys(VNODES, BATCHES)
            assert said.vnode_batches == BATCHES * len(VNODES)
            assert not said.cleared, "no audits were in force"
            outcome = made.end()
            assert outcome is not None
            assert said.manifest_digest == outcome.manifest_digest
            answer = await desk.scores()
            assert {one.pnode_id for one in answer.scores} == {worker.node_id for worker in made.workers}
            for one in answer.scores:
                assert one.score == round(100 * one.credibility * one.reliability) > 90
                assert one.works[0].component == "linear"
                assert one.works[0].provisioning_s.num >= 1
            await desk.close(task)

            again = Desk(holder, tmp_path / "history.db")
            task = await again.open()
            await again.keeper.rebuild()
            again.keeper.look()
            assert {one.pnode_id for one in (await again.scores()).scores} == {worker.node_id for worker in made.workers}
            assert len(await again.usage()) == 1, "a restart charges nothing twice"
            assert "usage_recorded" not in {event.kind for event in again.shared.history.since(0, 1000)}
            await again.close(task)

    asyncio.run(story())


def test_a_lost_history_gets_back_what_the_documents_say(tmp_path: Path) -> None:
    async def story() -> None:
        async with world() as made:
            holder = await complete(made)
            desk = Desk(holder, tmp_path / "new.db")
            task = await desk.open()
            await desk.until_charged()
            await until(lambda: len(desk.shared.records.scores(desk.keeper.passes)) == len(made.workers), "results are rebuilt")
            assert [said.subject for said in await desk.usage()] == [JOB]
            rebuilt = (await desk.shared.history.results())[0]
            assert (rebuilt.kind.value, rebuilt.on_time, rebuilt.component) == ("named", True, "linear")
            await desk.close(task)

    asyncio.run(story())


class Refusing:
    """Books of somebody else, which are away at first, or do not answer."""

    def __init__(self, *, hangs: bool) -> None:
        self.heard: list[identity_pb2.Envelope] = []
        self.is_away, self._hangs = True, hangs
        self.num_asked = 0

    async def record_usage(self, statement: identity_pb2.Envelope) -> None:
        self.num_asked += 1
        if self.is_away and self._hangs:
            await asyncio.Event().wait()
        if self.is_away:
            raise Unavailable("closed today", code="away")
        self.heard.append(statement)

    async def quote_cost(self, asked: object) -> int:
        return 7


@pytest.mark.parametrize(("hangs", "code"), [(False, "away"), (True, "timed_out")])
def test_other_books_take_the_place_of_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: bool, code: str) -> None:
    """They get the signed statement, are asked again when they were away or did not answer, and say what a quote is."""
    monkeypatch.setattr("orchestrator.charging.RETRY_S", 0.1)
    if hangs:
        monkeypatch.setattr("orchestrator.usage.ANSWER_S", 0.3)

    async def story() -> None:
        async with world() as made:
            books = Refusing(hangs=hangs)
            desk = Desk(made.orchestrators[0], tmp_path / "history.db", books)
            task = await desk.open()
            holder = await complete(made)

            def refusals() -> list[str]:
                events = desk.shared.history.since(0, 1000)
                return [event.facts["code"] for event in events if event.kind == "usage_not_recorded"]

            await until(lambda: books.num_asked >= 3, "they are asked again")
            books.is_away = False
            await desk.until_charged()
            assert refusals() == [code], "told once, however often they are asked"
            [statement] = books.heard
            assert open_usage(statement, made.policy.network_id).subject == JOB
            assert await desk.usage() == []
            answer = await desk.service.QuoteCost(
                ledger_pb2.QuoteCostRequest(graph=graph_to_bytes(small_graph(MODEL)), num_batches=5), None
            )
            assert open_quote(answer.quote, made.policy.network_id).vnode_batches == 7
            assert holder.runtime.is_holder
            await desk.close(task)

    asyncio.run(story())


def test_books_that_were_away_for_long_hear_of_jobs_that_no_head_names_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More jobs end meanwhile than a head keeps. Each is charged once, as if nobody had been away; a later life with such books says the same again."""
    monkeypatch.setattr("orchestrator.charging.RETRY_S", 0.1)
    others = [f"queued-{number}" for number in range(MAX_DECIDED)]

    async def story() -> None:
        async with world() as made:
            books = Refusing(hangs=False)
            desk = Desk(made.orchestrators[0], tmp_path / "history.db", books)
            task = await desk.open()
            holder = await complete(made)
            await until(lambda: books.num_asked >= 1, "the books are away")
            for job in others:
                await made.submit(job)
                cancel = model_pb2.JobCancel(network_id=made.policy.network_id, job_id=job, model=MODEL, reason="enough")
                await record_cancel(seal(identity_pb2.DOMAIN_JOB_CANCEL, cancel, MAINTAINER), policy=made.policy, store=made.store)

            def is_forgotten() -> bool:
                head = holder.runtime.head
                return head is not None and JOB not in {outcome.job_id for outcome in head.decided}

            await until(is_forgotten, "the head has other outcomes")
            books.is_away = False
            await until(lambda: len(books.heard) == 1 + len(others), "all are charged")
            said = {one.subject: one for one in (open_usage(statement, made.policy.network_id) for statement in books.heard)}
            assert sorted(said) == sorted([JOB, *others])
            assert (said[JOB].outcome, said[JOB].vnode_batches) == ("completed", BATCHES * len(VNODES))
            await desk.close(task)

            own = Desk(holder, tmp_path / "own.db")
            task = await own.open()
            await until(lambda: own.num_charged() == 1 + len(others), "a history that knows nothing gets all back")
            assert sorted(one.subject for one in await own.usage()) == sorted([JOB, *others])
            await own.close(task)

    asyncio.run(story())


def test_a_quote_is_signed_and_counts_each_batch_once_per_vnode_with_weights(tmp_path: Path) -> None:
    async def story() -> None:
        async with world() as made:
            desk = Desk(made.orchestrators[0], tmp_path / "history.db")
            graph = small_graph(MODEL)
            request = ledger_pb2.QuoteCostRequest(graph=graph_to_bytes(graph), num_batches=100)
            answer = await desk.service.QuoteCost(request, None)
            quote = open_quote(answer.quote, made.policy.network_id)
            assert (quote.vnode_batches, quote.num_vnodes, quote.graph_digest) == (200, 2, graph_digest(graph))
            assert quote.expires_unix_ms > quote.issued_unix_ms
            assert quote.vnode_samples == 0
            questions = ledger_pb2.QuoteCostRequest(
                graph=graph_to_bytes(graph), kind=ledger_pb2.USAGE_KIND_QUESTIONS, num_samples=7, redundancy=3
            )
            deep = open_quote((await desk.service.QuoteCost(questions, None)).quote, made.policy.network_id)
            assert (deep.vnode_samples, deep.num_samples, deep.num_vnodes, deep.vnode_batches) == (7 * 3 * 2, 7 * 3, 2, 0)
            questions.exit = VNODES[0]
            shallow = open_quote((await desk.service.QuoteCost(questions, None)).quote, made.policy.network_id)
            assert (shallow.vnode_samples, shallow.num_vnodes) == (7 * 3, 1)
            for field, value in (("exit", "nowhere"), ("redundancy", 100), ("num_samples", 0)):
                wrong = ledger_pb2.QuoteCostRequest()
                wrong.CopyFrom(questions)
                setattr(wrong, field, value)
                with pytest.raises(InvalidInput):
                    await desk.service.QuoteCost(wrong, None)
            with pytest.raises(InvalidInput):
                await desk.service.QuoteCost(ledger_pb2.QuoteCostRequest(graph=graph_to_bytes(graph)), None)

    asyncio.run(story())


def test_statements_that_another_key_signed_or_of_another_network_are_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with world() as made:
            history = History(tmp_path / "history.db", "me", CLOCK)
            await history.open()
            books, key = HistoryBooks(history, made.policy.network_id), made.orchestrators[0].shared.key
            good = ledger_pb2.UsageStatement(
                network_id=made.policy.network_id,
                model=MODEL,
                kind=ledger_pb2.USAGE_KIND_JOB,
                subject=JOB,
                orchestrator=key.node_id,
            )
            foreign = ledger_pb2.UsageStatement(network_id="f" * 40, orchestrator=key.node_id)
            for statement, code in (
                (seal(identity_pb2.DOMAIN_USAGE, good, MAINTAINER), "wrong_signer"),
                (seal(identity_pb2.DOMAIN_USAGE, foreign, key), "wrong_network"),
            ):
                with pytest.raises(Corrupt) as caught:
                    await books.record_usage(statement)
                assert caught.value.code == code
            tampered = seal(identity_pb2.DOMAIN_USAGE, good, key)
            tampered.payload += ledger_pb2.UsageStatement(vnode_batches=10**9).SerializeToString()
            with pytest.raises(Corrupt):
                await books.record_usage(tampered)
            with pytest.raises(Corrupt):
                open_quote(seal(identity_pb2.DOMAIN_USAGE, good, key), made.policy.network_id)
            await books.record_usage(seal(identity_pb2.DOMAIN_USAGE, good, key))
            assert len(await history.usage("", 0, 10)) == 1
            await history.close()

    asyncio.run(story())
