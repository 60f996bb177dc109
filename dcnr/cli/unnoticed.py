"""What is said of a release, and of a job: how much of it may be wrong without anybody having noticed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from dcnr.errors import Corrupt, NotFound, Unavailable

if TYPE_CHECKING:
    from dcnr.sdk.client import AsyncClient
    from dcnr.v1 import model_pb2
    from trust.exposure import Exposure

WITHIN_S: Final = 60.0
"""For reading the chain of manifests, each of which is asked for; nobody waits longer for a figure beside what they asked for."""
NOBODY_CHECKED: Final = "no audits were in force (audits = none): nobody checked what was computed"


async def told_of_release(client: AsyncClient, model: str, manifest: str) -> tuple[dict[str, Any] | None, str]:
    """Of all jobs that led to the manifest of that digest, as their chain gives it: as plain values, and as text.

    No values where audits were not in force or the chain cannot be read in `WITHIN_S`; the text says which.
    """
    from dcnr.ledger_check import exposures_of, read_ledgers
    from trust.exposure import together
    from trust.unnoticed import rules_of

    async def read(digest: str) -> model_pb2.Manifest:
        return (await client.manifest(model, digest))[1]

    try:
        async with asyncio.timeout(WITHIN_S):
            ledgers = await read_ledgers(manifest, read)
    except TimeoutError:
        return (
            None,
            f"what may be wrong unnoticed is not known: its manifests took more than {WITHIN_S:g} s; see dcnr ledger verify",
        )
    except (Corrupt, NotFound, Unavailable) as error:
        return None, f"what may be wrong unnoticed is not known: {error.message}"
    if not ledgers:
        return None, NOBODY_CHECKED
    whole = together(exposures_of(ledgers, rules_of(client.policy)))
    return unnoticed_data(whole), unnoticed_text(whole)


def unnoticed_data(exposure: Exposure) -> dict[str, Any]:
    """As plain values: steps (batches of VNodes) that may be wrong, of how many, and their share."""
    return {"steps": exposure.undetected_steps, "of": exposure.num_steps, "share": exposure.share}


def unnoticed_text(exposure: Exposure) -> str:
    """On one line, with what it assumes."""
    part = f"{exposure.undetected_steps:.1f} of {exposure.num_steps} cleared steps ({exposure.share:.2%})"
    return f"may be wrong unnoticed: at most {part} on average, were everybody to cheat as well as it can"
