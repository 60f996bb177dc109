"""Goal: real workers answer questions with named states and with live weights, exactly as one process would; what fails says so at once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from infer_rig import BATCH, WITHIN_S, Line, Served, allow, expected, line, samples, seat, served
from relay_rig import dialling, relays, tell_of_relays
from worker_rig import NETWORK_ID, DaemonEnd, Job, make_job, worker, workers

from dcnr import limits
from dcnr.v1 import orchestrator_pb2, vnode_pb2
from trust.identity import NodeKey
from vnode.vocabulary import Mode

TRIES = 6


def test_two_workers_answer_with_named_states_as_one_process_does(tmp_path: Path) -> None:
    """The second one is dialled by nobody: questions reach it through a relay, from the caller and from the first one."""
    one, key = served(tmp_path), NodeKey.generate()
    asked = samples()

    async def scenario() -> None:
        async with (
            relays(NETWORK_ID, key=key) as known,
            dialling(NETWORK_ID, key, known) as dialer,
            workers(tmp_path, 2) as (first, second),
        ):
            await tell_of_relays(first, known, outbound_only=False)
            await tell_of_relays(second, known, outbound_only=True)
            await allow(key, first, second)
            await seat(first, one, "a", "c")
            await seat(second, one, "b")
            hops = [one.hop("a", first), one.hop("b", second), one.hop("c", first, answers=True)]
            async with line(key, first) as asking:
                question = await asking.ask(key.node_id, hops, {"a": asked})
                found = await asking.answer(question, "c")
                np.testing.assert_array_equal(found, expected(one, asked))
                answer = asking.heard[question].answers["c"]
                assert [timing.vnode for timing in answer.timings] == ["a", "b", "c"]
                assert answer.state_digest == one.digest("c")
                hops = [one.hop("a", first, answers=True), one.hop("b", second, answers=True)]
                async with line(key, second, dialer) as other:  # the way back is the caller's own stream, where it has one
                    await other.failure(await other.ask(key.node_id, [], {"a": asked}))  # from now on it has
                    question = other.expect(await asking.ask(key.node_id, hops, {"a": asked}))
                    await other.answer(question, "b")
                    await asking.answer(question, "a")
                await asks_until_answered(asking, key.node_id, hops, {"a": asked}, "b")

    asyncio.run(scenario())


async def asks_until_answered(
    asking: Line, caller: str, hops: Sequence[vnode_pb2.InferHop], inputs: dict[str, Any], vnode: str
) -> None:
    """A worker that has not noticed yet that the caller's own stream is over answers down that stream, and nobody hears it."""
    for _ in range(TRIES):
        question = await asking.ask(caller, hops, inputs)
        with contextlib.suppress(TimeoutError):
            await asking.answer(question, vnode, WITHIN_S / TRIES)
            return
    raise AssertionError(f"{vnode} was asked {TRIES} times and never answered the way the question came")


def test_live_weights_answer_during_training_and_as_their_snapshots_after_it(tmp_path: Path) -> None:
    job, key = make_job(tmp_path, samples=480), NodeKey.generate()
    asked = samples()

    async def scenario() -> None:
        async with workers(tmp_path, 2) as (first, second):
            places = {"s1": first, "s2": second}
            await allow(key, first, second)
            await first.host(job, "s1", places)
            await second.host(job, "s2", places)
            await first.until(lambda: is_active(first, "s1.1"))
            await second.until(lambda: is_active(second, "s2.1"))
            hops = [live_hop("s1", first, answers=True), live_hop("s2", second, answers=True)]
            async with line(key, first) as asking:
                during = await asking.ask(key.node_id, hops, {"s1": asked})
                await asking.answer(during, "s2")
                await second.introduce("s1", first)
                for _ in range(5):
                    question = await asking.ask(key.node_id, hops, {"s1": asked})
                    await asking.answer(question, "s1")
                    await asking.answer(question, "s2")
                await first.until(lambda: is_finished(first, job))
                await second.until(lambda: is_finished(second, job))
                question = await asking.ask(key.node_id, hops, {"s1": asked})
                found = [await asking.answer(question, vnode) for vnode in ("s1", "s2")]
                assert asking.heard[question].answers["s2"].step == job.num_batches
            one = Served(job.graph, {"s1": Path(first.snapshots[-1].path), "s2": Path(second.snapshots[-1].path)})
            output, wanted = asked, []
            for vnode in ("s1", "s2"):
                compute = one.compute(vnode)
                output = compute.forward(0, [output], Mode.INFER).output
                wanted.append(compute.readout(output).numpy())
            np.testing.assert_array_equal(found[0], wanted[0])
            np.testing.assert_array_equal(found[1], wanted[1])
            await seat(first, one, "s2")
            async with line(key, first) as asking:
                mixed = [hops[0], one.hop("s2", first, answers=True)]
                question = await asking.ask(key.node_id, mixed, {"s1": asked})
                np.testing.assert_array_equal(await asking.answer(question, "s2"), wanted[1])

    asyncio.run(scenario())


def test_what_is_wrong_with_a_question_is_said_at_once_and_costs_no_other(tmp_path: Path) -> None:
    one, key, stranger = served(tmp_path), NodeKey.generate(), NodeKey.generate()
    asked = samples()

    async def scenario() -> None:
        async with worker(tmp_path) as end:
            await allow(key, end)
            await seat(end, one, "a", "b", "c")
            hops = [one.hop("a", end), one.hop("b", end), one.hop("c", end, answers=True)]
            async with line(stranger, end) as refused:
                assert await refused.status() is grpc.StatusCode.PERMISSION_DENIED
            async with line(key, end) as asking:

                async def code_of(inputs: dict[str, Any], **changes: Any) -> str:
                    question = await asking.ask(key.node_id, hops, inputs, **changes)
                    return str((await asking.failure(question)).code)

                assert await code_of({"a": asked}, caller=stranger.node_id) == "not_a_caller"
                assert await code_of({"a": asked}, network_id="0" * 40) == "bad_question"
                assert await code_of({"a": asked}, deadline_s=0.0) == "bad_question"
                assert await code_of({"b": asked}) == "bad_question"
                assert await code_of({"a": asked}, model="other") == "not_here"
                assert await code_of({"a": samples(BATCH + 1)}) == "bad_shape"
                assert await code_of({"a": asked[:, 1:].copy()}) == "bad_shape"
                assert await code_of({"a": np.zeros((1, 5 << 20), np.float32)}) == "bad_shape"
                assert await code_of({"a": asked * np.float32("nan")}) == "not_finite"
                assert await code_of({"a": np.full_like(asked, 3e38)}) == "norm_bound"
                late = await asking.begin(key.node_id, hops, asked, deadline_s=0.3)
                assert (await asking.failure(late)).code == "deadline_exceeded"

                waiting = [await asking.begin(key.node_id, hops, asked) for _ in range(limits.MAX_QUESTIONS)]
                assert await code_of({"a": asked}) == "busy"
                cancel = vnode_pb2.InferMessage(cancel=vnode_pb2.InferCancel(id=waiting[0]))
                await asking.say(cancel)
                question = await asking.ask(key.node_id, hops, {"a": asked})
                np.testing.assert_array_equal(await asking.answer(question, "c"), expected(one, asked))
            async with line(key, end) as asking:  # who leaves waits for nothing any more: its places are free
                question = await asking.ask(key.node_id, hops, {"a": asked})
                while "busy" in {failure.code for failure in (await asking.outcome(question)).failures}:
                    question = await asking.ask(key.node_id, hops, {"a": asked})
                await asking.answer(question, "c")

    asyncio.run(scenario())


def test_a_hop_that_dies_is_told_at_once(tmp_path: Path) -> None:
    one, key = served(tmp_path), NodeKey.generate()
    asked = samples()

    async def scenario() -> None:
        async with workers(tmp_path, 2) as (first, second):
            await allow(key, first, second)
            await seat(first, one, "a", "c")
            await seat(second, one, "b")
            hops = [one.hop("a", first, answers=True), one.hop("b", second), one.hop("c", first, answers=True)]
            async with line(key, first) as asking:
                question = await asking.ask(key.node_id, hops, {"a": asked})
                await asking.answer(question, "c")
                second.process.send_signal(signal.SIGSTOP)
                stuck = await asking.ask(key.node_id, hops, {"a": asked})
                await asking.answer(stuck, "a")
                second.process.kill()
                failure = await asking.failure(stuck)
                assert (failure.code, failure.vnode, failure.pnode_id) == ("successor_unreachable", "b", second.pnode_id)
                gone = await asking.ask(key.node_id, hops, {"a": asked})
                failure = await asking.failure(gone)
                assert (failure.code, failure.vnode, failure.pnode_id) == ("successor_unreachable", "b", second.pnode_id)

    asyncio.run(scenario())


def is_active(end: DaemonEnd, replica: str) -> bool:
    report = end.reports.get(replica)
    return report is not None and report.state == orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE


def is_finished(end: DaemonEnd, job: Job) -> bool:
    return any(ready.checkpoint.step == job.num_batches for ready in end.snapshots)


def live_hop(vnode: str, end: DaemonEnd, *, answers: bool) -> vnode_pb2.InferHop:
    return vnode_pb2.InferHop(vnode=vnode, replica=f"{vnode}.1", delegation=end.delegation, codec="raw", answers=answers)
