"""Makes a claim by running an interval: while learning, or again on challenge, when a worker shows what it did not keep.

A restored replica continues bit for bit on the same machine and settings, so a run again from the interval's first state gives the outputs, states and
map products that the commits are about.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dcnr.tensor import decode, encode
from vnode.checks.claims import Claim, ClaimedStep, MapClaim
from vnode.checks.plan import StageChecks
from vnode.state import Array
from vnode.torch_compute import TorchCompute
from vnode.vocabulary import Mode


@dataclass(frozen=True, slots=True)
class Entry:
    """One batch as it was assigned, with its inputs as decoded."""

    batch: int
    mode: Mode
    inputs: tuple[Array, ...]
    target: Array


def record(
    compute: TorchCompute,
    first: bytes,
    entries: Sequence[Entry],
    *,
    codec: str = "raw",
    state_every: int = 256,
    sketched: StageChecks | None = None,
) -> Claim:
    """The claim of an honest worker: states every ``state_every`` entries and at the end; with what a sketch asks for, where ``sketched`` names it."""
    info = compute.restore(first)
    states, steps = {0: first}, []
    for index, entry in enumerate(entries, start=1):
        with watched(compute, sketched) as seen:
            steps.append(_step(compute, entry, len(info.lineage), codec, seen))
        if entry.mode is Mode.TRAIN:
            info = replace(info, lineage=info.lineage.add(entry.batch))
        if index % state_every == 0 or index == len(entries):
            states[index] = compute.snapshot(info)
    return Claim(tuple(steps), states)


@contextmanager
def watched(compute: TorchCompute, checks: StageChecks | None) -> Iterator[dict[str, MapClaim]]:
    """Collects what the maps give in one pass, the gradient of their inputs through them alone, and what is before kinks; changes no result."""
    maps, before_kinks = (checks.maps, checks.before_kinks) if checks is not None else ((), ())
    outputs: dict[str, Tensor] = {}
    gradients: dict[str, Tensor] = {}
    seen: dict[str, MapClaim] = {}

    def before(name: str, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        alias = given[0].view_as(given[0])  # its gradient is this map's share, whoever else reads the tensor
        if alias.requires_grad:
            alias.register_hook(lambda gradient: gradients.__setitem__(name, gradient.clone()))  # type: ignore[no-untyped-call]
        return (alias,)

    with ExitStack() as hooks:
        for name in maps:
            given = compute.part(name).register_forward_pre_hook(lambda _, given, name=name: before(name, given))
            hooks.callback(given.remove)
        for name in (*maps, *before_kinks):
            made = compute.part(name).register_forward_hook(
                lambda _, __, made, name=name: outputs.__setitem__(name, made.detach().clone())
            )
            hooks.callback(made.remove)
        yield seen
        for name, output in outputs.items():
            gradient = gradients.get(name)
            seen[name] = MapClaim(output.cpu().numpy(), None if gradient is None else gradient.cpu().numpy())


def as_array(tensor: Any) -> Array:
    """A tensor of the torch adapter as an array in the machine's memory."""
    array: Array = tensor.detach().cpu().numpy() if isinstance(tensor, torch.Tensor) else np.asarray(tensor)
    return array


def _step(compute: TorchCompute, entry: Entry, num_learned: int, codec: str, seen: dict[str, MapClaim]) -> ClaimedStep:
    loss = lr = 0.0
    if entry.mode is Mode.TRAIN:
        learned = compute.learn(entry.batch, entry.inputs, entry.target, num_learned)
        output, loss, lr = learned.output, learned.loss, learned.lr
    else:
        output = compute.forward(entry.batch, entry.inputs, Mode.FORWARD_ONLY).output
    sent = encode(as_array(output), codec)
    return ClaimedStep(
        batch=entry.batch,
        mode=entry.mode,
        inputs=entry.inputs,
        target=entry.target,
        num_learned=num_learned,
        output=decode(sent.header, sent.payload),
        codec=codec,
        loss=loss,
        lr=lr,
        maps=seen,  # filled when the pass is over
    )
