"""Loads an exported byte-level language model with plain torch: bits per byte on the test split, and a sample. Nothing of the network is needed.

Usage: python examples/text/use_export.py EXPORT_DIRECTORY text.npz [--exit VNODE] [--prompt TEXT] [--bytes NUMBER]

The last line printed is JSON: exit, bits_per_byte, count, correct, sample.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

BATCH = 32
Weights = dict[str, Tensor]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "gelu": functional.gelu, "none": lambda x: x}


def linear(w: Weights, name: str, x: Tensor) -> Tensor:
    """A linear layer by its name."""
    return functional.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))


def norm(w: Weights, name: str, x: Tensor) -> Tensor:
    """A layer normalisation by its name."""
    return functional.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"])


def block(w: Weights, name: str, heads: int, x: Tensor) -> Tensor:
    """One causal pre-LN transformer block."""
    batch, length, width = x.shape
    q, k, v = (
        linear(w, f"{name}qkv", norm(w, f"{name}attention_norm", x))
        .view(batch, length, 3, heads, width // heads)
        .permute(2, 0, 3, 1, 4)
    )
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x + linear(w, f"{name}projection", mixed.transpose(1, 2).reshape(batch, length, width))
    return x + linear(w, f"{name}mlp_out", functional.gelu(linear(w, f"{name}mlp_in", norm(w, f"{name}mlp_norm", x))))


def compute(vnode: dict[str, Any], w: Weights, x: Tensor) -> Tensor:
    """One VNode's output."""
    config = vnode["config"]
    match vnode["component"]:
        case "byte_embedding":
            x = w["component.token.weight"][x.long()] + w["component.position.weight"][: x.shape[1]]
            for index in range(config.get("blocks", 0)):
                x = block(w, f"component.blocks.{index}.", config.get("heads", 4), x)
            return x
        case "transformer_block":
            return block(w, "component.", config["heads"], x)
    raise SystemExit(f"this script does not know the component {vnode['component']!r}")


def scores(model: dict[str, Any], weights: dict[str, Weights], text: Tensor, exit_at: str) -> Tensor:
    """Scores of the next byte at every position, by one exit; VNodes behind it are not computed."""
    values = {"input": text}
    for vnode in model["vnodes"]:
        own = weights.get(vnode["id"], {})
        values[vnode["id"]] = compute(vnode, own, values[vnode["inputs"][0]])
        if vnode["id"] == exit_at:
            x = ACTIVATIONS[vnode["objective"]["config"].get("activation", "none")](values[exit_at])
            return linear(own, "objective.head.scores", norm(own, "objective.head.norm", x))
    raise SystemExit(f"there is no exit {exit_at!r}")


def sample(model: dict[str, Any], weights: dict[str, Weights], exit_at: str, prompt: bytes, num_bytes: int) -> str:
    """``prompt`` and ``num_bytes`` more, drawn at temperature 0.8 with a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    length = model["input"]["shape"][0]
    text = torch.tensor(list(prompt), dtype=torch.uint8)
    for _ in range(num_bytes):
        logits = scores(model, weights, text[-length:][None], exit_at)[0, -1]
        text = torch.cat([text, torch.multinomial((logits / 0.8).softmax(0), 1, generator=generator).to(torch.uint8)])
    return bytes(text.tolist()).decode("utf-8", "replace")


def main() -> None:
    """Reads the arguments, measures, prints."""
    parser = argparse.ArgumentParser(description="an exported language model in plain torch")
    parser.add_argument("export", type=Path)
    parser.add_argument("npz", type=Path)
    parser.add_argument("--exit", default="")
    parser.add_argument("--prompt", default="def ")
    parser.add_argument("--bytes", type=int, default=120)
    arguments = parser.parse_args()
    model = json.loads((arguments.export / "model.json").read_text())
    weights: dict[str, Weights] = {}
    for name, tensor in load_file(arguments.export / model["weights"]["file"]).items():
        vnode, _, parameter = name.partition("/")
        weights.setdefault(vnode, {})[parameter] = tensor
    with np.load(arguments.npz, allow_pickle=False) as data:
        x, y = torch.from_numpy(data["test_x"]), torch.from_numpy(data["test_y"]).long()
    exit_at, nats, correct = arguments.exit or model["exits"][-1], 0.0, 0
    with torch.inference_mode():
        for first in range(0, len(x), BATCH):
            logits, target = scores(model, weights, x[first : first + BATCH], exit_at), y[first : first + BATCH]
            nats += float(functional.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum"))
            correct += int((logits.argmax(dim=-1) == target).sum())
        text = sample(model, weights, exit_at, arguments.prompt.encode() or b"\n", arguments.bytes)
    bits = nats / y.numel() / math.log(2)
    print(f"{bits:.4f} bits per byte over {y.numel()} bytes at exit {exit_at}\n{text}")
    print(json.dumps({"exit": exit_at, "bits_per_byte": bits, "count": y.numel(), "correct": correct, "sample": text}))


if __name__ == "__main__":
    main()
