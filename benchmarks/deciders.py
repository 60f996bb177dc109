"""Three orchestrators that are killed, stopped for longer than their term or cut off from the store, and brought back, while job after job runs; their clocks
differ by minutes, and run at different rates. No decision counts twice, no job is lost.

Each round is one job. Every head is read from the store itself, fifty times a second, and what each PNode obeys from its own disk: a plan that a PNode
has persisted must be one of the plans that follow each other under the head.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from benchmarks.cable import Cable
from benchmarks.jobs import SEED, Chain
from benchmarks.network import BenchNetwork, LocalPNode, Process, running
from benchmarks.result import Options, Result, Target, largest, median_of, rounded
from chaos.skewed import VARIABLE
from dataservice import keys
from dataservice.s3 import S3Store
from dcnr import limits
from dcnr.errors import DcnrError, NotFound, Unavailable
from dcnr.sdk.submission import JobOptions
from dcnr.v1 import model_pb2
from orchestrator.documents import open_desired, open_end, open_head, open_plan
from trust.network import NetworkPolicy

CHAIN: Final = Chain("deciders", num_stages=2, width=64, batch_size=32, samples=3_200, passes=12)
QUICK: Final = Chain("deciders", num_stages=2, width=64, batch_size=32, samples=3_200, passes=4)
NUM_ORCHESTRATORS: Final = 3
NUM_PNODES: Final = 2
LOST_S: Final = 180.0
"""A job that has no end after this time is lost."""
AWAY_S: Final = (0.5, 4.0, 14.0)
"""Longer than a term of the head, or shorter."""
CLOCKS: Final = {"o1": "-60:0.95", "o2": "0:1", "o3": "60:1.05"}
"""Seconds by which a wall clock is off, and how fast a monotonic one runs: two minutes between two, and half of what two holders' terms bear."""
LOOK_S: Final = 0.02
WRONG_SHOWN: Final = 5
MILDER: Final = "This run killed and stopped only; its orchestrators had this machine's clocks."


class Strike(StrEnum):
    """What befalls an orchestrator."""

    KILL = "kill"
    STOP = "stop"
    CUT = "cut"
    """Off from the store, and from nothing else."""


def run(options: Options) -> Result:
    """``rounds`` is the number of jobs."""
    chain = QUICK if options.quick else CHAIN
    settings = {
        **chain.settings(), "num_orchestrators": NUM_ORCHESTRATORS, "num_pnodes": NUM_PNODES, "rounds": options.rounds, "away_s": list(AWAY_S),
        "clocks": CLOCKS, "lost_after_s": LOST_S, "seed": SEED,
    }  # fmt: skip
    result = Result(
        "deciders", "Orchestrators that are killed, stopped and cut off: decisions that count twice, jobs that are lost", settings
    )
    asyncio.run(_measure(result, chain))
    conclude(result)
    return result


def conclude(result: Result) -> None:
    """Sums and targets from the rounds alone."""
    rounds = result.rounds
    result.medians = {key: rounded(median_of(rounds, key)) for key in ("job_s", "strikes", "terms")}
    result.medians["slowest_job_s"] = rounded(largest(row["job_s"] for row in rounds))
    result.medians["kills"] = sum(row["kills"] for row in rounds)
    result.medians["cuts"] = sum(row.get("cuts", 0) for row in rounds)
    result.medians["stops"] = sum(row["strikes"] for row in rounds) - result.medians["kills"] - result.medians["cuts"]
    result.medians["heads_seen"] = sum(row["heads_seen"] for row in rounds)
    result.targets = [
        Target("decisions that count twice", float(sum(len(row["wrong"]) for row in rounds)), 0.0, "decisions", at_least=False),
        Target("jobs that were lost", float(sum(row["outcome"] != "completed" for row in rounds)), 0.0, "jobs", at_least=False),
        Target("rounds", float(len(rounds)), float(result.settings["rounds"]), "jobs", at_least=True),
    ]
    if "clocks" not in result.settings:
        result.notes = [MILDER]


@dataclass(slots=True)
class Witness:
    """Reads the head and what PNodes obey, and keeps what contradicts it."""

    store: S3Store
    policy: NetworkPolicy
    model: str
    pnodes: list[Process]
    head: model_pb2.Head = field(default_factory=model_pb2.Head)
    wrong: list[str] = field(default_factory=list)
    num_heads: int = 0
    decided: dict[str, model_pb2.Outcome] = field(default_factory=dict)
    _plans: set[str] = field(default_factory=set)

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            with contextlib.suppress(DcnrError):
                data = (await self.store.get(keys.head(self.model), max_bytes=limits.MAX_HEAD_BYTES)).data
                self._see(open_head(data, self.policy, self.model))
                for process in self.pnodes:
                    await self._obeyed(process)
            await asyncio.sleep(LOOK_S)

    def _see(self, head: model_pb2.Head) -> None:
        old, self.head = self.head, head
        if head == old:
            return
        self.num_heads += 1
        if head.sequence <= old.sequence or head.epoch < old.epoch:
            self.wrong.append(f"head {old.epoch}/{old.sequence} then {head.epoch}/{head.sequence}")
        if head.epoch == old.epoch and head.holder != old.holder:
            self.wrong.append(f"epoch {head.epoch} has two holders")
        for outcome in head.decided:
            known = self.decided.setdefault(outcome.job_id, outcome)
            if known != outcome:
                self.wrong.append(f"{outcome.job_id} was decided twice")
        if old.active.job_id not in ("", head.active.job_id, *self.decided):
            self.wrong.append(f"{old.active.job_id} left the head without an outcome")

    async def _obeyed(self, process: Process) -> None:
        """The desired state on a PNode's disk belongs to a plan that was under the head."""
        try:
            data = (process.home / f"desired-{self.model}.pb").read_bytes()
        except OSError:
            return
        desired = open_desired(data, self.policy, self.model)
        if desired.plan_digest not in self._plans and not await self._descends(desired.plan_digest):
            self.wrong.append(f"{process.name} obeys plan {desired.plan_digest[:12]}, which was never under the head")
            self._plans.add(desired.plan_digest)

    async def _descends(self, digest: str) -> bool:
        """Whether a plan is among those that follow each other up to the present one."""
        data = (await self.store.get(keys.head(self.model), max_bytes=limits.MAX_HEAD_BYTES)).data
        current = open_head(data, self.policy, self.model).plan_digest
        while current and current not in self._plans:
            self._plans.add(current)
            plan = (await self.store.get(keys.plan(self.model, current), max_bytes=limits.MAX_PLAN_BYTES)).data
            current = open_plan(plan, self.policy, self.model).parent_digest
        return digest in self._plans

    async def end_of(self, job_id: str) -> model_pb2.Outcome | None:
        """What the job's `end` says, if it exists."""
        try:
            data = (await self.store.get(keys.job_end(self.model, job_id), max_bytes=limits.MAX_ENVELOPE_BYTES)).data
        except NotFound:
            return None
        end = open_end(data, self.policy, self.model, job_id)[0]
        if self.decided.get(job_id, end) != end:
            self.wrong.append(f"the end of {job_id} differs from what the head has decided")
        return end


async def _measure(result: Result, chain: Chain) -> None:
    rng = random.Random(SEED)
    pnodes = [LocalPNode(f"p{number + 1}", cores=1.0) for number in range(NUM_PNODES)]
    additions = {name: {VARIABLE: wrong} for name, wrong in CLOCKS.items()}
    async with (
        contextlib.AsyncExitStack() as stack,
        running(pnodes, num_orchestrators=NUM_ORCHESTRATORS, additions=additions, orchestrator_module="chaos.skewed") as bench,
    ):
        cables = await _wired(bench, stack)
        await bench.stage(chain)
        assert bench.network.policy is not None
        store = S3Store(bench.network.store.file.address())
        witness = Witness(store, bench.network.policy, chain.name, bench.network.pnodes)
        watching = asyncio.ensure_future(witness.watch())
        try:
            for number in range(result.settings["rounds"]):
                result.rounds.append(await _round(bench, cables, chain, witness, rng, number))
        finally:
            watching.cancel()
            await asyncio.wait({watching})
            store.close()


async def _wired(bench: BenchNetwork, stack: contextlib.AsyncExitStack) -> dict[str, Cable]:
    """Every orchestrator, started anew, reaches the store over a cable of its own, by name."""
    endpoint = bench.network.store.file.endpoint
    host, _, port = endpoint.rpartition("://")[2].rpartition(":")
    cables: dict[str, Cable] = {}
    for process in bench.network.orchestrators:
        cable = cables[process.name] = await stack.enter_async_context(Cable(host, int(port)))
        await bench.kill(process)
        process.command = [f"http://127.0.0.1:{cable.port}" if word == endpoint else word for word in process.command]
        bench.network.restart(process)
    await bench.attached([process.node_id for process in bench.network.pnodes])
    for name, cable in cables.items():
        if not cable.in_use:
            raise Unavailable(
                f"{name} reaches the store on another way than over its cable: cutting that would do nothing", code="no_cable"
            )
    return cables


async def _round(
    bench: BenchNetwork, cables: Mapping[str, Cable], chain: Chain, witness: Witness, rng: random.Random, number: int
) -> dict[str, object]:
    heads, terms, wrong = witness.num_heads, witness.head.epoch, len(witness.wrong)
    began = time.monotonic()
    job_id = await _submitted(bench, chain, f"round-{number}")
    strikes = [
        (rng.uniform(0.0, 8.0), rng.choice(list(Strike)), rng.random() < 0.7, rng.choice(AWAY_S)) for _ in range(rng.randint(1, 3))
    ]
    async with asyncio.TaskGroup() as group:
        for delay_s, strike, wants_holder, away_s in strikes:
            group.create_task(_strike(bench, cables, witness, rng, delay_s, away_s, strike, wants_holder=wants_holder))
        end = await _ended(witness, job_id)
        job_s = time.monotonic() - began
    await _all_alive(bench)
    outcome = model_pb2.JobState.Name(end.state).removeprefix("JOB_STATE_").lower() if end is not None else "lost"
    count = Counter(strike for _, strike, _, _ in strikes)
    return {
        "round": number, "job_s": round(job_s, 2), "outcome": outcome, "strikes": len(strikes), "kills": count[Strike.KILL],
        "cuts": count[Strike.CUT], "terms": int(witness.head.epoch - terms), "heads_seen": witness.num_heads - heads,
        "wrong": witness.wrong[wrong:][:WRONG_SHOWN],
    }  # fmt: skip


async def _strike(
    bench: BenchNetwork, cables: Mapping[str, Cable], witness: Witness, rng: random.Random, delay_s: float, away_s: float, strike: Strike, *,
    wants_holder: bool,
) -> None:  # fmt: skip
    """Kills, stops or cuts off one orchestrator, the holder more often than not, and brings it back."""
    await asyncio.sleep(delay_s)
    living = [process for process in bench.network.orchestrators if process.alive]
    holder = bench.network.process_of(witness.head.holder)
    process = holder if wants_holder and holder in living else rng.choice(living or bench.network.orchestrators)
    if process is None or not process.alive:
        return
    match strike:
        case Strike.KILL:
            await bench.kill(process)
            await asyncio.sleep(away_s)
            if not process.alive:
                bench.network.restart(process)
        case Strike.STOP:
            process.send(signal.SIGSTOP)
            await asyncio.sleep(away_s)
            process.send(signal.SIGCONT)
        case Strike.CUT:
            cables[process.name].cut()
            await asyncio.sleep(away_s)
            cables[process.name].mend()


async def _submitted(bench: BenchNetwork, chain: Chain, key: str) -> str:
    """The id of a job that was accepted; asked again until somebody says yes, which is the same job by its key."""
    async with asyncio.timeout(LOST_S):
        while True:
            try:
                options = JobOptions(idempotency_key=key, checkpoint_s=2.0)
                return (await bench.client.submit(chain.graph(), [bench.key], options)).job_id
            except Unavailable:
                await asyncio.sleep(0.5)


async def _ended(witness: Witness, job_id: str) -> model_pb2.Outcome | None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LOST_S):
            while True:
                with contextlib.suppress(DcnrError):
                    if (end := await witness.end_of(job_id)) is not None:
                        return end
                await asyncio.sleep(0.2)
    return None


async def _all_alive(bench: BenchNetwork) -> None:
    """The next round begins with three orchestrators that answer."""
    for process in bench.network.orchestrators:
        process.send(signal.SIGCONT)
        if not process.alive:
            bench.network.restart(process)
    await bench.until(lambda nodes: sum(node.attached for node in nodes) >= NUM_PNODES, 60.0)
