"""A network with attackers in one process: real training, real replays and the policy of `trust`, in virtual time; no messages, and nothing gets lost.

A VNode is hosted by one PNode for a few intervals, then by another. Attackers cheat in one of twelve ways, some of them rarely; as auditors some wave
everything through, others slander now and then: they fault what they were given. Some begin with a record that they have earned honestly before, up to one with
which intervals are drawn at the floor. Whoever is found out comes back at once under a new name; what was spared of the old one is drawn late, and what it
passed lately is audited again, as the holder does it.

All replays run in this process, where honest ones come out to the last bit. What other machines would find of honest work is drawn from what they were measured
to find (`benchmarks.honest`), anew for each audit.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from benchmarks.merging_replicas import Points, Setting
from dcnr.errors import InvariantBroken
from dcnr.ids import digest_of
from dcnr.intervals import IntervalSet
from dcnr.stages import INPUT
from examples.byzantine.behaviours import BEHAVIOURS, Behaviour
from examples.byzantine.worker import CheatingCompute
from trust.comparison import judge
from trust.draw import LAST_AUDITORS, Secret, Task, floors_of, is_drawn, is_last, rate, task_of
from trust.exposure import Drawn, Life
from trust.findings import finding_of
from trust.folding import Told
from trust.going_back import Cause, gone_back, way_back
from trust.late_draw import BURST_LOSS, UNLEARNED, backwards, drawn_of_the_found_out, left_behind
from trust.ledger import Interval, Ledger, Named, Verdict
from trust.overturned import AGAIN_S, Finding
from trust.standing import PLACEABLE, WORKING, Doubted, Faulted, Passed, Standing, State, Waited, after, begun, folded
from vnode.checks.claims import Claim
from vnode.checks.plan import checks_of_stage
from vnode.checks.replay import replay
from vnode.checks.torch_record import Entry, as_array, record
from vnode.registry import default_registry
from vnode.torch_compute import TorchCompute
from vnode.torch_stage import initial_state, schema_of
from vnode.vocabulary import Mode

NUM_STEPS: Final = 16
"""Of one interval."""
TENURE: Final = 4
"""Intervals after which a VNode moves to another PNode."""
INTERVAL_S: Final = 600.0
RECORDS: Final = (0, 25, 60, 400)
"""Passed audits with which a PNode comes, whether honest or not."""
RARELY: Final = 0.05
FREQUENCIES: Final = (1.0, 0.5, RARELY)
"""How often an attacker cheats."""
SLANDERERS: Final = 0.5
"""Of attackers; as often each of them slanders, where it audits."""
CODEC: Final = "raw"
FLOORS: Final = floors_of(0.0)
NEAR_FLOOR: Final = 1.2
"""Times the lowest rate: a record of 400 audits fades a little while a job lasts."""
REGISTRY: Final = default_registry()


@dataclass
class Node:
    """One name. ``behaviour`` None: an honest PNode."""

    name: str
    standing: Standing
    behaviour: Behaviour | None = None
    often: float = 0.0
    slanders: bool = False
    life: list[Drawn] = field(default_factory=list)
    waved: list[tuple[str, float]] = field(default_factory=list)
    """Intervals that it passed as an auditor without a look, and when."""


@dataclass
class Figures:
    """What is counted."""

    steps: int = 0
    bad_offered: int = 0
    bad_kept: int = 0
    audits: int = 0
    faults: int = 0
    doubts: int = 0
    late: int = 0
    """Spared intervals drawn late, since their PNode was found out."""
    at_floor: int = 0
    """Intervals that were drawn near the lowest rate."""
    rare_at_floor: int = 0
    """Wrong steps that were offered in such, by who cheats rarely."""
    slanders: int = 0
    """Intervals that were right and that an attacker faulted; the verifier found nothing."""
    canaries_failed: int = 0
    broken_states: int = 0
    """From which a host could not learn; where an honest one could not, the intervals before were checked."""
    honest: int = 0
    honest_quarantined: int = 0
    names: int = 0
    lives: list[Life] = field(default_factory=list)
    loss: float = 0.0


class World:
    """Run it with `train`. ``share``: of all PNodes that attack; 0: the clean run with the same data and draws. ``residuals``: of honest work, as other
    machines find it, in units of the tolerance, each with how often.
    """

    def __init__(self, setting: Setting, *, num_nodes: int, share: float, residuals: Sequence[tuple[float, int]]) -> None:
        self.setting, self.figures = setting, Figures()
        self._residuals, self._weights = [value for value, _ in residuals], [number for _, number in residuals]
        self._rng = random.Random(setting.seed)
        self._secret = Secret(random.Random(setting.seed + 1).randbytes(32))
        self._stages, self._points = setting.stages(), Points(setting)
        self._now_s = 1e6
        self._nodes: list[Node] = []
        num_bad = round(share * num_nodes)
        for number in range(num_nodes):
            self._nodes.append(self._node(is_bad=number < num_bad))
        self.figures.honest = num_nodes - num_bad
        firsts = [
            initial_state(stage, REGISTRY, seed=setting.seed, model="attackers", graph="0" * 64, num_batches=setting.num_batches)
            for stage in self._stages
        ]
        self._states: dict[str, bytes] = {digest_of(data): data for data in firsts}
        ids = [stage.id for stage in self._stages]
        self._ledger = Ledger({name: (Named(digest_of(data), ()),) for name, data in zip(ids, firsts, strict=True)}, {})
        self._behind = {name: frozenset(ids[at + 1 :]) for at, name in enumerate(ids)}
        self._frames: dict[str, dict[int, Any]] = {name: {} for name in ids}
        self._hosts: dict[str, tuple[Node, int]] = {}
        self._bad: dict[str, int] = {}
        self._claims: dict[str, Claim] = {}
        """Of all intervals: some are looked at again."""
        self._told: list[Told] = []
        """What the draw said, in order."""
        self._found_out_s: dict[str, float] = {}
        """By name of who was found out: until when what it did is suspect."""
        self._num_tenures = 0

    def train(self, max_rounds: int) -> Figures:
        """Until every VNode has learned every batch. Raises RuntimeError where that takes more rounds."""
        for _ in range(max_rounds):
            open_vnodes = [at for at in range(len(self._stages)) if self._missing(at)]
            if not open_vnodes:
                return self._concluded()
            self._now_s += INTERVAL_S
            for at in open_vnodes:
                self._interval(at)
            self._draw_late()
        raise RuntimeError(f"not trained after {max_rounds} rounds")

    def _node(self, *, is_bad: bool) -> Node:
        self.figures.names += 1
        earlier = [Passed(self._now_s, self._now_s, NUM_STEPS)] * self._rng.choice(RECORDS)
        node = Node(f"n{self.figures.names}", folded(begun(self._now_s), earlier))
        if is_bad:
            node.behaviour, node.often = self._rng.choice(BEHAVIOURS), self._rng.choice(FREQUENCIES)
            node.slanders = self._rng.random() < SLANDERERS
        return node

    def _missing(self, at: int) -> list[int]:
        """The next batches that this VNode lacks and that may come: behind the first, what the one before it has learned."""
        lacks = IntervalSet.span(0, self.setting.num_batches) - self._held(at)
        if at:
            lacks = lacks & self._held(at - 1)
        return [batch for first, end in lacks.pairs() for batch in range(first, end)][:NUM_STEPS]

    def _held(self, at: int) -> IntervalSet:
        vnode = self._stages[at].id
        return self._ledger.held(vnode, len(self._ledger.lines[vnode]) - 1)

    def _host(self, vnode: str) -> Node | None:
        node, left = self._hosts.get(vnode, (None, 0))
        if node is not None and left and node.standing.state in WORKING:
            self._hosts[vnode] = node, left - 1
            return node
        busy = {id(other) for name, (other, _) in self._hosts.items() if name != vnode}
        free = [one for one in self._nodes if one.standing.state in PLACEABLE and id(one) not in busy]
        if not free:
            return None
        chosen = self._rng.choice(free)
        self._hosts[vnode] = chosen, TENURE - 1
        self._num_tenures += 1
        return chosen

    def _interval(self, at: int) -> None:
        stage, batches = self._stages[at], self._missing(at)
        for one in self._nodes:
            one.standing = after(one.standing, Waited(self._now_s))
        node = self._host(stage.id)
        if node is None or not batches:
            return
        line = self._ledger.lines[stage.id]
        try:
            claim, num_bad = self._learned(at, node, batches, self._states[line[-1].digest])
        except InvariantBroken:
            self.figures.broken_states += 1
            self._hosts.pop(stage.id)
            if node.behaviour is None and not self._look_back(at):
                raise
            return
        last = claim.states[len(batches)]
        name = digest_of(f"{stage.id} {node.name} {len(self._ledger.intervals)}".encode())
        self._states[digest_of(last)] = last
        p = rate(node.standing.record(self._now_s, len(batches)), node.standing.state, FLOORS, trusted=False)
        done = IntervalSet.of(*((batch, batch + 1) for batch in batches))
        ends = is_last(done, len(self._held(at) | done), self.setting.num_batches)
        drawn = ends or is_drawn(self._secret, name, p)
        verdict = Verdict.OPEN if drawn else Verdict.SPARED
        interval = Interval(
            name, len(self._ledger.intervals), stage.id, f"{stage.id}.{self._num_tenures}", node.name, done, verdict
        )
        lines = {**self._ledger.lines, stage.id: (*line, Named(digest_of(last), (name,)))}
        self._ledger = Ledger(lines, {**self._ledger.intervals, name: interval})
        self._told.append(Told(node.name, name, verdict, self._now_s, self._now_s, "", len(done)))
        node.life.append(Drawn(len(batches), p))
        if p <= NEAR_FLOOR * FLOORS.untrusted:
            self.figures.at_floor += 1
            self.figures.rare_at_floor += num_bad if node.often == RARELY else 0
        self._bad[name] = num_bad
        self._claims[name] = claim
        self.figures.steps += len(batches)
        self.figures.bad_offered += num_bad
        for step in claim.steps:
            self._frames[stage.id][step.batch] = step.output
        if drawn:
            self._audit(node, name, at, claim, LAST_AUDITORS if ends else 1)
        if node.behaviour is None and all(step.loss > BURST_LOSS for step in claim.steps[-UNLEARNED:]):
            self.figures.broken_states += 1
            self._look_back(at)

    def _draw_late(self) -> None:
        """What was spared of those that were found out since; each interval is drawn late once, so this ends."""
        ids = [stage.id for stage in self._stages]
        while drawn := drawn_of_the_found_out(self._ledger, left_behind(self._ledger, self._told, self._found_out_s, self._now_s)):
            for name in drawn:
                if self._ledger.intervals[name].verdict is Verdict.SPARED:
                    self._judged(name, Verdict.OPEN)
                    self.figures.late += 1
                    self._check(name, ids.index(self._ledger.intervals[name].vnode), self._claims[name])

    def _judged(self, name: str, verdict: Verdict) -> None:
        found = self._ledger.intervals[name]
        self._ledger = replace(self._ledger, intervals={**self._ledger.intervals, name: replace(found, verdict=verdict)})

    def _look_back(self, at: int) -> bool:
        """Nobody can learn from that state: checks the VNode's intervals, newest first, and then those of the VNodes before it, until one of them fails."""
        for stage in range(at, -1, -1):
            for one in backwards(self._ledger, self._stages[stage].id):
                self._check(one.name, stage, self._claims[one.name])
                if self._ledger.intervals[one.name].verdict is Verdict.FAILED:
                    return True
        return False

    def _learned(self, at: int, node: Node, batches: Sequence[int], first: bytes) -> tuple[Claim, int]:
        """What the host claims, and in how many steps of it it cheated."""
        stage = self._stages[at]
        entries = [self._entry(at, batch) for batch in batches]
        checks = checks_of_stage(stage, REGISTRY)
        num_batches, seed = self.setting.num_batches, self.setting.seed
        if node.behaviour is None or self._rng.random() >= node.often:
            honest = TorchCompute(stage, REGISTRY, num_batches=num_batches, seed=seed)
            return record(honest, first, entries, codec=CODEC, state_every=checks.replay().span_steps), 0
        cheat = CheatingCompute(stage, REGISTRY, node.behaviour, num_batches=num_batches, seed=seed, num_steps=len(batches))
        claim = record(cheat, first, entries, codec=CODEC, state_every=checks.replay().span_steps)
        return claim, cheat.num_cheated

    def _entry(self, at: int, batch: int) -> Entry:
        x, y = self._points.batch(batch)
        values = {INPUT: x}
        if at:
            before = self._stages[at - 1].id
            values[before] = self._frames[before][batch]
        return Entry(batch, Mode.TRAIN, tuple(values[item.id] for item in self._stages[at].inputs), y)

    def _audit(self, accused: Node, name: str, at: int, claim: Claim, wanted: int) -> None:
        """By so many active PNodes, where they are here, else by a verifier."""
        fit = [one for one in self._nodes if one.standing.state is State.ACTIVE and one is not accused]
        auditors = self._rng.sample(fit, min(wanted, len(fit)))
        waved, is_canary = list[Node](), False
        for auditor in auditors:
            if auditor.behaviour is None:
                break
            if auditor.slanders and self._rng.random() < SLANDERERS:
                self._slandered(auditor, name, at, claim)
                break
            auditor.waved.append((name, self._now_s))
            waved.append(auditor)
            is_canary = is_canary or task_of(self._secret, name, auditor.name, 0) is Task.CANARY
        else:
            if len(auditors) == wanted and not is_canary:
                self._pass(name)
                return
        if self._ledger.intervals[name].verdict is Verdict.OPEN:
            self._check(name, at, claim)
        if self._ledger.intervals[name].verdict is Verdict.FAILED:
            for auditor in (one for one in waved if one in self._nodes):  # it may be found out by what came of that already
                self.figures.canaries_failed += is_canary
                self._found_out(auditor, name, "it passed what is wrong")

    def _slandered(self, auditor: Node, name: str, at: int, claim: Claim) -> None:
        """A fault that the verifier looks at; it costs the auditor its name where the interval was right."""
        self._check(name, at, claim)
        if self._ledger.intervals[name].verdict is Verdict.PASSED:
            self.figures.slanders += 1
            self._found_out(auditor, name, "it faulted what is right")

    def _check(self, name: str, at: int, claim: Claim) -> None:
        """A replay on another machine, and what follows from it."""
        self.figures.audits += 1
        stage = self._stages[at]
        checks = checks_of_stage(stage, REGISTRY)
        compute = TorchCompute(stage, REGISTRY, num_batches=self.setting.num_batches, seed=self.setting.seed)
        outcome = judge(replay(compute, schema_of(stage, REGISTRY), claim, checks.replay(), as_array=as_array))
        assert outcome.worst is not None
        elsewhere = self._rng.choices(self._residuals, self._weights)[0]
        finding = finding_of(max(outcome.worst.ratio, elsewhere), 1.0)
        accused = self._named(self._ledger.intervals[name].pnode_id)
        if finding is Finding.FAULT:
            self._back(name, Cause.FAULT)
            if accused is not None:
                self._found_out(accused, name, f"{outcome.worst.part} is wrong")
            return
        if finding is Finding.DOUBT:
            self.figures.doubts += 1
            if accused is not None:
                accused.standing = after(accused.standing, Doubted(self._now_s, name, "verifier"))
        self._pass(name)

    def _pass(self, name: str) -> None:
        found = self._ledger.intervals[name]
        if found.verdict is not Verdict.OPEN:
            return
        self._judged(name, Verdict.PASSED)
        accused = self._named(found.pnode_id)
        if accused is not None:
            accused.standing = after(accused.standing, Passed(self._now_s, self._now_s, len(found.batches)))

    def _look_again(self, waved: Sequence[tuple[str, float]]) -> None:
        """What an auditor passed lately that is found out, for whatever it did, is open again, and a verifier looks."""
        lately = (name for name, at_s in waved if at_s >= self._now_s - AGAIN_S)
        again = [name for name in lately if self._ledger.intervals[name].verdict is Verdict.PASSED]
        for name in again:
            self._judged(name, Verdict.OPEN)
        ids = [stage.id for stage in self._stages]
        for name in again:
            found = self._ledger.intervals[name]
            if found.verdict is Verdict.OPEN:
                self._check(name, ids.index(found.vnode), self._claims[name])

    def _back(self, name: str, cause: Cause) -> None:
        self.figures.faults += 1
        way = way_back(self._ledger, name, cause, self._behind)
        self._ledger = gone_back(self._ledger, way)
        for vnode, one in way.returns.items():
            for first, end in one.needed_again.pairs():
                for batch in range(first, end):
                    self._frames[vnode].pop(batch, None)

    def _found_out(self, node: Node, evidence: str, reason: str) -> None:
        """Quarantine; an attacker comes back under a new name. What it passed is looked at again."""
        node.standing = after(node.standing, Faulted(self._now_s, self._now_s, evidence, reason))
        self._found_out_s[node.name] = node.standing.suspect_until_s
        if node.life:
            self.figures.lives.append(Life(tuple(node.life), is_over=True))
            node.life = []
        if node.behaviour is None:
            self.figures.honest_quarantined += 1
        else:
            self._nodes[self._nodes.index(node)] = self._node(is_bad=True)
        waved, node.waved = node.waved, []
        self._look_again(waved)

    def _named(self, name: str) -> Node | None:
        return next((one for one in self._nodes if one.name == name), None)

    def _concluded(self) -> Figures:
        figures = self.figures
        figures.lives += [Life(tuple(one.life), is_over=False) for one in self._nodes if one.life]
        kept = [name for line in self._ledger.lines.values() for one in line for name in one.intervals]
        figures.bad_kept = sum(self._bad[name] for name in kept)
        x, y = self._points.test()
        values: dict[str, Any] = {INPUT: x}
        for stage in self._stages:
            compute = TorchCompute(stage, REGISTRY, num_batches=self.setting.num_batches, seed=self.setting.seed)
            compute.restore(self._states[self._ledger.lines[stage.id][-1].digest])
            result = compute.forward(0, [values[item.id] for item in stage.inputs], Mode.EVAL, y)
            values[stage.id] = as_array(result.output) if isinstance(result.output, torch.Tensor) else result.output
            figures.loss = result.sum_loss / result.count
        return figures
