"""Goal: an orchestrator that has not been given a component of a job neither ends the job nor holds its head: it leaves both to those that have it. Where
none of these lives, everybody who asks is told so; the job goes on with the first one that does, or ends when it is called off.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from runtime_rig import CLOCK, JOB, MAINTAINER, MODEL, TIMES, Orchestrator, World, until

from dcnr.cli.watching import headline
from dcnr.specs import Registry
from dcnr.v1 import identity_pb2, model_pb2, orchestrator_pb2
from orchestrator.admission import record_cancel
from orchestrator.jobview import job_view
from orchestrator.runtime import ModelRuntime
from trust.envelope import seal


def without_linear(registry: Registry) -> Registry:
    """What an orchestrator knows to which the component of the job comes from outside the tree, and whose settings do not name it."""
    return replace(registry, components={name: spec for name, spec in registry.components.items() if name != "linear"})


def lacking(one: Orchestrator) -> Orchestrator:
    """The same without the component, before it starts."""
    one.shared = replace(one.shared, registry=without_linear(one.shared.registry))
    one.runtime = ModelRuntime(MODEL, one.shared)
    return one


def shown(one: Orchestrator) -> orchestrator_pb2.JobView:
    return job_view(one.runtime, JOB, with_vnodes=False)


def test_a_job_is_left_to_an_orchestrator_that_has_its_component() -> None:
    async def story() -> None:
        made = World(orchestrators=2, workers=1)
        has, lacks = made.orchestrators[0], lacking(made.orchestrators[1])
        try:
            lacks.start()
            await until(lambda: lacks.runtime.is_holder, "the one without the component holds the head of a model without jobs")
            await made.submit()
            await until(lambda: bool(lacks.runtime.lacking), "it says what it lacks")
            assert not lacks.runtime.is_holder
            assert "lacks component linear" in lacks.runtime.lacking
            has.start()
            await until(lambda: has.state() == model_pb2.JOB_STATE_RUNNING, "the other one runs the job", 30 * TIMES.ttl_s)
            assert not lacks.runtime.is_holder
            assert made.end() is None
            assert [event.kind for event in lacks.shared.history.about({MODEL}, 64)].count("component_lacking") == 1
        finally:
            for one in made.orchestrators:
                await one.stop()

    asyncio.run(story())


def test_a_job_that_nobody_alive_can_read_says_so_until_somebody_can() -> None:
    async def story() -> None:
        made = World(orchestrators=3, workers=1)
        has, *others = made.orchestrators
        try:
            for one in others:
                lacking(one).start()
            await made.submit()
            for one in others:
                await until(lambda one=one: bool(shown(one).held_up), "it says why nothing happens", 30 * TIMES.ttl_s)  # type: ignore[misc]
                view = shown(one)
                assert view.state == model_pb2.JOB_STATE_QUEUED
                assert "lacks component linear" in view.held_up
                assert f"dcnr job cancel {JOB}" in view.held_up
                assert view.held_up in headline(view), "who follows the job reads it"
            has.start()
            await until(lambda: has.state() == model_pb2.JOB_STATE_RUNNING, "it goes on", 30 * TIMES.ttl_s)
            for one in others:
                await until(lambda one=one: shown(one).state == model_pb2.JOB_STATE_RUNNING, "all see that")  # type: ignore[misc]
                assert not shown(one).held_up
                assert not one.runtime.is_holder
            await has.stop()
            for one in others:
                await until(lambda one=one: bool(shown(one).held_up), "an active job says it too", 30 * TIMES.ttl_s)  # type: ignore[misc]
        finally:
            for one in made.orchestrators:
                await one.stop()

    asyncio.run(story())


def test_a_job_that_nobody_alive_can_read_can_be_called_off() -> None:
    async def story() -> None:
        made = World(orchestrators=2, workers=1)
        one = lacking(made.orchestrators[1])
        try:
            one.start()
            await made.submit()
            await until(lambda: bool(shown(one).held_up), "nobody decides", 30 * TIMES.ttl_s)
            cancel = model_pb2.JobCancel(
                network_id=made.policy.network_id, model=MODEL, job_id=JOB, created_unix_ms=int(CLOCK.wall() * 1000)
            )
            await record_cancel(seal(identity_pb2.DOMAIN_JOB_CANCEL, cancel, MAINTAINER), policy=made.policy, store=made.store)
            await until(lambda: made.end() is not None, "it has ended", 30 * TIMES.ttl_s)
            end = made.end()
            assert end is not None
            assert end.state == model_pb2.JOB_STATE_CANCELLED
            assert not shown(one).held_up
        finally:
            await one.stop()

    asyncio.run(story())
