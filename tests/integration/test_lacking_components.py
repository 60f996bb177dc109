"""Goal: an orchestrator that has not been given a component of a job neither ends the job nor holds its head: it leaves both to those that have it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from runtime_rig import MODEL, TIMES, World, until

from dcnr.specs import Registry
from dcnr.v1 import model_pb2
from orchestrator.runtime import ModelRuntime


def without_linear(registry: Registry) -> Registry:
    """What an orchestrator knows to which the component of the job comes from outside the tree, and whose settings do not name it."""
    return replace(registry, components={name: spec for name, spec in registry.components.items() if name != "linear"})


def test_a_job_is_left_to_an_orchestrator_that_has_its_component() -> None:
    async def story() -> None:
        made = World(orchestrators=2, workers=1)
        has, lacks = made.orchestrators
        shared = replace(lacks.shared, registry=without_linear(lacks.shared.registry))
        lacks.shared, lacks.runtime = shared, ModelRuntime(MODEL, shared)
        try:
            lacks.start()
            await until(lambda: lacks.runtime.is_holder, "the one without the component holds the head of a model without jobs")
            await made.submit()
            await until(lambda: "lacks a component" in lacks.runtime.jobs_trouble, "it says what it lacks")
            assert not lacks.runtime.is_holder
            assert "'linear'" in lacks.runtime.jobs_trouble
            has.start()
            await until(lambda: has.state() == model_pb2.JOB_STATE_RUNNING, "the other one runs the job", 30 * TIMES.ttl_s)
            assert not lacks.runtime.is_holder
            assert made.end() is None
            assert [event.kind for event in shared.history.about({MODEL}, 64)].count("component_lacking") == 1
        finally:
            for one in made.orchestrators:
                await one.stop()

    asyncio.run(story())
