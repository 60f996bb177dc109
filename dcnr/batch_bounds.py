"""What stages ask of the size of a batch: enough samples to learn from. Pure, torch-free."""

from __future__ import annotations

from collections.abc import Sequence

from dcnr.errors import InvalidInput
from dcnr.specs import Registry, least_batch
from dcnr.stages import Stage


def check_batch_size(stages: Sequence[Stage], registry: Registry, batch_size: int) -> None:
    """A batch has as many samples as each component needs. Raises InvalidInput with ``vnode`` and ``field`` in its details."""
    for stage in stages:
        least = least_batch(registry.components[stage.component], stage.config, stage.component_input_specs)
        if batch_size < least:
            raise InvalidInput(
                f"{stage.id}: {stage.component!r} does not learn from batches of {batch_size} with this configuration and input",
                code="bad_graph", remedy=f"set train.batch_size to {least} or more", vnode=stage.id, field="train.batch_size",
            )  # fmt: skip
