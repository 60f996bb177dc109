"""One simulated network: processes, streams, faults, checkers. A fault phase, then a healed phase that must converge in bounded time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dcnr.ids import ReplicaId
from simulation.arithmetic import State
from simulation.authority import Authority
from simulation.checkers import Checkers
from simulation.faults import Faults
from simulation.kernel import Kernel
from simulation.network import Network, NetworkKnobs
from simulation.replica_shell import ReplicaShell
from simulation.topology import Topology, any_topology


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
    )
    if is_calm:
        return knobs
    return replace(knobs, compute_failure_probability=rng.choice([0.0, 0.01]), spool_loss_probability=rng.choice([0.0, 0.0, 0.02]))


class Simulation:
    """A world built from a seed and knobs; other parts may add their processes to `kernel` and `network`."""

    def __init__(self, seed: int, knobs: Knobs | None = None) -> None:
        self.seed, self.knobs = seed, knobs or random_knobs(seed)
        self.kernel = Kernel(seed)
        self.topology = self.knobs.topology
        self.network = Network(self.kernel, self.knobs.network)
        rng = self.kernel.rng("world")
        low, high = self.knobs.spool_batches
        self.step_s = {vnode: rng.uniform(*self.knobs.step_s) for vnode in self.topology.inputs}
        self.spool_batches = {vnode: rng.randint(low, high) for vnode in self.topology.inputs}
        room = min(self.spool_batches.values()) - self.knobs.window_batches
        self.lead_batches = max(1, min(self.knobs.lead_batches, room))
        self.shells: list[ReplicaShell] = []
        self.num_corrupt = self.num_faults = self.num_lost_states = 0
        self.checkers = Checkers(self)
        self.authority = Authority(self)
        self.faults = Faults(self)

    # ---- what parts of the world ask each other ---------------------------------------------------------------------------

    def add_shell(self, vnode: str, replica: ReplicaId, incarnation: int, state: State) -> None:
        """Starts a replica that restored ``state``."""
        shell = ReplicaShell(self, vnode, replica, incarnation, f"host-{replica}-{incarnation}", state)
        self.shells = [known for known in self.shells if known.process.alive]
        self.shells.append(shell)
        shell.start()

    def living(self, replica: ReplicaId) -> ReplicaShell | None:
        """The newest living incarnation of a replica: where the directory leads."""
        found = [shell for shell in self.shells if shell.replica == replica and shell.process.alive]
        return max(found, key=lambda shell: shell.incarnation, default=None)

    def primaries(self) -> list[ReplicaShell]:
        """Living primaries of the newest plan, in topological order."""
        order = list(self.topology.inputs)
        named = [shell for shell in self.shells if shell.process.alive and self.is_primary(shell)]
        return sorted(named, key=lambda shell: order.index(shell.vnode))

    def is_primary(self, shell: ReplicaShell) -> bool:
        """Whether the newest plan names it."""
        return self.authority.primary[shell.vnode] == (shell.replica, shell.incarnation)

    def primary(self, vnode: str) -> ReplicaShell:
        """The living primary of a VNode."""
        return next(shell for shell in self.primaries() if shell.vnode == vnode)

    def has_zombies(self) -> bool:
        """Whether replaced processes still live, or a primary is dead."""
        living = [shell for shell in self.shells if shell.process.alive]
        return len(living) != len(self.topology.inputs) or len(self.primaries()) != len(living)

    def behind(self, vnode: str) -> list[ReplicaShell]:
        """The primaries of a VNode and of all that come after it."""
        reached = {vnode}
        for other, inputs in self.topology.inputs.items():
            if reached & set(inputs):
                reached.add(other)
        return [shell for shell in self.primaries() if shell.vnode in reached]

    def fail(self, checker: str, message: str) -> None:
        """Raises Violation with everything needed to see it again."""
        replay = f"python -m simulation --seed {self.seed}"
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
        if len(primaries) != len(self.topology.inputs):
            return False
        if not all(state.lineage.is_exactly(0, num_batches) for state in self.authority.named.values()):
            return False
        for shell in primaries:
            view = shell.core.view()
            tests = [item for item in view.evaluations if item.lane.split == "test"]
            if view.floor != num_batches or not view.lineage.is_exactly(0, num_batches) or not any(item.complete for item in tests):
                return False
        return True

    def story(self) -> list[str]:
        """Who lacks what, from whom, why: one line for each."""
        lines = [f"topology {self.topology.name}, window {self.knobs.window_batches}, lead {self.lead_batches}"]
        for shell in self.primaries():
            view = shell.core.view()
            lines.append(
                f"  {view.replica}#{view.incarnation} floor {view.floor} ({view.floor_vnode}) lineage {view.lineage} durable {view.durable}"
                f" held back by {view.held_back_by} computing {view.computing!r} {view.paused_why} spool {view.spool_batches}"
            )
            for need in view.needs:
                lines.append(
                    f"    edge {need.edge} {need.lane.split}/{need.lane.round} from {need.predecessor}: {need.wanted}"
                    f" again {need.forward_only}: {need.why} since {need.since_s:.1f}"
                )
        return lines
