"""What is said of a release, and of a job: how much of it may be wrong without anybody having noticed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dcnr.errors import Corrupt, NotFound, Unavailable

if TYPE_CHECKING:
    from dcnr.sdk.client import AsyncClient
    from dcnr.v1 import model_pb2
    from trust.exposure import Exposure

NOBODY_CHECKED = "no audits were in force (audits = none): nobody checked what was computed"


async def told_of_release(client: AsyncClient, model: str, manifest: str) -> tuple[dict[str, Any] | None, str]:
    """Of all jobs that led to the manifest of that digest, as their chain gives it: as plain values, and as text.

    No values where audits were not in force or the chain cannot be read; the text says which.
    """
    from dcnr.ledger_check import exposures_of, read_ledgers
    from trust.unnoticed import rules_of

    async def read(digest: str) -> model_pb2.Manifest:
        return (await client.manifest(model, digest))[1]

    try:
        ledgers = await read_ledgers(manifest, read)
    except (Corrupt, NotFound, Unavailable) as error:
        return None, f"what may be wrong unnoticed is not known: {error.message}"
    if not ledgers:
        return None, NOBODY_CHECKED
    whole = together(exposures_of(ledgers, rules_of(client.policy)))
    return unnoticed_data(whole), unnoticed_text(whole.undetected_steps, whole.num_steps)


def together(exposures: Sequence[Exposure]) -> Exposure:
    """Of a release that is made of these jobs."""
    from trust.exposure import Exposure

    return Exposure(sum(one.undetected_steps for one in exposures), sum(one.num_steps for one in exposures), cheaters=1.0)


def unnoticed_data(exposure: Exposure) -> dict[str, Any]:
    """As plain values: steps (batches of VNodes) that may be wrong, of how many, and their share."""
    return {"steps": exposure.undetected_steps, "of": exposure.num_steps, "share": exposure.share}


def unnoticed_text(steps: float, num_steps: int) -> str:
    """On one line, with what it assumes."""
    share = steps / num_steps if num_steps else 0.0
    return f"may be wrong unnoticed: at most {steps:.1f} of {num_steps} cleared steps ({share:.2%}) on average, were everybody to cheat as well as it can"
