"""Where an orchestrator keeps what it draws with: 32 random bytes in a file of its home, made at its first start, readable by its owner alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from shlex import quote

from dcnr.crashpoints import reached
from dcnr.errors import Corrupt, Refused
from trust.draw import MIN_SECRET_BYTES, Secret


def load_or_create_secret(path: Path, random_bytes: Callable[[int], bytes]) -> Secret:
    """The secret at ``path``. Raises Refused (``key_permissions``, ``key_unusable``), Corrupt (``bad_secret``).

    One that is lost costs nothing: what was drawn stands in manifests, and what comes is drawn with another.
    """
    try:
        _create(path, random_bytes(MIN_SECRET_BYTES))
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            data = file.read(MIN_SECRET_BYTES + 1)
    except OSError as error:
        raise Refused(
            f"{path} cannot be used: {error.strerror}", code="key_unusable", remedy="let this user read and write that directory"
        ) from error
    if os.name == "posix" and mode & 0o077:
        raise Refused(
            f"what audits are drawn with at {path} can be read by others (mode {mode:04o})", code="key_permissions",
            remedy=f"chmod 600 {quote(str(path))}; if others may have read it, delete it: a new one is made at the next start",
        )  # fmt: skip
    if len(data) != MIN_SECRET_BYTES:
        raise Corrupt(
            f"{path} does not hold {MIN_SECRET_BYTES} bytes",
            code="bad_secret",
            remedy="delete it: a new one is made at the next start",
        )
    return Secret(data)


def _create(path: Path, data: bytes) -> None:
    """Whole or not at all; a file that is there stays as it is."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        reached("secret.drafted")
        os.link(draft, path)
        reached("secret.linked")
    except FileExistsError:
        return  # another process was faster: its secret is the secret
    finally:
        draft.unlink()
