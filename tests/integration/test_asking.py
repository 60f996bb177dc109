"""Goal: questions go through real workers and come back right: another way when a worker dies, a shallower exit when a stage is gone, compared on request."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from asking_rig import FULL, MANIFEST, MODEL, readout, refusal, town, until, values
from collector_rig import Collector
from infer_rig import BATCH, expected, samples, served
from worker_rig import DaemonEnd, workers

from dcnr.errors import InvalidInput, NotFound, Unavailable
from dcnr.graph import graph_digest, stages_of_graph
from dcnr.settings import TracingSettings
from dcnr.tracing import UNTRACED, started
from dcnr.v1 import local_pb2, orchestrator_pb2
from orchestrator.infer_streams import InferStreams
from vnode.registry import default_registry
from vnode.torch_stage import initial_state

TRACE = "5e" * 16


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


def one_chain(collector: Collector, pnodes: list[str]) -> None:
    """A trace from the orchestrator through each hop, in order: who is asked next is a child of who asks it, and each says what it computed."""
    names = Counter({"Forward": 1, "way": 1, "question": 3, "compute": 3})
    told = collector.wait(TRACE, lambda spans: Counter(span.name for span in spans) >= names)
    assert Counter(span.name for span in told) == names
    by_id = {span.span: span for span in told}
    [way] = [span for span in told if span.name == "way"]
    assert (way.service, by_id[way.parent].name, by_id[way.parent].parent) == ("dcnr-orchestrator", "Forward", "1" * 16)
    asks = way
    for pnode_id, vnode in zip(pnodes, "abc", strict=True):
        [hop] = [span for span in told if span.name == "question" and span.parent == asks.span]
        [computed] = [span for span in told if span.name == "compute" and span.parent == hop.span]
        assert (hop.service, hop.instance, computed.facts["vnode"]) == ("dcnr-worker", pnode_id, vnode)
        assert computed.facts["computed_s"] > 0
        assert computed.facts["waited_s"] >= 0
        asks = hop


def test_the_network_answers_as_one_process_and_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collector: Collector
) -> None:
    one = served(tmp_path)
    asked = samples()
    traced = ("--trace-endpoint", collector.url)

    async def scenario() -> None:
        async with town(one, monkeypatch) as here:
            nobody = await refusal(lambda: here.ask(asked))
            assert isinstance(nobody, (NotFound, Unavailable))
            assert nobody.code in ("not_trained", "no_server")
            async with workers(tmp_path, 2, traced) as (first, second):
                await here.seat(first, "a", "c")
                await here.seat(second, "b")
                here.shared.tracer = started(TracingSettings(collector.url), "dcnr-orchestrator", here.key.node_id)
                with here.shared.tracer.span("Forward", f"00-{TRACE}-{'1' * 16}-01"):
                    found = await here.ask(asked)
                here.shared.tracer.close()
                here.shared.tracer = UNTRACED
                await asyncio.to_thread(one_chain, collector, [first.pnode_id, second.pnode_id, first.pnode_id])
                np.testing.assert_array_equal(values(found), expected(one, asked))
                assert (found.exit, found.deepest, found.degraded, found.manifest_digest) == ("c", "c", False, MANIFEST)
                assert [(stage.vnode, stage.pnode_id, stage.step) for stage in found.stages] == [
                    ("a", first.pnode_id, 7), ("b", second.pnode_id, 7), ("c", first.pnode_id, 7)
                ]  # fmt: skip
                shallow = await here.ask(asked[:3], exit="a")
                np.testing.assert_array_equal(values(shallow), readout(one, "a", [asked[:3]]))
                assert not shallow.degraded
                for wrong, code in (
                    (lambda: here.ask(asked[:, 1:].copy()), "bad_shape"),
                    (lambda: here.ask(samples(BATCH + 1)), "bad_shape"),
                    (lambda: here.ask(asked.astype(np.float64)), "bad_dtype"),
                    (lambda: here.ask(asked * np.float32("nan")), "bad_input"),
                    (lambda: here.ask(asked, exit="nowhere"), "no_such_exit"),
                    (lambda: here.ask(asked, deadline_s=1e6), "bad_deadline"),
                ):
                    error = await refusal(wrong)
                    assert (type(error), error.code) == (InvalidInput, code)
                alone = await refusal(lambda: here.ask(asked, redundancy=2))
                assert alone.code == "too_few_ways"
                unserved = orchestrator_pb2.WEIGHTS_NAMED
                assert (
                    await refusal(lambda: here.ask(asked, weights=unserved, manifest_digest="f" * 64))
                ).code == "version_not_served"
                no_digest = await refusal(lambda: here.ask(asked, weights=unserved, manifest_digest="00"))
                assert (type(no_digest), no_digest.code) == (InvalidInput, "bad_id")
                figures = here.asking.figures.view()
                assert (figures.num_answered, figures.in_flight, figures.failed["bad_shape"]) == (2, 0, 2)
                assert 0 < figures.p50_s <= figures.p95_s

    asyncio.run(scenario())


def test_a_worker_killed_with_the_question_costs_a_delay_and_a_lost_tail_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = served(tmp_path)
    asked = samples()

    async def scenario() -> None:
        async with town(one, monkeypatch) as here, workers(tmp_path, 3) as (first, second, third):
            await here.seat(first, "a")
            await here.seat(second, "b", "c")
            await here.seat(third, "b", "c")
            await here.ask(asked)
            for end in (second, third):
                end.process.send_signal(signal.SIGSTOP)
            asking = [asyncio.create_task(here.ask(asked)) for _ in range(6)]
            await until(lambda: here.asking.figures.num_in_flight == len(asking))
            through = here.asking._answering.load().asked  # how they are shared out depends on how long the first one took
            living, dying = sorted((second, third), key=lambda end: through[end.pnode_id])
            dying.process.kill()
            living.process.send_signal(signal.SIGCONT)
            for found in await asyncio.gather(*asking):
                np.testing.assert_array_equal(values(found), expected(one, asked))
                assert {stage.pnode_id for stage in found.stages} == {first.pnode_id, living.pnode_id}
            assert here.asking.figures.num_ways > 1 + len(asking)
            here.gone(dying)
            living.process.kill()
            here.gone(living)
            shallow = await here.ask(asked)
            np.testing.assert_array_equal(values(shallow), readout(one, "a", [asked]))
            assert (shallow.exit, shallow.degraded, shallow.deepest) == ("a", True, "c")
            assert "b" in shallow.degraded_reason
            assert (await refusal(lambda: here.ask(asked, full_depth=True))).code == "depth_unavailable"

    asyncio.run(scenario())


def connected_to(end: DaemonEnd) -> set[int]:
    """Ports to which that worker has connections."""
    return {
        found.raddr.port
        for found in psutil.Process(end.process.pid).net_connections()
        if found.status == psutil.CONN_ESTABLISHED and found.raddr
    }


def test_who_could_take_over_is_connected_to_before_it_has_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = served(tmp_path)
    asked = samples()

    async def scenario() -> None:
        async with town(one, monkeypatch) as here, workers(tmp_path, 4) as (first, second, spare, last):
            here.queued[spare.pnode_id] = 1000  # nobody asks it
            for end, vnode in ((first, "a"), (second, "b"), (spare, "b"), (last, "c")):
                await here.seat(end, vnode)
            plans: list[object] = []
            with monkeypatch.context() as seen:
                seen.setattr(InferStreams, "open_early", lambda streams, plan: plans.append(plan))
                assert (await here.ask(asked)).stages[1].pnode_id == second.pnode_id
            assert not plans, "who asks once costs nothing beyond the way"
            assert (await here.ask(asked)).stages[1].pnode_id == second.pnode_id
            await until(lambda: spare.hello.data_port in connected_to(first) and last.hello.data_port in connected_to(spare))

    asyncio.run(scenario())


def test_a_silent_worker_is_gone_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = served(tmp_path)
    asked = samples()

    async def scenario() -> None:
        async with town(one, monkeypatch) as here, workers(tmp_path, 2) as (first, second):
            await here.seat(first, *FULL)
            await here.seat(second, *FULL)
            agreed = await here.ask(asked, redundancy=2)
            assert agreed.num_agreeing == 2
            first.process.send_signal(signal.SIGSTOP)
            for _ in range(4):  # some of them begin at the silent one
                found = await here.ask(asked)
                np.testing.assert_array_equal(values(found), expected(one, asked))
                assert {stage.pnode_id for stage in found.stages} == {second.pnode_id}
            first.process.send_signal(signal.SIGCONT)

    asyncio.run(scenario())


def test_wrong_weights_are_found_by_comparing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = served(tmp_path)
    stage = next(item for item in stages_of_graph(one.graph, default_registry()) if item.id == "c")
    wrong = tmp_path / "wrong.state"
    wrong.write_bytes(initial_state(stage, default_registry(), seed=8, model=MODEL, graph=graph_digest(one.graph), num_batches=20))
    asked = samples()

    async def scenario() -> None:
        async with town(one, monkeypatch, checked=1.0) as here, workers(tmp_path, 2) as (honest, liar):
            await here.seat(honest, *FULL)
            await here.seat(liar, "a", "b")
            order = one.seat("c")
            order.state_path = str(wrong)
            await liar.pipe.send(local_pb2.ToWorker(seat=order))
            await liar.until(lambda: "c" in liar.seats and liar.seats["c"].ready)
            here.hosted[liar.pnode_id] = (liar, FULL)
            here.beat()
            assert (await refusal(lambda: here.ask(asked, redundancy=2))).code == "answers_differ"
            told = here.shared.history.since(0, 100)[-1]
            assert told.kind == "answers_differ"
            assert {told.facts["way_1"], told.facts["way_2"]} == {honest.pnode_id, liar.pnode_id}
            await here.ask(asked)  # a sample is asked again of others after the caller has its answer
            await until(lambda: here.asking.figures.num_differing == 2)

    asyncio.run(scenario())
