"""One simulated network: processes, streams, faults, checkers. A fault phase, then a healed phase that must converge in bounded time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, NoReturn

from dcnr.ids import ReplicaId
from dcnr.intervals import IntervalSet
from dcnr.ports import Random
from dcnr.tempo import Tempo
from dcnr.units import owned, owner_of
from simulation.arithmetic import State
from simulation.authority import Authority
from simulation.checkers import Checkers
from simulation.faults import Faults
from simulation.kernel import Kernel
from simulation.network import Network, NetworkKnobs
from simulation.replica_shell import ReplicaShell
from simulation.topology import Topology, any_topology, wide
from vnode.vocabulary import Role

NETWORK_S: Final = 1_000_000.0
"""Network time when a history begins: no replica's own clock shows it."""


class Violation(AssertionError):
    """A checker went red. ``checker`` is its name; the message says how to see it again."""

    def __init__(self, checker: str, message: str) -> None:
        super().__init__(message)
        self.checker = checker


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """Everything that a history depends on besides its seed. `random_knobs` draws them."""

    topology: Topology
    num_batches: int = 80
    window_batches: int = 4
    lead_batches: int = 32
    spool_batches: tuple[int, int] = (24, 48)
    step_s: tuple[float, float] = (0.02, 0.12)
    checkpoint_s: float = 5.0
    checkpoint_steps: int = 20
    evaluate_every: int = 25
    validation_batches: int = 3
    test_batches: int = 5
    horizon_s: float = 30.0
    faults_s: float = 20.0
    crashes: int = 2
    pauses: int = 1
    breaks: int = 4
    partitions: int = 1
    store_outages: int = 1
    head_silences: int = 0
    rearrangements: int = 0
    """New plans without a fault."""
    replicas: tuple[int, int] = (1, 1)
    """How many replicas of a VNode learn."""
    standbys: tuple[int, int] = (0, 0)
    replica_speed: tuple[float, float] = (1.0, 1.0)
    """Factor on a VNode's step time, drawn for each replica."""
    weights: tuple[float, ...] = (0.5, 1.0, 2.0)
    """Of which each replica has one."""
    successions: float = 0.7
    """How often a lost primary is followed by a sibling that lives, if there is one."""
    plan_s: tuple[float, float] = (0.05, 3.0)
    """How long a plan takes until a process hears of it."""
    unit_batches: int = 4
    merge_every: int = 6
    batches_per_s: float = 0.0
    """Of the job's tempo; 0: none."""
    audited: bool = False
    """Whether contributors keep to what audits ask of them."""
    network: NetworkKnobs = field(default_factory=NetworkKnobs)
    corrupt_probability: float = 0.0
    read_failure_probability: float = 0.0
    compute_failure_probability: float = 0.0
    spool_loss_probability: float = 0.0
    condemned_probability: float = 0.0


def random_knobs(seed: int) -> Knobs:
    """Knobs for a seed: a third of the seeds lose no state, so that recomputation there must be nearly nothing."""
    rng = Kernel(seed).rng("knobs")
    window = rng.choice([1, 2, 4, 8])
    is_calm = seed % 3 == 0
    knobs = Knobs(
        topology=any_topology(rng),
        num_batches=rng.randint(50, 90),
        window_batches=window,
        lead_batches=rng.choice([8, 24, 64]),
        spool_batches=(max(12, 2 * window), 48),
        crashes=0 if is_calm else rng.randint(1, 4),
        pauses=rng.randint(0, 2),
        breaks=rng.randint(0, 8),
        partitions=rng.randint(0, 2),
        store_outages=rng.randint(0, 1),
        head_silences=rng.randint(0, 1),
        horizon_s=rng.choice([4.0, 30.0]),
        network=NetworkKnobs(latency_s=rng.choice([(0.001, 0.01), (0.01, 0.15)]), repeat_probability=rng.choice([0.0, 0.03])),
        corrupt_probability=rng.choice([0.0, 0.0, 0.02]),
        read_failure_probability=rng.choice([0.0, 0.05]),
        condemned_probability=rng.choice([0.0, 0.1]),
        batches_per_s=Kernel(seed).rng("tempo").choice([4.0, 10.0, *(0.0 for _ in range(8))]),
    )
    if not is_calm:
        knobs = _broken(rng, knobs)
    return _shared(rng, knobs) if seed % 2 else knobs


def wide_knobs(seed: int) -> Knobs:
    """A wide graph of which every VNode has three replicas: more than fifty of them, of which some die, stand still and are cut off."""
    rng = Kernel(seed).rng("wide-knobs")
    return Knobs(
        topology=wide(5, 3),
        num_batches=30,
        replicas=(3, 3),
        unit_batches=rng.choice([1, 3]),
        merge_every=rng.choice([2, 6]),
        crashes=rng.randint(2, 6),
        pauses=rng.randint(0, 2),
        breaks=rng.randint(2, 8),
        rearrangements=rng.choice([0, 1]),
        audited=rng.choice([False, True]),
    )


def _broken(rng: Random, knobs: Knobs) -> Knobs:
    return replace(knobs, compute_failure_probability=rng.choice([0.0, 0.01]), spool_loss_probability=rng.choice([0.0, 0.0, 0.02]))


def _shared(rng: Random, knobs: Knobs) -> Knobs:
    """Several replicas of each VNode."""
    return replace(
        knobs,
        replicas=(rng.choice([1, 2]), rng.choice([2, 3])),
        crashes=2 * knobs.crashes,
        standbys=(0, rng.choice([0, 0, 1])),
        replica_speed=rng.choice([(1.0, 1.0), (0.7, 2.5)]),
        unit_batches=rng.choice([1, 3, 5, 8]),
        merge_every=rng.choice([2, 6, 15]),
        rearrangements=rng.choice([0, 0, 2]) if knobs.crashes else 0,
        audited=rng.choice([False, True]),
    )


class Simulation:
    """A world built from a seed and knobs; ``options`` make the same knobs on a command line. Other parts may add their processes to `kernel` and `network`."""

    def __init__(self, seed: int, knobs: Knobs | None = None, options: str = "--world data") -> None:
        self.seed, self.knobs, self.options = seed, knobs or random_knobs(seed), options
        self.kernel = Kernel(seed)
        self.topology = self.knobs.topology
        self.network = Network(self.kernel, self.knobs.network)
        rng = self.kernel.rng("world")
        low, high = self.knobs.spool_batches
        self.step_s = {vnode: rng.uniform(*self.knobs.step_s) for vnode in self.topology.inputs}
        self.spool_batches = {vnode: rng.randint(low, high) for vnode in self.topology.inputs}
        room = min(self.spool_batches.values()) - self.knobs.window_batches
        self.lead_batches = max(1, min(self.knobs.lead_batches, room))
        self.widest_lead_batches = max(1, min(2 * self.knobs.lead_batches, room))
        knobs = self.knobs
        self.num_replicas = {vnode: (rng.randint(*knobs.replicas), rng.randint(*knobs.standbys)) for vnode in self.topology.inputs}
        self.tempo = Tempo(knobs.batches_per_s, self.network_s(0.0)) if knobs.batches_per_s else None
        self.shells: list[ReplicaShell] = []
        self.num_corrupt = self.num_faults = self.num_lost_states = 0
        self.checkers = Checkers(self)
        self.authority = Authority(self)
        self.faults = Faults(self)

    # ---- what parts of the world ask each other ---------------------------------------------------------------------------

    def add_shell(self, vnode: str, replica: ReplicaId, incarnation: int, state: State, role: Role) -> None:
        """Starts a replica that restored ``state``."""
        shell = ReplicaShell(self, vnode, replica, incarnation, f"host-{replica}-{incarnation}", state, role)
        self.shells = [known for known in self.shells if known.process.alive]
        self.shells.append(shell)
        shell.start()

    @staticmethod
    def network_s(now_s: float) -> float:
        """Network time."""
        return NETWORK_S + now_s

    def living(self, replica: ReplicaId) -> ReplicaShell | None:
        """The newest living incarnation of a replica: where the directory leads."""
        found = [shell for shell in self.shells if shell.replica == replica and shell.process.alive]
        return max(found, key=lambda shell: shell.incarnation, default=None)

    def primaries(self) -> list[ReplicaShell]:
        """Living primaries of the newest plan, in topological order."""
        return [shell for shell in self.members() if self.is_primary(shell)]

    def members(self) -> list[ReplicaShell]:
        """Living replicas of the newest plan, in topological order, by id within a VNode."""
        order = list(self.topology.inputs)
        named = [shell for shell in self.shells if shell.process.alive and self.authority.names(shell)]
        return sorted(named, key=lambda shell: (order.index(shell.vnode), shell.replica))

    def is_primary(self, shell: ReplicaShell) -> bool:
        """Whether the newest plan has it as its VNode's primary."""
        return self.authority.names(shell) and self.authority.primary[shell.vnode] == shell.replica

    def primary(self, vnode: str) -> ReplicaShell:
        """The living primary of a VNode."""
        return next(shell for shell in self.primaries() if shell.vnode == vnode)

    def has_zombies(self) -> bool:
        """Whether replaced processes still live, or a replica of the plan is dead."""
        living = [shell for shell in self.shells if shell.process.alive]
        planned = sum(len(members) for members in self.authority.members.values())
        return len(living) != planned or len(self.members()) != planned

    def behind(self, shell: ReplicaShell) -> list[ReplicaShell]:
        """A replica and all replicas of the VNodes that come after its own."""
        reached = {shell.vnode}
        for other, inputs in self.topology.inputs.items():
            if reached & set(inputs):
                reached.add(other)
        return [shell, *(other for other in self.members() if other.vnode in reached - {shell.vnode})]

    def owned(self, shell: ReplicaShell) -> IntervalSet:
        """The batches that it has to learn, by the newest plan."""
        shares = self.authority.shares(shell.vnode)
        return owned(shell.replica, shares, self.knobs.num_batches, self.knobs.unit_batches)

    def owner(self, vnode: str, batch: int) -> ReplicaId | None:
        """Who has to learn a batch, by the newest plan."""
        return owner_of(batch // self.knobs.unit_batches, self.authority.shares(vnode))

    def fail(self, checker: str, message: str) -> NoReturn:
        """Raises Violation with everything needed to see it again."""
        replay = f"python -m simulation {self.options} --seed {self.seed}"
        raise Violation(checker, f"[{checker}] {message} (at {self.kernel.now_s:.2f} s; replay: {replay})")

    def require(self, holds: bool, checker: str, message: str) -> None:
        """Fails unless ``holds``."""
        if not holds:
            self.fail(checker, message)

    # ---- the run ----------------------------------------------------------------------------------------------------------

    def run(self) -> Simulation:
        """A whole history. Raises Violation or InvariantBroken."""
        self.authority.start()
        self.faults.plan()
        self._explain_often()
        self.kernel.run_until(self.knobs.faults_s, lambda: False)
        self.faults.heal()
        slowest_s = sum(self.step_s.values())
        bound_s = 120.0 + 4.0 * self.knobs.num_batches * slowest_s
        if not self.kernel.run_until(self.kernel.now_s + bound_s, self.is_done):
            self.fail("liveness", "not finished\n" + "\n".join(self.story()))
        self.checkers.at_end()
        return self

    def _explain_often(self) -> None:
        self.checkers.explain()
        self.kernel.after(2.5, self._explain_often)

    def is_done(self) -> bool:
        """Everything learned, durable, tested, and the floor everywhere at the end."""
        num_batches = self.knobs.num_batches
        primaries = self.primaries()
        if len(primaries) != len(self.topology.inputs) or self.has_zombies():
            return False
        if not all(state.lineage.is_exactly(0, num_batches) for state in self.authority.named.values()):
            return False
        for shell in primaries:
            view = shell.core.view()
            tests = [item for item in view.evaluations if item.lane.split == "test"]
            if not view.lineage.is_exactly(0, num_batches) or not any(item.complete for item in tests):
                return False
        return all(shell.core.view().floor == num_batches for shell in self.members())

    def story(self) -> list[str]:
        """Who lacks what, from whom, why: one line for each."""
        lines = [f"topology {self.topology.name}, window {self.knobs.window_batches}, lead {self.lead_batches}"]
        for shell in self.members():
            view = shell.core.view()
            lines.append(
                f"  {view.replica}#{view.incarnation} {view.role.value} floor {view.floor} ({view.floor_vnode}) lineage {view.lineage}"
                f" unmerged {view.unmerged} durable {view.durable} held back by {view.held_back_by} computing {view.computing!r}"
                f" {view.paused_why} spool {view.spool_batches}"
            )
            for need in view.needs:
                lines.append(
                    f"    edge {need.edge} {need.lane.split}/{need.lane.round} from {need.predecessor}: {need.wanted}"
                    f" again {need.forward_only}: {need.why} since {need.since_s:.1f}"
                )
        return lines
