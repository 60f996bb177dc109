"""Loads an exported image model with plain torch and counts the test images that its deepest exit gets right. Nothing of the network is needed.

Usage: python examples/mnist/use_export.py EXPORT_DIRECTORY mnist.npz [--exit VNODE]

The last line printed is JSON: exit, correct, count, accuracy.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

BATCH = 500
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "gelu": functional.gelu, "none": lambda x: x}


def conv_block(w: dict[str, Tensor], config: dict[str, Any], x: Tensor) -> Tensor:
    """Convolution, batch normalisation with running statistics, activation, max pool."""
    kernel = w["component.conv.weight"]
    x = functional.conv2d(x, kernel, w.get("component.conv.bias"), stride=config.get("stride", 1), padding=kernel.shape[-1] // 2)
    if config.get("norm", "batch") == "batch":
        mean, variance = w["component.norm.running_mean"], w["component.norm.running_var"]
        x = functional.batch_norm(x, mean, variance, w["component.norm.weight"], w["component.norm.bias"])
    x = ACTIVATIONS[config.get("activation", "relu")](x)
    return functional.max_pool2d(x, config["pool"]) if config.get("pool", 1) > 1 else x


def compute(vnode: dict[str, Any], w: dict[str, Tensor], inputs: list[Tensor]) -> Tensor:
    """One VNode's output."""
    match vnode["component"]:
        case "random_shift":
            return inputs[0]  # augmentation: only while learning
        case "conv_block":
            return conv_block(w, vnode["config"], inputs[0])
        case "add":
            return torch.stack(inputs).sum(dim=0)
        case "flatten":
            return inputs[0].flatten(1)
        case "linear":
            return functional.linear(inputs[0], w["component.weight"], w.get("component.bias"))
        case "relu":
            return torch.relu(inputs[0])
    raise SystemExit(f"this script does not know the component {vnode['component']!r}")


def readout(vnode: dict[str, Any], w: dict[str, Tensor], x: Tensor) -> Tensor:
    """Class scores of a VNode's own head."""
    config = vnode["objective"]["config"]
    x = ACTIVATIONS[config.get("activation", "none")](x)
    if x.dim() == 4:
        x = functional.adaptive_avg_pool2d(
            x, (min(config.get("pool", 4), x.shape[2]), min(config.get("pool", 4), x.shape[3]))
        ).flatten(1)
    return functional.linear(x, w["objective.head.scores.weight"], w["objective.head.scores.bias"])


def scores(model: dict[str, Any], weights: dict[str, dict[str, Tensor]], images: Tensor, exit_at: str) -> Tensor:
    """Class scores of one exit; VNodes behind it are not computed."""
    values = {"input": images}
    for vnode in model["vnodes"]:
        own = weights.get(vnode["id"], {})
        values[vnode["id"]] = compute(vnode, own, [values[name] for name in vnode["inputs"]])
        if vnode["id"] == exit_at:
            return readout(vnode, own, values[exit_at])
    raise SystemExit(f"there is no exit {exit_at!r}")


def main() -> None:
    """Reads the arguments, counts, prints."""
    parser = argparse.ArgumentParser(description="an exported image model in plain torch")
    parser.add_argument("export", type=Path)
    parser.add_argument("npz", type=Path)
    parser.add_argument("--exit", default="")
    arguments = parser.parse_args()
    model = json.loads((arguments.export / "model.json").read_text())
    weights: dict[str, dict[str, Tensor]] = {}
    for name, tensor in load_file(arguments.export / model["weights"]["file"]).items():
        vnode, _, parameter = name.partition("/")
        weights.setdefault(vnode, {})[parameter] = tensor
    with np.load(arguments.npz, allow_pickle=False) as data:
        pixels = np.rint(data["test_x"] * np.float32(255)) * np.float32(1 / 255)  # the data set keeps pixels as bytes
        images, labels = torch.from_numpy(pixels), torch.from_numpy(data["test_y"])
    exit_at, correct = arguments.exit or model["exits"][-1], 0
    with torch.inference_mode():
        for first in range(0, len(images), BATCH):
            guess = scores(model, weights, images[first : first + BATCH], exit_at).argmax(dim=1)
            correct += int((guess == labels[first : first + BATCH]).sum())
    print(f"{correct} of {len(images)} test images are right at exit {exit_at}")
    print(json.dumps({"exit": exit_at, "correct": correct, "count": len(images), "accuracy": correct / len(images)}))


if __name__ == "__main__":
    main()
