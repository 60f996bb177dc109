"""Cuts the running Python's own standard library into byte sequences: an npz with uint8 arrays, inputs and the bytes that follow.

Usage: python examples/text/prepare.py text.npz

A twentieth of the files, by the hash of their path, is held out as the test split, another twentieth as validation. Within a split the files are joined
in the order of their paths; a sequence covers 128 bytes and its target the same moved by one. Of all sequences a fixed number is kept per split, evenly
spaced, so that the example takes minutes: 19,200 to learn from (2,400 batches of 8), 400 for the curves, 1,600 for the final evaluation.
"""

from __future__ import annotations

import argparse
import hashlib
import sysconfig
from pathlib import Path

import numpy as np

LENGTH = 128
KEPT = {"train": 19_200, "validation": 400, "test": 1_600}
_SKIPPED = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idlelib", "lib2to3"}


def split_of(name: str) -> str:
    """The split of a file, from the SHA-256 of its path below the library's folder."""
    part = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little") % 20
    return {0: "test", 1: "validation"}.get(part, "train")


def texts(root: Path) -> dict[str, bytes]:
    """The bytes of each split."""
    pieces: dict[str, list[bytes]] = {"train": [], "validation": [], "test": []}
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if not _SKIPPED.intersection(relative.parts):
            pieces[split_of(relative.as_posix())].append(path.read_bytes())
    return {name: b"\n".join(files) for name, files in pieces.items()}


def sequences(text: bytes, length: int = LENGTH) -> tuple[np.ndarray, np.ndarray]:
    """(inputs, targets), both uint8 [n, length]; a remainder is left out."""
    data = np.frombuffer(text, dtype=np.uint8)
    count = (len(data) - 1) // length
    return data[: count * length].reshape(count, length), data[1 : count * length + 1].reshape(count, length)


def main() -> None:
    """Reads the arguments and writes the npz."""
    parser = argparse.ArgumentParser(description="standard library to npz")
    parser.add_argument("npz", type=Path)
    parser.add_argument("--root", type=Path, default=Path(sysconfig.get_paths()["stdlib"]))
    arguments = parser.parse_args()
    arrays: dict[str, np.ndarray] = {}
    for name, text in texts(arguments.root).items():
        x, y = sequences(text)
        chosen = np.linspace(0, len(x) - 1, num=min(KEPT[name], len(x))).round().astype(np.int64)
        arrays[f"{name}_x"], arrays[f"{name}_y"] = x[chosen], y[chosen]
    np.savez_compressed(arguments.npz, **arrays)  # type: ignore[arg-type]
    print({name: array.shape for name, array in arrays.items()})


if __name__ == "__main__":
    main()
