"""One pass of a text at a seat that keeps keys and values: the places that come are computed, those before are not. Blocks: on the seats' thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dcnr.errors import NotFound
from dcnr.ports import Clock
from pnode.infer_places import Computed, Wish, check_drafts_follow, draft_of, last_places
from pnode.infer_words import Travelling
from pnode.outbox import as_array
from vnode.torch_compute import TorchCompute
from vnode.torch_memory import Memory


def infer_on(
    compute: TorchCompute, memory: Memory, offset: int, inputs: Sequence[Travelling], step: int, clock: Clock, wish: Wish
) -> Computed:
    """The output of the places that come, and of those that are drafted, each computed once. ``memory`` goes back to ``offset`` first, so what was drafted
    in vain is forgotten. A pass that fails halfway leaves what it kept: the next one goes back, too.

    Raises NotFound (``no_cache``) where less is kept, RemoteFault, Corrupt, InvariantBroken.
    """
    began_s = clock.monotonic()
    values = [one.values() for one in inputs]
    if memory.length < offset:
        raise lost(memory.length)
    if wish.draft:
        check_drafts_follow(values)
    memory.back_to(offset)
    outputs = [compute.extend(memory, values)]
    drafted = b""
    for number in range(wish.draft):
        token = draft_of(compute, outputs[-1], wish.drawing, number)
        if token is None:
            break
        drafted += bytes([token])
        outputs.append(compute.extend(memory, [np.full((1, 1), token, np.uint8)]))
    output = _joined(outputs)
    readout = last_places(compute.readout(output), wish.last) if wish.answers else None
    return Computed(output, readout, step, began_s, clock.monotonic() - began_s, drafted, kept=memory.length)


def lost(length: int) -> NotFound:
    """The places before are not kept here: whoever asks brings them."""
    return NotFound(f"{length} places of the session are kept here", code="no_cache")


def _joined(outputs: Sequence[Any]) -> Any:
    return outputs[0] if len(outputs) == 1 else np.concatenate([as_array(output) for output in outputs], axis=1)
