"""What stages ask of the size of a batch: enough samples to learn from, and outputs that travel as one frame. Pure, torch-free."""

from __future__ import annotations

from collections.abc import Sequence

from dcnr import limits
from dcnr.errors import InvalidInput
from dcnr.specs import Registry, least_batch
from dcnr.stages import Stage


def check_batch_size(stages: Sequence[Stage], registry: Registry, batch_size: int) -> None:
    """A batch has as many samples as each component needs, and every output that another stage reads fits a frame as a whole batch.

    Raises InvalidInput with ``vnode`` and ``field`` in its details.
    """
    read = {item.id for stage in stages for item in stage.inputs}
    for stage in stages:
        least = least_batch(registry.components[stage.component], stage.config, stage.component_input_specs)
        if batch_size < least:
            raise _error(
                stage.id, f"{stage.component!r} does not learn from batches of {batch_size} with this configuration and input",
                f"set train.batch_size to {least} or more",
            )  # fmt: skip
        sample_bytes = stage.output.bytes_per_sample
        if stage.id in read and batch_size * sample_bytes > limits.MAX_TENSOR_BYTES:
            most = limits.MAX_TENSOR_BYTES // sample_bytes
            remedy = f"set train.batch_size to {most} or less" if most else "make its output smaller: no batch size is small enough"
            raise _error(
                stage.id,
                f"train.batch_size {batch_size} makes {batch_size * sample_bytes} bytes of its output, more than the "
                f"{limits.MAX_TENSOR_BYTES} that travel to the VNodes that read it; the largest batch size is {most}",
                remedy,
            )


def _error(vnode: str, message: str, remedy: str) -> InvalidInput:
    return InvalidInput(f"{vnode}: {message}", code="bad_graph", remedy=remedy, vnode=vnode, field="train.batch_size")
