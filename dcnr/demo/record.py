"""``result.json``: what one run of the demo came to, in figures that documents are made from. It names no host, no user and no path."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dcnr.cli.files import write_whole
from dcnr.demo.facts import Facts
from dcnr.demo.story import Kill
from dcnr.demo.verdict import Verdict, exits_of
from dcnr.v1 import model_pb2

FORMAT: Final = "dcnr-demo-1"
NAME: Final = "result.json"
Row = dict[str, Any]


def document(facts: Facts, verdict: Verdict) -> Row:
    """All of it. Times are in seconds, of kills from the kill on; what was not seen is None."""
    story = facts.story
    first_s, last_s = story.first_learned_s, story.last_learned_s
    return {
        "format": FORMAT, "example": facts.example, "machine": dict(facts.machine), "held": verdict.exit_code == 0,
        "num_points": len(verdict.points), "points": [{"what": one.what, "held": one.good} for one in verdict.points],
        "num_batches": int(facts.job.num_batches), "num_pnodes": len(facts.names),
        "whole_s": round(facts.took_s, 1), "training_s": None if first_s is None or last_s is None else round(last_s - first_s, 1),
        "aim_s": facts.time_limit_s, "kills": [_kill(kill) for kill in story.kills],
        "quarantined_s": {
            facts.names.get(node_id, node_id[:8]): round(found.at_s - story.first_hosted_s.get(node_id, found.at_s), 1)
            for node_id, found in story.accused.items()
        },
        "exits": [_exit(vnode, result) for vnode, result in zip(facts.order, exits_of(facts), strict=True)],
        "batches": {
            "learned": dict(story.learned), "durable": dict(facts.durable), "cleared": dict(facts.cleared),
            "learned_again": story.relearned, "forwarded_again": story.total().forwarded,
        },
        "lookups": sum(story.lookups.values()), "backprop": _backprop(facts),
    }  # fmt: skip


def write(directory: Path, facts: Facts, verdict: Verdict) -> Path:
    """The document is whole in ``directory``, or not there. Raises Refused (``disk_trouble``)."""
    path = directory / NAME
    data = json.dumps(document(facts, verdict), indent=1) + "\n"
    write_whole(path, data.encode(), remedy="make room on that disk, or choose another --directory")
    return path


def rows(told: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a table shows of such a document."""
    found = [
        ("machine", _machine(told["machine"])),
        ("points that held", f"{sum(one['held'] for one in told['points'])} of {told['num_points']}"),
        ("all of it", f"{told['whole_s']} s"),
        ("first to last learned batch, kills included", f"{told['training_s']} s (aim: {told['aim_s']:g} s on 2 idle cores)"),
        *((f"exit {depth} (`{one['vnode']}`), test split", _shown(one)) for depth, one in enumerate(told["exits"], 1)),
        *((f"SIGKILL of {one['kind']}", _after(one)) for one in told["kills"]),
        *((f"{name} cheats", f"in quarantine after {after_s} s") for name, after_s in told["quarantined_s"].items()),
        ("batches learned again, forwarded again", f"{told['batches']['learned_again']}, {told['batches']['forwarded_again']}"),
        ("DHT look-ups of PNodes", str(told["lookups"])),
    ]  # fmt: skip
    if (backprop := told["backprop"]) is not None:
        last = _shown(backprop["exits"][-1])
        found.append(
            ("backprop, same graph and budget", f"{last} in {backprop['took_s']} s, one process, {backprop['threads']} threads")
        )
    return found


def _machine(on: Mapping[str, Any]) -> str:
    if not on:
        return "not known"
    return f"{on['cores']} cores ({on['cpu']}), {on['memory_gib']} GiB, commit {on['commit']}, load before the run {on['load_before'][0]}"


def _kill(kill: Kill) -> Row:
    return {
        "kind": kill.kind, "vnodes": list(kill.vnodes), "suspected_s": _since(kill.suspected_s, kill), "gone_s": _since(kill.gone_s, kill),
        "decided_s": _since(kill.decided_s, kill), "training_s": _since(kill.training_s, kill),
        "durable": dict(kill.durable), "restored": {vnode: one.num_learned for vnode, one in kill.resumed.items() if not one.is_from_start},
    }  # fmt: skip


def _since(at_s: float | None, kill: Kill) -> float | None:
    return None if at_s is None else round(at_s - kill.at_s, 1)


def _exit(vnode: str, result: model_pb2.ExitResult) -> Row:
    return {
        "vnode": vnode,
        "count": int(result.count),
        "correct": int(result.correct),
        **_of(result.correct / max(1, result.count), result.sum_loss / max(1, result.count)),
    }


def _backprop(facts: Facts) -> Row | None:
    compared = facts.reference
    if compared is None or compared.trouble:
        return None
    exits = [{"vnode": vnode, **_of(accuracy, loss)} for vnode, accuracy, loss in compared.exits]
    return {"exits": exits, "took_s": round(compared.took_s, 1), "threads": compared.threads}


def _of(accuracy: float, loss: float) -> Row:
    """Both as people read them: percent, and bits."""
    return {"accuracy_percent": round(100 * accuracy, 2), "bits": round(loss / math.log(2), 4)}


def _shown(one: Mapping[str, Any]) -> str:
    return f"{one['accuracy_percent']} %, {one['bits']} bits each"


def _after(kill: Mapping[str, Any]) -> str:
    if kill["kind"] != "PNode":
        return f"another decides after {kill['decided_s']} s, next batch seen after {kill['training_s']} s"
    return (
        f"suspected after {kill['suspected_s']} s, taken for gone after {kill['gone_s']} s, placed elsewhere after {kill['decided_s']} s, "
        f"training again after {kill['training_s']} s"
    )
