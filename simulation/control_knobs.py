"""What a history of the control world depends on besides its seed: sizes, and how often each thing goes wrong."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from orchestrator.offers import PlanPolicy
from simulation.kernel import Kernel
from simulation.network import NetworkKnobs

HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlKnobs:
    """Counts are per history, rates per call or write; everything that goes wrong does so within ``faults_s``."""

    num_orchestrators: int = 3
    num_pnodes: int = 50
    num_joiners: int = 0
    """Of the PNodes so many come together, ``join_s`` after the others."""
    join_s: float = 0.0
    num_vnodes: int = 8
    replicas: tuple[int, ...] = (1,)
    """Wanted by the graph, VNode after VNode, over and over; 0: the planner's choice."""
    vnodes_per_node: int = 2
    num_batches: int = 60
    learn_rate: float = 3.0
    """Batches per second of a replica on a machine of middling speed."""
    checkpoint_s: float = 6.0
    settling_deadline_s: float = 90.0
    beat_s: float = 2.0
    jobs: int = 4
    """Of which the last two are called off and expire."""
    jobs_every_s: tuple[float, float] = (0.5, 6.0)
    short_jobs: int = 0
    """Queued jobs that are called off at once: they push outcomes out of the head."""
    job_pauses: int = 0
    """Times that a job is paused and let go on some seconds later; in the fault phase."""
    rests: bool = False
    """After all others a job begins that is paused while it runs, in the end for good."""
    strange_jobs: int = 0
    """Requests in the store that no maintainer has signed."""
    faults_s: float = 70.0
    store_fault_rate: float = 0.05
    slow_store_rate: float = 0.03
    store_outages: int = 1
    restores: int = 0
    """Times that an older copy is put in the place of the store: of everything in it, or of the head alone."""
    call_loss_rate: float = 0.05
    call_repeat_rate: float = 0.0
    """A call is served twice."""
    call_delay_rate: float = 0.0
    """A call or its answer takes up to three seconds longer: later ones overtake it."""
    tamper_rate: float = 0.01
    orchestrator_crashes: int = 2
    orchestrator_pauses: int = 2
    pnode_crashes: int = 3
    pnode_losses: int = 1
    """PNodes that die and never come back."""
    pnode_pauses: int = 2
    worker_deaths: int = 2
    leavers: int = 2
    partitions: int = 3
    stream_breaks: int = 6
    store_partitions: int = 2
    full_disks: int = 0
    """PNodes whose disk takes no writes for a while."""
    slow_disk_rate: float = 0.0
    """A write after which the whole PNode waits for its disk."""
    blackout_s: float = 0.0
    """For so long all orchestrators are dead; 0: never."""
    liar: bool = False
    """One listed orchestrator claims terms that it never had, and repeats old words of others."""
    lying_pnodes: int = 0
    """PNodes that report what they never learned, accuse others and offer checkpoints of others as theirs."""
    audited: bool = False
    """The network document says that audits are drawn."""
    cheating_pnodes: int = 0
    """PNodes of which half of what they commit is wrong, until the heal."""
    cheats_break: bool = False
    """From a state that holds something wrong nobody can learn who restores it."""
    cheats_grow: bool = False
    """What is learned on top of something wrong is doubted, whoever learns it; where it does not break."""
    skew_s: float = 60.0
    """How wrong ordinary wall clocks are."""
    wrong_clocks: float = 0.0
    """Share of the machines whose wall clock is wrong by hours."""
    drift: float = 0.0
    """How much faster or slower a machine's monotonic clock may run."""
    sweep_s: float = 300.0
    grant_lifetime_s: int = 3600
    state_bytes: int = 0
    """Of what a newcomer restores, on its primary's line."""
    delta_bytes: int = 0
    """Of a delta or an anchor, without what the optimiser keeps."""
    bulk_bytes_s: float = 0.0
    """What bulk may take of a PNode's line; 0: it takes no time."""
    network: NetworkKnobs = field(default_factory=NetworkKnobs)
    plan_policy: PlanPolicy = field(default_factory=PlanPolicy)

    @property
    def healing_s(self) -> float:
        """After the heal everything is done within this time: a takeover, and each job in its turn."""
        pauses_s = 40.0 * self.job_pauses + 120.0 * self.rests
        return 150.0 + pauses_s + self.jobs * (60.0 + 2.0 * self.num_batches / self.learn_rate) + 2.0 * self.settling_deadline_s


def control_knobs(seed: int) -> ControlKnobs:
    """Knobs for a seed: every fourth world has 50 PNodes, the others fewer, so that many seeds can be run."""
    rng = Kernel(seed).rng("control-knobs")
    liar = rng.random() < 0.4
    liars = rng.choice([0, 0, 1])
    sweep_s = rng.choice([300.0, 8.0])
    return ControlKnobs(
        num_orchestrators=rng.choice([3, 4, 5]) if not liar else rng.choice([4, 5]),
        num_pnodes=50 if seed % 4 == 0 else rng.choice([12, 20]),
        num_vnodes=rng.choice([8, 8, 10]),
        replicas=rng.choice([(1,), (1,), (2, 1, 3, 1), (2,), (0,), (1, 0)]),
        vnodes_per_node=rng.choice([1, 2, 6]),
        short_jobs=rng.choice([0, 0, 20]),
        strange_jobs=rng.choice([0, 1]),
        store_fault_rate=rng.choice([0.0, 0.1, 0.3]),
        slow_store_rate=rng.choice([0.0, 0.05]),
        store_outages=rng.randint(0, 2),
        call_loss_rate=rng.choice([0.0, 0.1]),
        call_repeat_rate=rng.choice([0.0, 0.1]),
        call_delay_rate=rng.choice([0.0, 0.1]),
        tamper_rate=rng.choice([0.0, 0.02]),
        orchestrator_crashes=rng.randint(0, 4),
        orchestrator_pauses=rng.randint(0, 4),
        pnode_crashes=rng.randint(0, 5),
        pnode_losses=rng.randint(0, 2),
        pnode_pauses=rng.randint(0, 3),
        worker_deaths=rng.randint(0, 3),
        leavers=rng.randint(0, 3),
        partitions=rng.randint(0, 6),
        store_partitions=rng.randint(0, 4),
        full_disks=rng.randint(0, 2),
        slow_disk_rate=rng.choice([0.0, 0.02]),
        blackout_s=rng.choice([0.0, 0.0, 0.0, 25.0]),
        liar=liar,
        lying_pnodes=liars,
        settling_deadline_s=400.0 if liars else 90.0,
        skew_s=rng.choice([0.0, 100.0]),
        wrong_clocks=rng.choice([0.0, 0.2]),
        drift=rng.choice([0.0, 0.03]),
        sweep_s=sweep_s,
        grant_lifetime_s=3600 if sweep_s > 100.0 else 15,
        network=NetworkKnobs(latency_s=rng.choice([(0.001, 0.01), (0.01, 0.12)]), repeat_probability=rng.choice([0.0, 0.03])),
        job_pauses=rng.choice([0, 1, 3]),
        rests=rng.random() < 0.4,
    )


def orchestrator_knobs(seed: int) -> ControlKnobs:
    """A small network under heavy weather for its orchestrators: kills, pauses, partitions, wrong and drifting clocks, a failing store."""
    rng = Kernel(seed).rng("orchestrator-knobs")
    return ControlKnobs(
        num_orchestrators=3,
        num_pnodes=4,
        num_vnodes=3,
        vnodes_per_node=3,
        num_batches=30,
        jobs=3,
        faults_s=50.0,
        store_fault_rate=rng.choice([0.05, 0.2, 0.4]),
        slow_store_rate=rng.choice([0.0, 0.05]),
        store_outages=rng.randint(0, 1),
        call_loss_rate=rng.choice([0.0, 0.1]),
        call_repeat_rate=0.05,
        call_delay_rate=0.05,
        tamper_rate=0.0,
        orchestrator_crashes=rng.randint(1, 6),
        orchestrator_pauses=rng.randint(1, 6),
        pnode_crashes=0,
        pnode_losses=0,
        pnode_pauses=0,
        worker_deaths=0,
        leavers=0,
        partitions=rng.randint(1, 4),
        stream_breaks=2,
        store_partitions=rng.randint(1, 4),
        skew_s=100.0,
        wrong_clocks=0.2,
        drift=rng.choice([0.0, 0.05]),
        network=NetworkKnobs(latency_s=rng.choice([(0.001, 0.01), (0.01, 0.12)]), repeat_probability=0.02),
        job_pauses=rng.choice([0, 1, 2]),
        rests=rng.random() < 0.3,
    )


def restored_knobs(seed: int) -> ControlKnobs:
    """A small network whose store goes back once or twice, with faults of orchestrators and PNodes around it. Nothing is swept: what retention has deleted
    since a head was copied is not in a store that has that head again. A job may settle for
    longer than the patience with a replica of which the commits are lost.
    """
    rng = Kernel(seed).rng("restored-knobs")
    return ControlKnobs(
        num_orchestrators=3,
        num_pnodes=rng.choice([4, 6]),
        num_vnodes=3,
        vnodes_per_node=3,
        replicas=rng.choice([(1,), (1,), (2, 1)]),
        num_batches=rng.choice([10, 40]),
        learn_rate=6.0,
        checkpoint_s=2.0,
        settling_deadline_s=300.0,
        jobs=4,
        faults_s=70.0,
        restores=rng.choice([1, 1, 2]),
        store_fault_rate=rng.choice([0.0, 0.1]),
        slow_store_rate=0.0,
        store_outages=0,
        call_loss_rate=rng.choice([0.0, 0.1]),
        tamper_rate=0.0,
        orchestrator_crashes=rng.randint(0, 3),
        orchestrator_pauses=rng.randint(0, 2),
        pnode_crashes=rng.randint(0, 2),
        pnode_losses=0,
        pnode_pauses=0,
        worker_deaths=0,
        leavers=0,
        partitions=rng.randint(0, 2),
        stream_breaks=2,
        store_partitions=rng.randint(0, 2),
        sweep_s=HOUR_S,
    )


def audited_knobs(seed: int) -> ControlKnobs:
    """Audits are in force: a few PNodes, one of them a cheat in two worlds of three, and the faults of ordinary worlds."""
    rng = Kernel(seed).rng("audited-knobs")
    return ControlKnobs(
        num_orchestrators=3,
        num_pnodes=rng.choice([8, 12]),
        num_vnodes=4,
        replicas=rng.choice([(1,), (1, 2), (2,)]),
        vnodes_per_node=2,
        num_batches=300,
        learn_rate=5.0,
        checkpoint_s=3.0,
        jobs=3,
        faults_s=60.0,
        settling_deadline_s=900.0,
        orchestrator_crashes=rng.randint(0, 3),
        orchestrator_pauses=rng.randint(0, 2),
        pnode_crashes=rng.randint(0, 3),
        sweep_s=rng.choice([300.0, 8.0]),
        audited=True,
        cheating_pnodes=rng.choice([0, 1, 1]),
        cheats_break=rng.choice([False, True]),
        cheats_grow=rng.choice([False, True]),
    )


def large_knobs(num_pnodes: int, hours: float, replicas: int = 1) -> ControlKnobs:
    """Thousands of PNodes for hours: job after job, and about one machine in twenty goes, crashes or stands still per hour.

    The slowest replicas need twice as long as the quickest, so a job of so many batches settles for minutes.
    """
    some = max(1, round(num_pnodes * hours / 80))
    length_s = hours * HOUR_S
    num_batches = 1500
    jobs = max(3, round(length_s / 900.0) + 2)
    return ControlKnobs(
        num_orchestrators=5,
        num_pnodes=num_pnodes,
        num_vnodes=64,
        replicas=(replicas,),
        vnodes_per_node=1,
        num_batches=num_batches,
        checkpoint_s=30.0,
        jobs=jobs,
        jobs_every_s=(length_s / (2 * jobs), length_s / jobs),
        faults_s=length_s,
        settling_deadline_s=0.8 * num_batches,
        store_fault_rate=0.02,
        store_outages=max(1, round(2 * hours)),
        orchestrator_crashes=max(1, round(6 * hours)),
        orchestrator_pauses=max(1, round(6 * hours)),
        pnode_crashes=some,
        pnode_losses=some,
        pnode_pauses=some,
        worker_deaths=some,
        leavers=some,
        partitions=max(1, round(6 * hours)),
        stream_breaks=4 * some,
        store_partitions=max(1, round(4 * hours)),
        full_disks=some,
        wrong_clocks=0.05,
        drift=0.01,
        tamper_rate=0.001,
    )


def in_heavy_weather(knobs: ControlKnobs) -> ControlKnobs:
    """The same world where also an orchestrator and some PNodes lie or cheat, audits are drawn, all orchestrators die once, calls are repeated and held up,
    and disks are slow.
    """
    return replace(
        knobs,
        liar=True,
        lying_pnodes=2,
        audited=True,
        cheating_pnodes=2,
        blackout_s=25.0,
        call_repeat_rate=0.02,
        call_delay_rate=0.02,
        slow_disk_rate=0.001,
    )
