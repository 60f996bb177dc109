"""The demo's last question: a few samples of the test split, answered by the network itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from dcnr.errors import DcnrError, InvalidInput
from dcnr.sdk.asking import Answer, Ask, Inputs
from dcnr.sdk.client import AsyncClient
from dcnr.v1 import model_pb2

NUM_SAMPLES: Final = 8
LIMIT_S: Final = 10.0
"""Seats of the last version are loaded within seconds; where they are not, the demo goes on."""
PAUSE_S: Final = 0.5


async def ask(client: AsyncClient, graph: model_pb2.ModelGraph, npz: Path, say: Callable[[str], None]) -> None:
    """Says what the network answers and of which version, or that it did not in time: nothing else hangs on it."""
    count = min(NUM_SAMPLES, int(graph.train.batch_size))
    with np.load(npz, allow_pickle=False) as file:
        samples, targets = file["test_x"][:count].astype(graph.input.dtype), file["test_y"][:count]
    if targets.ndim != 1:
        return  # several targets a sample do not make a line to read
    try:
        async with asyncio.timeout(LIMIT_S):
            answer = await _answer(client, graph.name, samples)
    except (TimeoutError, InvalidInput) as error:
        say(f"no answer through the network within {LIMIT_S:.0f} s: {error}")
        return
    said = answer.output.reshape(len(samples), -1).argmax(axis=1)
    say(f"asked the network for {len(samples)} test samples: it says {_row(said)}, right is {_row(targets)}")
    say(
        f"  version {answer.manifest[:12]}, exit {answer.exit} of {answer.deepest}, {1000 * answer.total_s:.0f} ms, "
        f"PNodes: {len({stage.pnode_id for stage in answer.stages})}"
    )


async def _answer(client: AsyncClient, model: str, samples: Inputs) -> Answer:
    """The first answer of the newest version, at full depth."""
    while True:
        try:
            newest, _ = await client.manifest(model)
            answer = await client.forward(samples, Ask(model, full_depth=True, deadline_s=LIMIT_S))
            if answer.manifest == newest:
                return answer
        except InvalidInput:
            raise
        except DcnrError:
            pass  # not yet
        await asyncio.sleep(PAUSE_S)


def _row(values: object) -> str:
    return " ".join(str(int(value)) for value in np.asarray(values).reshape(-1))
