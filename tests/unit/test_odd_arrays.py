"""Goal: arrays in files that numpy itself stumbles over are refused as any other wrong file, to be staged or to be asked about."""

from __future__ import annotations

import asyncio
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dataservice import staging
from dcnr.cli.infer import read_arrays
from dcnr.errors import Corrupt, InvalidInput
from dcnr.sdk.staging import Source, described, num_objects


def npy(header: str) -> bytes:
    """An array without values, under that header."""
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def shaped(shape: str) -> bytes:
    return npy("{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + "}")


ODD = {
    "unclosed": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,"), "no header": npy("(((("), "indented": npy("  {\n }\n  }"),
    "beyond numbers": shaped(f"({10**22},)"), "beyond memory": shaped(f"({10**15},)"), "negative": shaped("(-1,)"),
    "no type": npy("{'descr': 7, 'fortran_order': False, 'shape': ()}"),
    "deep": shaped("(" * 2000 + ")" * 2000),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(ODD))
def test_an_array_that_numpy_stumbles_over_is_refused(case: str, tmp_path: Path) -> None:
    single, packed = tmp_path / "x.npy", tmp_path / "x.npz"
    single.write_bytes(ODD[case])
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("train_x.npy", ODD[case])
    with pytest.raises(Corrupt) as damaged:
        staging.read_npz(packed)
    assert damaged.value.code == "bad_source"
    for path in (single, packed):
        with pytest.raises(InvalidInput, match=path.name) as refused:
            read_arrays(str(path))
        assert refused.value.code == "bad_input"


def test_a_member_that_is_no_array_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("train_x", b"1, 2, 3")
    with pytest.raises(Corrupt, match="train_x"):
        staging.read_npz(path)
    with pytest.raises(InvalidInput, match="train_x"):
        read_arrays(str(path))


@pytest.mark.parametrize("target", [(4, 0), (4,)])
def test_samples_without_values_are_refused_by_field(target: tuple[int, ...]) -> None:
    async def put(key: str, data: bytes) -> None:
        raise AssertionError(key)

    packed = io.BytesIO()
    np.savez(packed, train_x=np.zeros((4, 0), np.float32), train_y=np.zeros(target, np.int64))
    packed.seek(0)
    arrays = staging.npz_in(packed, "x.npz")
    splits = {"train": {"input": arrays["train_x"], "target": arrays["train_y"]}}
    description, splits = described(Source("x.npz", "toy", "CC0", "made up"), splits)
    assert num_objects(description.fields, splits) == 3
    with pytest.raises(InvalidInput, match="nothing") as refused:
        asyncio.run(staging.stage(put, description, splits, seed=0))
    assert refused.value.details == {"split": "train", "field": "input"}


def test_a_file_that_is_no_array_is_not_called_a_pickle_that_may_be_loaded(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_text("[model]")
    with pytest.raises(InvalidInput, match="does not begin as one") as caught:
        read_arrays(str(path))
    assert "pickle" not in caught.value.message
