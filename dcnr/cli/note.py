"""What ``pnode note`` and the page of one's own machine say: what a machine was good for in the last seven days, and what would make it more useful.

Two sources that are not mixed: the diary of its own daemon says what it did, the chain of manifests what of it is credited. What one of them does not know
is said to be unknown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dcnr.cli import output
from dcnr.errors import DcnrError

if TYPE_CHECKING:
    from dcnr.ledger_check import JobLedger
    from pnode.diary import Week

CONTRIBUTING: Final = ("working", "serving")
"""States in which a PNode computes for the model."""
WORTH_S: Final = 3600.0
"""Time lost that is worth a word."""
MOST_ADVICE: Final = 2
LEDGER_WITHIN_S: Final = 120.0
UNKNOWN: Final = "unknown"
NOT_TOLD: Final = "nobody told the chain of manifests in time"
ADVICE: Final = {
    UNKNOWN: ("off, asleep or not known", "leave it on while you do not need it: limits hold whatever it is asked to do"),
    "paused": ("paused", "`pnode pause --for 2h` ends by itself, a pause without an end does not"),
    "idle": ("without work", "lend more memory or cores: Help wanted on the dashboard says what VNodes wait for"),
    "refusing": ("given work that its limits refuse", "`pnode why` names the limit, `pnode config show` all of them"),
    "alone": ("out of touch with every orchestrator", "`pnode why` says what it tried"),
    "joining": ("looking for its network", "check --bootstrap and the network"),
    "starting": ("without a worker", "log/worker.log in the home directory has its last words"),
    "quarantined": ("in quarantine", "`pnode why` names the evidence; where nobody meddled, memory or processor may be at fault"),
    "rehab": ("in rehab after a quarantine", "nothing: it ends by itself"),
    "waiting": ("waiting for audits or for a paused job", "nothing: it goes on by itself"),
}
"""By state: how time in it is called, and what would change it."""


async def own_note(home: Path, model: str) -> dict[str, Any]:
    """The note of the PNode on ``home``, whether or not its daemon or an orchestrator answers. Raises NotFound (``no_network``)."""
    from dcnr.cli.receipt import own_id

    pnode_id = own_id(home)
    try:
        async with asyncio.timeout(LEDGER_WITHIN_S):
            ledgers, unknown = await _ledgers(home, model), ""
    except DcnrError as error:
        ledgers, unknown = None, error.message
    except TimeoutError:
        ledgers, unknown = None, NOT_TOLD
    return note_of_home(home, pnode_id, ledgers, unknown)


def note_of_home(home: Path, pnode_id: str, ledgers: Sequence[JobLedger] | None, unknown: str) -> dict[str, Any]:
    """As `note_data`, with the diary that lies there, as of now."""
    from pnode.diary import read_week
    from pnode.home import Home

    now_s = time.time()
    return note_data(pnode_id, read_week(Home(home).diary, now_s), ledgers, unknown, now_s)


def note_data(pnode_id: str, week: Week | None, ledgers: Sequence[JobLedger] | None, unknown: str, now_s: float) -> dict[str, Any]:
    """As plain values. ``week``, ``ledgers`` None: not known, the latter for the reason ``unknown``."""
    from pnode.diary import week_begins_s

    since_s = week_begins_s(now_s)
    machine = _machine(week) if week is not None else None
    return {
        "pnode": pnode_id, "since_s": since_s, "until_s": now_s, "machine": machine,
        "credit": _credit(pnode_id, ledgers, since_s) if ledgers is not None else None, "credit_unknown": unknown,
        "advice": _advice(machine["seconds"]) if machine is not None else [],
    }  # fmt: skip


def note_text(data: dict[str, Any]) -> str:
    """For people."""
    lines = [f"PNode {data['pnode']}, the last seven days, since {_moment(data['since_s'])}"]
    machine, credit = data["machine"], data["credit"]
    if machine is None:
        lines.append("at work    not known: this machine has kept no diary yet")
    else:
        spent = {state: seconds for state, seconds in machine["seconds"].items() if state not in CONTRIBUTING and seconds >= 1}
        others = [
            f"{output.duration(seconds)} {_called(state)}" for state, seconds in sorted(spent.items(), key=lambda one: -one[1])
        ]
        lines += [
            f"at work    {output.duration(machine['contributing_s'])}" + "".join(f", {other}" for other in others),
            f"learned    {machine['num_learned']} batches here, by its own count; took part in {machine['num_questions']} answers",
            f"           known since {_moment(machine['known_since_s'])}, as of {_moment(machine['as_of_s'])}",
        ]
    if credit is None:
        lines.append(f"credited   not known: {data['credit_unknown']}")
    elif not credit["audited"]:
        lines.append("credited   nothing: audits are not in force, so nothing is checked")
    else:
        share = f" ({100 * credit['cleared'] / credit['of']:.1f} % of everybody's)" if credit["of"] else ""
        lines += [
            f"credited   {credit['cleared']} batches of VNodes cleared{share}, {credit['waiting']} wait for audits, {credit['taken_back']} taken back",
            f"audits     {credit['passed']} passed, {credit['failed']} failed, of what manifests named in these days; proof of all days: pnode receipt",
        ]
        lines += [f"           the ledger does not hold: {credit['problem']}"] if credit["problem"] else []
    lines += [f"more use   {one['reason']}: {one['change']}" for one in data["advice"]]
    return "\n".join(lines)


async def _ledgers(home: Path, model: str) -> list[JobLedger]:
    """The chain of manifests, as ``dcnr ledger scores`` reads it."""
    from dcnr.cli.receipt import newest_model, own_client
    from dcnr.ledger_check import read_ledgers
    from dcnr.v1 import model_pb2

    async with await own_client(home) as client:
        named = model or await newest_model(client)

        async def read(digest: str) -> model_pb2.Manifest:
            return (await client.manifest(named, digest))[1]

        return await read_ledgers((await client.manifest(named))[0], read)


def _machine(week: Week) -> dict[str, Any]:
    """What the diary says. Time between its beginning and its last word that is in no state is unknown."""
    known = {state: round(seconds, 1) for state, seconds in sorted(week.seconds.items())}
    unknown_s = round(max(0.0, week.as_of_s - week.known_since_s - sum(known.values())), 1)
    return {
        "known_since_s": week.known_since_s, "as_of_s": week.as_of_s, "contributing_s": round(sum(known.get(state, 0.0) for state in CONTRIBUTING), 1),
        "seconds": {**known, UNKNOWN: unknown_s}, "num_learned": week.num_learned, "num_questions": week.num_questions,
    }  # fmt: skip


def _credit(pnode_id: str, ledgers: Sequence[JobLedger], since_s: float) -> dict[str, Any]:
    from dcnr.ledger_check import Account, accounts_of

    accounts = accounts_of(ledgers, since_s)
    own = next((one for one in accounts if one.pnode_id == pnode_id), Account(pnode_id))
    return {
        "audited": bool(ledgers), "problem": next((one.problem for one in ledgers if one.problem), ""), "cleared": own.cleared,
        "of": sum(one.cleared for one in accounts), "waiting": own.waiting, "taken_back": own.taken_back, "passed": own.num_passed,
        "failed": own.num_failed,
    }  # fmt: skip


def _advice(seconds: dict[str, float]) -> list[dict[str, str]]:
    """Where most time was lost, most first."""
    lost = sorted(((spent_s, state) for state, spent_s in seconds.items() if state in ADVICE and spent_s >= WORTH_S), reverse=True)
    return [
        {"code": state, "reason": f"it was {ADVICE[state][0]} for {output.duration(spent_s)}", "change": ADVICE[state][1]}
        for spent_s, state in lost[:MOST_ADVICE]
    ]


def _called(state: str) -> str:
    return ADVICE[state][0] if state in ADVICE else state


def _moment(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_s))
