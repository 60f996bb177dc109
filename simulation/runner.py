"""Runs seeds, each in a world of its own, several processes at a time, and says of each in a line what happened; of one that fails, how to see it again."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, TextIO

from dcnr.errors import DcnrError
from simulation.control_joining import JoiningWorld
from simulation.control_knobs import audited_knobs, in_heavy_weather, large_knobs, orchestrator_knobs, restored_knobs
from simulation.control_world import ControlWorld
from simulation.world import Simulation, Violation, wide_knobs

IN_TURN: Final = ("data", "control", "orchestrators", "audited", "wide", "restored")
"""Worlds that `ALL` takes in turn."""
ALL: Final = "all"
JOINING: Final = "joining"
"""Measures what many PNodes cost that join at once: a figure, not a search for faults."""
PROGRESS_S: Final = 60.0
TOLD_LINES: Final = 60
"""So many lines of the transcript are shown of a history that failed."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which world, and where it differs from its standard size: ``num_pnodes``, ``hours``, ``replicas``, those of each VNode, and
    ``heavy``, whether also some lie and more is slow, make a large control world. `ALL`: seeds are given to each world in turn.
    """

    world: str = "data"
    num_pnodes: int = 0
    hours: float = 0.0
    replicas: int = 1
    heavy: bool = False

    @property
    def options(self) -> str:
        """The same choice on a command line."""
        several = f" --replicas {self.replicas}" if self.replicas > 1 else ""
        heavy = " --heavy" if self.heavy else ""
        size = f" --nodes {self.num_pnodes} --hours {self.hours:g}{several}{heavy}" if self.num_pnodes else ""
        return f"--world {self.world}{size}"

    def of(self, seed: int) -> tuple[Choice, int]:
        """The world of a seed, and its seed there."""
        if self.world != ALL:
            return self, seed
        return Choice(IN_TURN[seed % len(IN_TURN)]), seed // len(IN_TURN)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one seed."""

    seed: int
    failure: str
    """Empty where everything held."""
    line: str
    counts: dict[str, float] = field(default_factory=dict)
    newest: tuple[str, ...] = ()
    replay: str = ""
    took_s: float = 0.0
    cpu_s: float = 0.0
    """Of its process: what ``took_s`` would be on a machine of its own."""

    def told(self) -> Iterator[str]:
        """One line, or for a failure everything that helps to understand it."""
        if not self.failure:
            yield f"{self.line}, {self.took_s:.2f} s: ok"
            return
        yield f"{self.line}, {self.took_s:.2f} s: FAILED {self.failure}"
        yield "  the last of what happened:"
        yield from (f"    {line}" for line in self.newest)
        yield f"  replay: {self.replay} --transcript seed-{self.seed}.txt"


def run_seed(choice: Choice, seed: int, transcript: TextIO | None = None, progress: TextIO | None = None) -> Outcome:
    """One history from beginning to end. A large control world says now and then on ``progress`` how far it is."""
    within, its_seed = choice.of(seed)
    world = _world(within, its_seed)
    if progress is not None and isinstance(world, ControlWorld):
        world.on_second = _Progress(progress)
    if transcript is not None:
        world.kernel.transcript.into(transcript)
    started_s, started_cpu_s, failure = time.perf_counter(), time.process_time(), ""
    with _rare_collections():
        try:
            world.run()
        except (Violation, DcnrError, AssertionError) as error:
            failure = f"{type(error).__name__}: {error}"
    took_s, cpu_s = time.perf_counter() - started_s, time.process_time() - started_cpu_s
    newest = tuple(world.kernel.transcript.newest(TOLD_LINES)) if failure else ()
    line, counts = _control_line(world) if isinstance(world, ControlWorld) else _data_line(world)
    line = line if within is choice else f"{within.world} {line}"
    replay = f"python -m simulation {within.options} --seed {its_seed}"
    return Outcome(seed, failure, line, counts, newest, replay, took_s, cpu_s)


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """Cycles are looked for seldom meanwhile: a world of thousands is a large heap that lives to the end, and next to no garbage of it has cycles."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


class _Progress:
    """A line each virtual minute."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._next_s, self._began_s = file, 0.0, time.process_time()

    def __call__(self, world: ControlWorld) -> None:
        now_s = world.kernel.now_s
        if now_s < self._next_s:
            return
        self._next_s, head = now_s + PROGRESS_S, world.head()
        ended = f"epoch {head.epoch}, {len(head.decided)} jobs ended" if head is not None else "no head yet"
        cpu_s = time.process_time() - self._began_s
        self._file.write(f"{now_s:.0f} s virtual, {cpu_s:.0f} s of processor, {world.kernel.num_actions} actions, {ended}\n")
        self._file.flush()


def run_seeds(choice: Choice, seeds: Iterable[int], num_processes: int) -> Iterator[Outcome]:
    """Outcomes in the order of the seeds."""
    pairs = [(choice, seed) for seed in seeds]
    if num_processes <= 1 or len(pairs) == 1:
        yield from (run_seed(*pair) for pair in pairs)
        return
    with contextlib.closing(multiprocessing.get_context("spawn").Pool(num_processes, maxtasksperchild=200)) as pool:
        yield from pool.imap(_run_pair, pairs)


def _run_pair(pair: tuple[Choice, int]) -> Outcome:
    return run_seed(*pair)


def _world(choice: Choice, seed: int) -> Simulation | ControlWorld:
    if choice.world == "data":
        return Simulation(seed)
    if choice.world == "wide":
        return Simulation(seed, wide_knobs(seed), "--world wide")
    if choice.world == JOINING:
        return JoiningWorld(seed)
    if choice.world == "orchestrators":
        return ControlWorld(seed, orchestrator_knobs(seed), choice.options)
    if choice.world == "audited":
        return ControlWorld(seed, audited_knobs(seed), choice.options)
    if choice.world == "restored":
        return ControlWorld(seed, restored_knobs(seed), choice.options)
    large = large_knobs(choice.num_pnodes, choice.hours, choice.replicas) if choice.num_pnodes else None
    if large is not None and choice.heavy:
        large = in_heavy_weather(large)
    return ControlWorld(seed, large, choice.options)


def _data_line(world: Simulation) -> tuple[str, dict[str, float]]:
    audited = " audited" if world.knobs.audited else ""
    line = (
        f"seed {world.seed} {world.topology.name}{audited} window {world.knobs.window_batches} lead {world.lead_batches} "
        f"lost states {world.num_lost_states}: {world.kernel.now_s:.0f} s virtual, {world.kernel.num_actions} actions, "
        f"{world.checkers.num_learned} learned, {world.checkers.num_forwarded} computed again, "
        f"{world.checkers.num_merged} deltas merged, {world.checkers.num_successions} successions"
    )
    return line, {"virtual_s": world.kernel.now_s, "actions": world.kernel.num_actions}


def _control_line(world: ControlWorld) -> tuple[str, dict[str, float]]:
    checkers, knobs = world.checkers, world.knobs
    counts: dict[str, float] = {
        "virtual_s": world.kernel.now_s,
        "actions": world.kernel.num_actions,
        "head_writes": checkers.num_head_writes,
        "terms": checkers.num_takeovers,
        "manifests": checkers.num_manifests,
        "moves": checkers.plans.num_moves,
        "promotions": checkers.plans.num_promotions,
        "deleted": checkers.num_deleted,
        "tampered": checkers.num_tampered,
        "obeyed": checkers.num_obeyed,
        "jobs": len(world.maintainers.accepted),
        "pauses": checkers.pauses.num_pauses,
        "resumes": checkers.pauses.num_resumes,
        "explained": checkers.num_explained,
        "drawn": checkers.ledger.num_drawn,
        "spared": checkers.ledger.num_spared,
        "failed": checkers.ledger.num_failed,
        "went_back": checkers.ledger.num_back,
        **{f"faults_{name}": count for name, count in sorted(world.faults.counts.items())},
    }
    liars = (", one lies" if knobs.liar else "") + (f", {knobs.lying_pnodes} PNodes lie" if knobs.lying_pnodes else "")
    shown: tuple[str, ...] = ("head_writes", "terms", "manifests", "moves", "promotions", "deleted", "tampered")
    shown += ("drawn", "spared", "failed", "went_back") if knobs.audited else ()
    told = ", ".join(f"{counts[name]:.0f} {name.replace('_', ' ')}" for name in shown)
    line = (
        f"seed {world.seed} {knobs.num_orchestrators} orchestrators, {knobs.num_pnodes} PNodes{liars}: "
        f"{world.kernel.now_s:.0f} s virtual, {world.kernel.num_actions} actions, {told}"
    )
    if isinstance(world, JoiningWorld):
        measured = {
            "lowered_s": world.lowered_s,
            "rate_before": world.before,
            "rate_lowest": world.lowest,
            "rate_after": world.after,
        }
        counts |= {"newcomers_at_work": world.num_newcomers, **measured}
        line += (
            f", {world.num_newcomers} of {knobs.num_joiners} that joined work, lowered for {world.lowered_s:.0f} s: "
            + ", ".join(f"{name} {value:.1f}" for name, value in measured.items() if name != "lowered_s")
        )
    return line, counts
