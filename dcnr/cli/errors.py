"""The one place where errors become exit codes and texts: what happened, why, the next command; always on standard error.

Exit codes: 0 ok, 1 failed, 2 usage, 3 not running, 4 unreachable, 5 refused by policy, 6 timed out (`dcnr.errors`), 130 interrupted.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

import typer

from dcnr import crashpoints
from dcnr.cli import ending
from dcnr.cli.beginning import INTERRUPTED
from dcnr.errors import DcnrError
from dcnr.rpc.options import QUIET, VERBOSITY

LOADED_OBJECTS: Final = 100_000
"""New objects between two searches for garbage: a daemon loads three times as many, and none of them is garbage."""
_SHOWN_DETAILS: Final = 8


def run(app: typer.Typer, name: str) -> NoReturn:
    """Runs the command line of this process and ends it. Garbage is searched for seldom while it loads (a daemon says when it has loaded,
    `dcnr.cli.foreground.loaded`) and not at its end: otherwise that takes a third of a start, and a quarter of a short command.
    """
    gc.set_threshold(LOADED_OBJECTS)
    _print_anything()
    code = exit_code(app, name, sys.argv[1:])
    gc.freeze()
    ending.bounded(code)
    sys.exit(code)


def _print_anything() -> None:
    """A letter that the locale lacks, or a name of a file that is none in it, is written as its number, as on standard error: it ends no command."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def exit_code(app: typer.Typer, name: str, arguments: Sequence[str]) -> int:
    """Runs a command line; its exit code. Typed errors are shown here; others are bugs and keep their traceback."""
    command = typer.main.get_command(app)
    try:
        os.environ.setdefault(VERBOSITY, QUIET)  # it takes the level when it is imported
        crashpoints.arm(os.environ)
        command.main(args=list(arguments), prog_name=name)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except DcnrError as error:
        show(error)
        return error.exit_code
    except ExceptionGroup as group:
        typed = _only_typed(group)
        show(typed)
        return typed.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    return 0


def show(error: DcnrError) -> None:
    """What happened, why, what to do, on standard error."""
    lines = [f"error: {error.message}"]
    facts = [
        f"{key}={value}" for key, value in list(error.details.items())[:_SHOWN_DETAILS] if value and value not in error.message
    ]
    lines.append(f"  why: {error.code}" + (f" ({', '.join(facts)})" if facts else ""))
    if error.code == "bad_component":
        lines += _words_of_its_own(error)
    if error.remedy:
        lines.append(f"  next: {error.remedy}")
    print("\n".join(lines), file=sys.stderr)  # noqa: T201


def _words_of_its_own(error: DcnrError) -> list[str]:
    """What code from outside the tree raised, and where: others hear its class alone."""
    cause: BaseException | None = error
    while isinstance(cause, DcnrError):
        cause = cause.__cause__
    if cause is None or cause.__traceback__ is None or str(cause) in error.message:
        return []
    place = cause.__traceback__
    while place.tb_next is not None:
        place = place.tb_next
    return [f"  said: {type(cause).__name__}: {cause} ({place.tb_frame.f_code.co_filename}, line {place.tb_lineno})"]


def _only_typed(group: ExceptionGroup[Exception]) -> DcnrError:
    """The first typed error of a task group in which nothing else failed. Re-raises groups that hold a bug."""
    from dcnr.groups import first_cause  # asyncio, which short commands do without

    typed, rest = group.split(DcnrError)
    if rest is not None or typed is None:
        raise group
    found = first_cause(typed)
    assert isinstance(found, DcnrError)
    return found
