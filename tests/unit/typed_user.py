"""A program as a user writes it, checked by mypy --strict with the rest of the tree. Where it says ``type: ignore``, mypy must have found the mistake:
an unused one is an error, so no public name may turn into Any.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor, nn

import dcnr


def trained(net: nn.Module, example: Tensor, data: Path, bootstrap: list[str]) -> dict[str, float]:
    """A module imported, trained, asked and taken home, with the blocking client."""
    imported = dcnr.from_torch(net, example, dcnr.Chosen(name="mine", passes=2, objective="predsim"))
    options = dcnr.JobOptions(idempotency_key="mine-1")
    with dcnr.connect(bootstrap, network_id="0" * 40) as client:
        client.stage(dcnr.Source(str(data), "mine", "CC0-1.0", "made here"), progress=True)
        job = client.submit(imported.graph, [], options, weights=imported.weights, progress="lines")
        for view in client.watch(job.job_id, progress=lambda what, done, total: None):
            assert view.job.num_batches >= 0
        answer: dcnr.Answer = client.forward(np.zeros((1, 4)), dcnr.Ask("mine", patient=True))
        assert answer.output.shape[0] == 1
        client.export("mine", Path("out"), progress="bars")  # type: ignore[arg-type]
        client.submit("a graph", [], options)  # type: ignore[arg-type]
        client.forwards(np.zeros((1, 4)))  # type: ignore[attr-defined]
        return {result.vnode: result.correct / result.count for result in client.wait(job.job_id).outcome.exits}


async def written(bootstrap: list[str], prompt: str) -> str:
    """A text, with the asynchronous client."""
    text = ""
    async with await dcnr.connect_async(bootstrap) as client:
        async for part in client.generate(prompt, dcnr.Write(max_tokens=8, seed=1), progress=True):
            text += part.text
        client.generate(prompt, dcnr.Write(max_tokens="8"))  # type: ignore[arg-type]
    return text


def built() -> bytes:
    """A graph in Python."""
    graph = dcnr.Graph(
        "mine", input=dcnr.TensorSpec("float32", (4,)), target=dcnr.TensorSpec("int64", ()), num_classes=3,
        train={"batch_size": 8}, data={use: f"dataset:mine#{use}" for use in ("train", "validation", "test")},
    )  # fmt: skip
    dcnr.TensorSpec("float32", "4")  # type: ignore[arg-type]
    return graph.vnode("a", "linear", {"out_features": 3}, inputs=["input"]).build().SerializeToString()
