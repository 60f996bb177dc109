"""How surely audits see a cheat: every behaviour of ``examples/byzantine`` in intervals of several components, checked with the committed tolerances.

Small stages of every kind that the examples have learn 16 steps; and for each behaviour some learn 256, as long as an interval gets, where a cheat in few
steps is thinner. Each interval is replayed by auditors on four machines: this one as it is, which claims as well, to the end of the interval, and those of
`benchmarks.tolerances.MACHINES`, to the first fault, as auditors do. What they say goes to the audit desk of the orchestrator (`decided`), whose
verdict counts: an interval is detected where it does not stay in the model, because it failed, which puts its PNode into quarantine, or because enough
doubted it, which takes it back and blames nobody.

Whoever scales gradients that are clipped in every step cheats nobody: the scale is undone there. So an interval counts as cheated only where what it claims is
further from what an honest worker of the same machine claims than rounding leads (`changes_nothing`); where it is not, another seed is drawn.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import count, cycle
from pathlib import Path
from typing import Final

import numpy as np
import torch

from benchmarks.kept import Kept, judging, key_of
from benchmarks.result import Options, Result, Row, Target
from benchmarks.tolerance_cases import REGISTRY, Case
from benchmarks.tolerance_machine import load, save
from benchmarks.tolerances import FLOOR, LOOSE, MACHINES, rows_of
from dcnr.errors import InvariantBroken
from dcnr.ids import digest_of
from dcnr.intervals import IntervalSet
from dcnr.specs import Config
from examples.byzantine.behaviours import BEHAVIOURS, Behaviour
from examples.byzantine.worker import CheatingCompute
from orchestrator.audit_case import GIVE_UP_S, LOOK_S
from orchestrator.audit_events import Bundle, People, Report, SendTask, VerifyRecord, Word
from orchestrator.audits import AuditDesk
from trust.auditors import Candidate
from trust.comparison import Outcome, judge
from trust.draw import MIN_SECRET_BYTES, Secret
from trust.findings import finding_of
from trust.ledger import Interval, Ledger, Verdict
from trust.overturned import Finding
from trust.separation import Party, Separation
from trust.standing import State
from vnode.checks import residuals
from vnode.checks.claims import Claim
from vnode.checks.plan import StageChecks, checks_of_stage
from vnode.checks.replay import replay
from vnode.checks.torch_record import as_array, record
from vnode.checks.torch_sides import TwoSidedCompute
from vnode.checks.torch_sketch import Sketch
from vnode.state import parse
from vnode.torch_compute import TorchCompute
from vnode.torch_stage import schema_of

NUM_STEPS: Final = 16
NUM_BATCHES: Final = 64
LONG_STEPS: Final = 256
LONG_SEED: Final = 0
"""With this seed the stages of `LONG` learn so many besides."""
LONG_PART: Final = "long"
LONG: Final = ("linear_block", "conv_block", "transformer_block")
HERE: Final = "as it is, 1 thread"
NUM_REDRAWS: Final = 8
"""At most so many seeds instead of one. A cheat that changes nothing with any of them is counted with the last."""
REDRAWN: Final = 1_000
"""From one of these seeds to the next: none of them is another interval's."""
REDRAWS: Final = "redraws.json"
"""Beside the claims: how often each was drawn again."""
NUM_AUDITORS: Final = 8
"""Independent PNodes that are free to audit, two on each machine."""
STAGES: Final[tuple[tuple[str, Config, tuple[int, ...], float], ...]] = (
    ("linear", {"out_features": 12}, (20,), 0.0),
    ("linear_block", {}, (16,), 0.0),
    ("conv_block", {"out_channels": 6, "pool": 2}, (3, 6, 6), 0.0),
    ("transformer_block", {"heads": 2}, (8, 16), 1.0),
    ("byte_embedding", {"width": 16, "blocks": 1, "heads": 2}, (16,), 1.0),
)
"""Component, its configuration, what it reads, and where gradients are clipped."""
TEXT: Final = ("transformer_block", "byte_embedding")
CASES: Final = tuple(
    Case(component, component, config, shape, optimizer, 16, clip=clip)
    for optimizer in ("sgd", "adamw")
    for component, config, shape, clip in STAGES
)


def run(options: Options) -> Result:
    """``rounds`` seeds of every behaviour and component, one interval of 16 steps each, and one of 256 of some; outputs as int8 in every second. What was
    measured of a seed is kept.
    """
    torch.set_num_threads(1)
    names = list(MACHINES)[-1:] if options.quick else list(MACHINES)
    settings: Row = {
        "num_steps": NUM_STEPS, "long_steps": LONG_STEPS, "batch_size": 16,
        "behaviours": [behaviour.name for behaviour in BEHAVIOURS], "machines": [HERE, *names],
        "auditors": NUM_AUDITORS, "seeds": options.rounds,
    }  # fmt: skip
    result = Result("detection", "Cheats that audits see", settings)
    claims = options.scratch / "claims"
    claims.mkdir(parents=True, exist_ok=True)
    kept = Kept(options.kept and options.kept / "detection.jsonl")
    code = key_of(judging("benchmarks/detection.py", "benchmarks/tolerance*.py", "examples/byzantine/*"))
    for part in [*map(str, range(options.rounds)), *([] if options.quick else [LONG_PART])]:
        key = json.dumps([code, names, part, options.quick])
        result.rounds += kept.row(key, partial(_measured, claims, part, names, quick=options.quick))["rows"]
    for row in result.rounds:
        row["verdict"] = decided(row["replay"], seed=f"{row['case']} {row['behaviour']} {row['seed']} {row['steps']}").value
    conclude(result)
    return result


def _measured(claims: Path, part: str, names: Sequence[str], *, quick: bool) -> Row:
    """``rows``: what each machine makes of the cheats of one part."""
    rows: list[Row] = []
    honest: dict[str, Claim] = {}
    for number, (wanted, behaviour, codec) in enumerate(_cheats(part, quick=quick)):
        case, claim = drawn(wanted, behaviour, codec, honest)
        save(claims / str(number), replace(claim, steps=tuple(replace(step, maps={}) for step in claim.steps)))
        rows.append(
            {
                "case": f"{case.name}, {case.optimizer}", "behaviour": behaviour.name, "seed": wanted.seed,
                "redraws": (case.seed - wanted.seed) // REDRAWN, "codec": codec, "steps": len(claim.steps),
                "replay": [_replayed(case, claim, to_the_end=True)], "sketch": _seen_by_sketch(case, claim),
            }
        )  # fmt: skip
    (claims / REDRAWS).write_text(json.dumps([row["redraws"] for row in rows]))

    def elsewhere(name: str) -> list[Row]:
        environment, threads = MACHINES[name]
        words = [str(claims), part, str(threads), *(["quick"] if quick else [])]
        return rows_of("benchmarks.detection", words, environment)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for found in pool.map(elsewhere, names):
            for row, ratio in zip(rows, found, strict=True):
                row["replay"].append(ratio["replay"])
    for path in claims.iterdir():
        path.unlink()
    return {"rows": rows}


def _cheats(part: str, *, quick: bool) -> Iterator[tuple[Case, Behaviour, str]]:
    """All with one seed, or the long ones."""
    if part == LONG_PART:
        for case in [one for one in CASES if one.component in LONG]:
            for behaviour in BEHAVIOURS:
                yield replace(case, seed=LONG_SEED, num_steps=LONG_STEPS), behaviour, "raw"
        return
    seed = int(part)
    for case in CASES[1:4:2] if quick else CASES:
        for behaviour in BEHAVIOURS:
            yield replace(case, seed=seed, num_steps=NUM_BATCHES), behaviour, "int8" if seed % 2 else "raw"


def _num_steps(case: Case) -> int:
    """Of its interval: a job of 256 batches is one interval."""
    return LONG_STEPS if case.num_steps == LONG_STEPS else NUM_STEPS


def drawn(wanted: Case, behaviour: Behaviour, codec: str, honest: dict[str, Claim]) -> tuple[Case, Claim]:
    """What the cheat says that it did, with the first seed with which it did something else than learn; ``honest``: the last claims of honest workers, of
    use for all twelve ways to cheat.
    """
    for redraws in range(NUM_REDRAWS + 1):
        case = _redrawn(wanted, redraws)
        claim = _recorded(case, behaviour, codec, checks_of_stage(case.stage(), REGISTRY), _num_steps(case))
        num_steps = len(claim.steps)
        if (name := f"{case} {num_steps}") not in honest:
            honest.clear()
            compute = TorchCompute(case.stage(), REGISTRY, num_batches=case.num_steps, seed=case.seed)
            honest[name] = record(compute, case.first(), case.entries(num_steps))
        if not changes_nothing(case, claim, honest[name]):
            break
    return case, claim


def _redrawn(case: Case, redraws: int) -> Case:
    return replace(case, seed=case.seed + redraws * REDRAWN)


def changes_nothing(case: Case, claim: Claim, honest: Claim) -> bool:
    """Whether an honest worker of the same machine sends the same and ends in the same state, but for as much as honest machines are taken to part by
    (`benchmarks.tolerances.FLOOR`, of what the steps move). Where a weight without a gradient wandered to is no harm.
    """
    for claimed, found in zip(claim.steps, honest.steps, strict=True):
        if residuals.loss_residual(claimed.loss, found.loss) > FLOOR:
            return False
        pairs = zip(claimed.sent, found.sent, strict=True)
        if any(residuals.output_residual(sent, mine, codec) > FLOOR for (sent, codec), (mine, _) in pairs):
            return False
    last, schema = len(claim.steps), schema_of(case.stage(), REGISTRY)
    first, theirs, mine = (parse(state, schema)[1] for state in (honest.states[0], claim.states[last], honest.states[last]))
    return all(item.residual <= FLOOR for item in residuals.state_residuals(first, theirs, mine, last) if item.part != LOOSE)


def _seen_by_sketch(case: Case, claim: Claim) -> float | None:
    """What a sketch makes of it, where the stage has what that needs."""
    stage = case.stage()
    checks = checks_of_stage(stage, REGISTRY)
    if not checks.maps:
        return None
    sketch = Sketch(stage, REGISTRY, checks, secret=f"secret {case.seed}".encode(), num_batches=case.num_steps, seed=case.seed)
    return _ratio(judge(sketch.check(claim, checks.sketch()), to_the_end=True))


def _recorded(case: Case, behaviour: Behaviour, codec: str, checks: StageChecks, num_steps: int) -> Claim:
    """Of half as many steps, and so on, where whoever cheats so has no finite gradients before that many are learned."""
    cheat = CheatingCompute(case.stage(), REGISTRY, behaviour, num_batches=case.num_steps, seed=case.seed, num_steps=num_steps)
    span = checks.replay().span_steps
    try:
        return record(cheat, case.first(), case.entries(num_steps), codec=codec, state_every=span, sketched=checks)
    except InvariantBroken:
        if num_steps <= NUM_STEPS:
            raise
        return _recorded(case, behaviour, codec, checks, num_steps // 2)


def _replayed(case: Case, claim: Claim, *, to_the_end: bool = False) -> float:
    stage = case.stage()
    honest = TwoSidedCompute(stage, REGISTRY, num_batches=case.num_steps, seed=case.seed)
    limits, rng = checks_of_stage(stage, REGISTRY).replay(), np.random.default_rng(case.seed)
    found = replay(honest, schema_of(stage, REGISTRY), claim, limits, as_array=as_array, rng=rng)
    return _ratio(judge(found, to_the_end=to_the_end))


def _ratio(outcome: Outcome) -> float:
    """The worst residual that was met in units of its tolerance, at most a million."""
    return 0.0 if outcome.worst is None else float(f"{min(outcome.worst.ratio, 1e6):.4g}")


# ---- what is decided ------------------------------------------------------------------------------------------------------------


def decided(ratios: list[float], *, seed: str) -> Verdict:
    """The verdict of a real audit desk with a verifier on an interval that machines measure so, each auditor on one of them; ``seed``: who is drawn.

    The verifier is on the machine that claims, and proves a fault where it measures one itself. Raises TimeoutError where nothing is decided in time.
    """
    name, verifier = digest_of(seed.encode()), Party("verifier", "operator", "v")
    here = [Candidate(Party(f"n{number}", f"o{number}", f"s{number}"), State.ACTIVE, True) for number in range(NUM_AUDITORS)]
    measured = {verifier.node_id: ratios[0], **dict(zip((one.party.node_id for one in here), cycle(ratios), strict=False))}
    secret = Secret((seed * MIN_SECRET_BYTES).encode()[:MIN_SECRET_BYTES])
    desk = AuditDesk(secret, Separation(), map("{:032x}".format, count()).__next__)
    here.append(Candidate(Party("accused", "o", "a"), State.ACTIVE, True))
    people = People({one.party.node_id: one for one in here}, (verifier,))
    interval = Interval(name, 0, "v", "v.0", "accused", IntervalSet.span(0, NUM_STEPS), Verdict.OPEN)
    now_s = 0.0
    desk.tick(people, now_s)
    desk.chronicle(Ledger({}, {name: interval}), now_s)
    desk.answered("accused", name, Bundle(name, 1), now_s)
    while now_s <= 2 * GIVE_UP_S:
        _act(desk, measured, now_s)
        for decision in desk.decisions():
            return decision.verdict
        now_s += LOOK_S
        desk.tick(people, now_s)
    raise TimeoutError(f"the desk decided nothing about {seed}, which machines measured as {ratios}")


def _act(desk: AuditDesk, measured: Mapping[str, float], now_s: float) -> None:
    """Does what the desk asks for until it asks for nothing more."""
    while actions := desk.take():
        for action in actions:
            match action:
                case SendTask(task_id=task_id, auditor=auditor, interval=interval):
                    word = Word(finding_of(measured[auditor], 1.0).value)
                    desk.reported(Report(task_id, auditor, interval, word, record=interval if word is Word.FAULT else ""), now_s)
                case VerifyRecord(interval=interval, auditor=auditor):
                    proven = finding_of(measured["verifier"], 1.0) is Finding.FAULT
                    desk.verified(interval, auditor, now_s, proven=proven)
                case _:
                    pass


# ---- figures --------------------------------------------------------------------------------------------------------------------


def conclude(result: Result) -> None:
    """By behaviour: what one auditor says, what the desk decides, the faintest interval, and seeds of which nothing stays."""
    for name in result.settings["behaviours"]:
        rows = [row for row in result.rounds if row["behaviour"] == name]
        said = [finding_of(ratio, 1.0) for row in rows for ratio in row["replay"]]
        result.medians[name] = {
            **{f"one_says_{finding.value}": round(said.count(finding) / len(said), 4) for finding in Finding},
            "failed": _share(rows, Verdict.FAILED), "taken_back": _share(rows, Verdict.UNVERIFIABLE), "stays": _share(rows, Verdict.PASSED),
            "seeds_of_which_nothing_stays": _seeds(rows), "replay_faintest_ratio": min(row["replay"][0] for row in rows),
            "sketch_caught": _sketched(rows), "sketch_faintest_ratio": min(row["sketch"] for row in rows if row["sketch"] is not None),
        }  # fmt: skip
    num, stay = len(result.rounds), _share(result.rounds, Verdict.PASSED)
    redraws = sum(row.get("redraws", 0) for row in result.rounds)
    result.ratios = {
        "intervals": num,
        "redraws": redraws,
        "detected": round(1.0 - stay, 4),
        "failed": _share(result.rounds, Verdict.FAILED),
    }
    wanted = 0 if result.settings["seeds"] < 20 else 500
    fewest = min(row["seeds_of_which_nothing_stays"] for row in result.medians.values())
    text = [row for row in result.rounds if row["case"].startswith(TEXT)]
    long = [row for row in result.rounds if row.get("steps", NUM_STEPS) == LONG_STEPS]
    result.targets = [
        Target("cheated intervals that were audited", num, wanted, "", at_least=True),
        Target("of them, do not stay in the model", result.ratios["detected"], 0.99, "", at_least=True),
        Target("of those of text stages, do not stay", _gone(text), 0.99, "", at_least=True),
        *([] if _is_quick(result) else [Target("of those of 256 steps, do not stay", _gone(long), 0.99, "", at_least=True)]),
        Target("seeds of a behaviour of which nothing stays, fewest", fewest, result.settings["seeds"], "", at_least=True),
        Target("cheated intervals that a sketch sees", _sketched(result.rounds), 0.99, "", at_least=True),
    ]
    result.notes = [
        "Ratios are worst residuals in units of their tolerance: up to 1 an auditor passes an interval, up to 2 it doubts it, above it "
        "accuses. Cells are shares and minima, not medians. `failed`: the verifier measured the fault as well, and the PNode is quarantined; `taken_back`: "
        "three auditors and the verifier doubted, so that the batches are learned again and nobody is blamed. `one_percent_more` with AdamW changes no "
        "weights, since each step is divided by the size of the gradients; what is seen of it is what the optimiser keeps. "
        f"Drawn again, because the cheat changed nothing but last bits of what an honest worker claims: {redraws} (gradients that are scaled and then clipped)."
    ]


def _share(rows: list[Row], verdict: Verdict) -> float:
    return round(len([row for row in rows if row["verdict"] == verdict.value]) / len(rows), 4)


def _gone(rows: list[Row]) -> float | None:
    return round(1.0 - _share(rows, Verdict.PASSED), 4) if rows else None


def _is_quick(result: Result) -> bool:
    return len(result.settings["machines"]) < 1 + len(MACHINES)


def _sketched(rows: list[Row]) -> float:
    ratios = [row["sketch"] for row in rows if row["sketch"] is not None]
    return round(len([ratio for ratio in ratios if ratio > 1.0]) / len(ratios), 4)


def _seeds(rows: list[Row]) -> int:
    stays = {row["seed"] for row in rows if row["verdict"] == Verdict.PASSED.value}
    return len({row["seed"] for row in rows} - stays)


# ---- another machine ------------------------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> None:
    """``DIRECTORY PART THREADS [quick]``: replays the claims of a part's cheats, a row a line as JSON."""
    directory, part, threads = arguments[:3]
    torch.set_num_threads(int(threads))
    redraws = json.loads((Path(directory) / REDRAWS).read_text())
    for number, (wanted, _, codec) in enumerate(_cheats(part, quick="quick" in arguments)):
        case = _redrawn(wanted, redraws[number])
        claim = load(Path(directory) / str(number), case, codec)
        print(json.dumps({"replay": _replayed(case, claim)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
