"""What PNodes can build, as they say when they attach: one that lacks something of a job's graph hosts, serves and audits nothing of it. Pure.

Names are taken at their word. One that says too much refuses what it is given, and the planner goes round it for a while; one that says nothing is tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from dcnr.errors import InvalidInput
from dcnr.ids import check_name
from dcnr.specs import kinds_of
from dcnr.v1 import model_pb2, orchestrator_pb2
from orchestrator.offers import NodeOffer

if TYPE_CHECKING:
    from orchestrator.view import ModelView

MAX_NAMES: Final = 1024
SHOWN: Final = 4
MAX_TOLD: Final = 500


def needs_of(graph: model_pb2.ModelGraph) -> frozenset[str]:
    """What a machine must have to build any part of a graph, as `dcnr.specs.Registry.names` has it: graphs are checked as a whole."""
    stateful = [vnode for vnode in graph.vnodes if vnode.HasField("objective")]
    components = (vnode.component.name for vnode in graph.vnodes)
    return kinds_of(components, (vnode.objective.name for vnode in stateful), (vnode.optimizer.name for vnode in stateful))


def builds_of(hello: orchestrator_pb2.Hello) -> frozenset[str] | None:
    """Names with their kinds, as `dcnr.specs.Registry.names` has them; None where nothing was said. Raises InvalidInput."""
    if not hello.HasField("builds"):
        return None
    told = hello.builds
    if len(told.components) + len(told.objectives) + len(told.optimizers) > MAX_NAMES:
        raise InvalidInput(f"a PNode names at most {MAX_NAMES} things that it can build", code="hello_too_large")
    for name in (*told.components, *told.objectives, *told.optimizers):
        check_name(name)
    return kinds_of(told.components, told.objectives, told.optimizers)


def lacks(builds: Set[str] | None, needs: Set[str]) -> str:
    """What of ``needs`` a machine cannot build, in words; empty where it can build all, or has not said what it can."""
    if builds is None or needs <= builds:
        return ""
    missing = sorted(needs - builds)
    more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
    return f"lacks {', '.join(missing[:SHOWN])}{more}"


def able(offers: Iterable[NodeOffer], needs: Set[str]) -> tuple[NodeOffer, ...]:
    """The offers for a job that needs these; who lacks something says so. The others are the same objects."""
    return tuple(replace(offer, lacks=why) if (why := lacks(offer.builds, needs)) else offer for offer in offers)


def lacks_of_jobs(builds: Set[str] | None, views: Iterable[ModelView | None]) -> str:
    """Model by model what of its job a PNode cannot build, in words; empty: nothing."""
    jobs = [(view.model, view.job) for view in views if view is not None and view.job is not None]
    return "; ".join(f"{model}: {why}" for model, job in jobs if (why := lacks(builds, job.needs)))[:MAX_TOLD]
