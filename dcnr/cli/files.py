"""Files that people name on the command line."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from dcnr.crashpoints import reached
from dcnr.errors import InvalidInput, Refused


def text_in(path: Path, max_bytes: int, *, code: str, remedy: str) -> str:
    """The text of a file; of a larger one ``max_bytes`` + 1 bytes, which whoever parses them refuses. Raises InvalidInput, with that code and remedy."""
    try:
        with path.open("rb") as file:
            return file.read(max_bytes + 1).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise InvalidInput(f"{path} cannot be read: {why}", code=code, remedy=remedy) from error


def write_whole(path: Path, data: bytes, *, remedy: str) -> None:
    """``path`` holds these bytes, or what it held before. Raises Refused (``disk_trouble``), with that remedy."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_bytes(data)
        reached("draft.drafted")
        draft.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # where no directory is there is no draft
            draft.unlink()
        raise Refused(f"{path} cannot be written: {error.strerror}", code="disk_trouble", remedy=remedy) from error
