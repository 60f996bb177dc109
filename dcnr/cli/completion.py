"""What a shell offers as the value of an option. Typer completes commands and options by itself; see "In your shell" in docs/reference/cli.md."""

from __future__ import annotations

from collections.abc import Callable


def among(*words: str) -> Callable[[str], list[str]]:
    """For an option that takes one of these words."""

    def completed(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return completed
