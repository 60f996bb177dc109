"""Which checks apply to a stage, from what its parts declare. Pure, torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from dcnr.specs import Registry, checks_of
from dcnr.stages import Stage
from vnode.checks.tolerances import Tolerances, tolerances_for


@dataclass(frozen=True, slots=True)
class StageChecks:
    """``maps``: names in the stage's module that a sketch may stand for; empty where only replay applies. ``before_kinks``: parts whose output a sketch needs
    besides.
    """

    optimizer: str
    smooth: bool
    maps: tuple[str, ...]
    before_kinks: tuple[str, ...] = ()

    def replay(self) -> Tolerances:
        """For a replay; its ``span_steps`` says how far apart the worker's states may be."""
        return tolerances_for("replay", self.optimizer, smooth=self.smooth)

    def sketch(self) -> Tolerances:
        """For a sketch."""
        return tolerances_for("sketch", self.optimizer, smooth=self.smooth)

    def referee(self) -> Tolerances:
        """For a referee, who looks at single steps."""
        return tolerances_for("referee", self.optimizer, smooth=self.smooth)


def checks_of_stage(stage: Stage, registry: Registry) -> StageChecks:
    """The checks for a stage. An optimiser that clips depends on the norm of a whole gradient, which a sketch does not know: replay only."""
    plans = [checks_of(registry.components[item.component], item.config) for item in stage.operations]
    component = checks_of(registry.components[stage.component], stage.config)
    plans += [component, checks_of(registry.objectives[stage.objective], stage.objective_config)]
    clips = bool(stage.optimizer_config.get("clip", 0.0))
    maps = () if clips else tuple(f"component.{name}".rstrip(".") for name in component.sketched)
    smooth = all(plan.smooth for plan in plans)
    before_kinks = () if smooth or not maps else tuple(f"component.{name}" for name in component.before_kinks)
    return StageChecks(stage.optimizer, smooth, maps, before_kinks)
