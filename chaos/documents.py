"""The files of results: one line per entry of the first level; their figures can be had from their rows again at any time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from chaos import figures, joining, run

CONCLUDED: Final = {run.FORMAT: figures.conclude, joining.FORMAT: joining.conclude}


def save(path: Path, document: dict[str, Any]) -> None:
    """Writes a result."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in document.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def conclude_anew(directory: Path) -> None:
    """The figures of every result from its rows by the definitions of today; the rows stay as they are."""
    for path in sorted(directory.glob("*.json")):
        document = json.loads(path.read_text())
        if (conclude := CONCLUDED.get(document["format"])) is not None:
            save(path, {**document, "figures": conclude(document)})
