"""What commands print with ``--json``, held against the schemas in ``docs/schemas``; a property that a schema does not name is found too."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema_rs

from dcnr.cli.schemas import LINES, SCHEMAS, file_of

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "schemas"


def check_output(line: str, text: str) -> None:
    """``line``: the command as it was typed. Nothing is asked of commands that print no JSON."""
    words = line.split()
    command = next((name for count in (4, 3, 2) if (name := " ".join(words[:count])) in SCHEMAS), None)
    if command is None or ("--json" not in words and command != "dcnr ledger export"):
        return
    for value in map(json.loads, text.splitlines() if command in LINES else [text]):
        check_value(command, value)


def check_value(command: str, value: Any) -> None:
    """Raises with the place of what is wrong."""
    error = next(_validator(command).iter_errors(value), None)
    assert error is None, f"{command}: {error}"


@functools.cache
def _validator(command: str) -> Any:
    return jsonschema_rs.validator_for(_closed(json.loads((FOLDER / file_of(command)).read_text())))


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    return {**closed, "additionalProperties": False} if isinstance(schema.get("properties"), dict) else closed
