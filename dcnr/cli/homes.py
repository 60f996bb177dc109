"""Where a command's home directory and settings come from: ``--home``, then the environment, then the platform's place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from dcnr.cli.completion import among
from dcnr.cli.output import emit
from dcnr.settings import LOG_LEVELS, ClientSettings, Loaded, OrchestratorSettings, PNodeSettings, load_settings, render_settings

T = TypeVar("T")

PREFIXES: Final[Mapping[type[Any], tuple[str, str]]] = {
    PNodeSettings: ("PNODE", "pnode"),
    OrchestratorSettings: ("ORCHESTRATOR", "orchestrator"),
    ClientSettings: ("DCNR", "maintainer"),
}
"""Prefix in the environment and name of the default directory, by kind of settings."""

HomeOption = Annotated[Path | None, typer.Option("--home", help="Home directory.", show_default=False)]
LogLevelOption = Annotated[
    str | None, typer.Option(help="debug, info, warning or error.", show_default=False, autocompletion=among(*LOG_LEVELS))
]
BootstrapFileOption = Annotated[
    Path | None,
    typer.Option("--bootstrap-file", help="List of nodes of the network, one [ID@]HOST:PORT a line.", show_default=False),
]
ComponentsOption = Annotated[
    list[str] | None,
    typer.Option("--components", help="A FILE.py or module with components from outside the tree. May be repeated."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Only JSON on standard output.")]


def number_option(text: str) -> Any:
    """An option that is a number. It is read with the settings, which say what it may be and how it is meant."""
    return typer.Option(help=text, metavar="NUMBER", show_default=False)


def home_of(kind: type[Any], given: Path | None) -> Path:
    """The home directory of this command."""
    prefix, name = PREFIXES[kind]
    if given is not None:
        return given.expanduser().absolute()
    if named := os.environ.get(f"{prefix}_HOME"):
        return Path(named).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_data_dir("dcnr", appauthor=False)) / name


def settings_of(kind: type[T], home: Path, flags: Mapping[str, object]) -> Loaded[T]:
    """The settings of this command. ``flags`` as they were parsed: None and empty lists were not given, files are meant from here. Raises InvalidInput."""
    prefix, _ = PREFIXES[kind]
    given = {name: _plain(value) for name, value in flags.items() if value is not None and value != []}
    return load_settings(kind, home=home, env=os.environ, env_prefix=prefix, flags=given)


def _plain(value: object) -> object:
    """As the file of settings has it."""
    if isinstance(value, Path):
        return str(value.absolute())
    return tuple(value) if isinstance(value, list) else value


def shown(loaded: Loaded[Any]) -> dict[str, Any]:
    """Each setting with its origin, for JSON."""
    result: dict[str, Any] = {}
    for key, origin in sorted(loaded.origins.items()):
        value = loaded.value
        for part in key.split("."):
            value = getattr(value, part)
        result[key] = {"value": list(value) if isinstance(value, tuple) else value, "origin": origin}
    return result


def show_settings(kind: type[Any], home: Path, *, origin: bool, as_json: bool) -> None:
    """Prints the settings in force."""
    loaded: Loaded[Any] = settings_of(kind, home, {})
    lines = render_settings(loaded, origins=origin)
    emit({"home": str(home), "settings": shown(loaded)}, lambda: "\n".join([f"# home: {home}", *lines]), as_json=as_json)


def print_version(wanted: bool) -> None:
    """Prints the version and ends."""
    if wanted:
        from dcnr import __version__

        typer.echo(__version__)
        raise typer.Exit


VersionOption = Annotated[bool, typer.Option("--version", callback=print_version, is_eager=True, help="Show the version and exit.")]
