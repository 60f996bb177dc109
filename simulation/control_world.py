"""One simulated control plane: orchestrators, PNodes, the store and a maintainer, with everything that goes wrong; then a healed phase that must converge.

The replicas learn in a model (the data plane has its own world); the deciding, obeying, judging and naming is done by the real parts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

from dataservice import keys
from dcnr.groups import first_cause
from dcnr.ids import NodeId, digest_of
from dcnr.v1 import model_pb2
from orchestrator.documents import open_head
from simulation import control_disk
from simulation.control_checkers import ControlCheckers
from simulation.control_clock import Clocks, SimClock
from simulation.control_faults import ControlFaults
from simulation.control_identity import MODEL, community
from simulation.control_keys import Keyring
from simulation.control_knobs import ControlKnobs, control_knobs
from simulation.control_liars import LiarShell, LyingPNode
from simulation.control_loop import ProcessLoop
from simulation.control_maintainers import Maintainers
from simulation.control_orchestrator import OrchestratorShell
from simulation.control_pnode import PNodeShell
from simulation.control_replica import Replica
from simulation.control_store import Calls, StoreService
from simulation.control_wire import Tamperer
from simulation.kernel import Kernel, Process
from simulation.network import Network
from simulation.world import Violation


class ControlWorld:
    """A world built from a seed and knobs. ``options``: what the command line needs besides the seed to make the same knobs."""

    def __init__(self, seed: int, knobs: ControlKnobs | None = None, options: str = "--world control") -> None:
        self.seed, self.knobs, self.options = seed, knobs or control_knobs(seed), options
        self.kernel = Kernel(seed)
        self.network = Network(self.kernel, self.knobs.network)
        self.clocks = Clocks(self)
        self.cheats: set[str] = set()
        """Statements that end an interval which is wrong."""
        self.broken: set[str] = set()
        """States from which nobody can learn."""
        self.growing: set[str] = set()
        """States behind which last bits grow."""
        self.doubtful: set[str] = set()
        """Statements that end an interval which no auditor can judge, since it began with one of these."""
        self.num_late = 0
        """How often a spared interval was drawn late, since nothing could be learned from its state."""
        self.num_late_found_out = 0
        """How often one was, since its PNode had been found out."""
        self.keyring = Keyring(seed)
        with signatures(self.keyring):
            self.community = community(
                self.keyring, self.knobs.num_orchestrators, self.knobs.num_vnodes, self.knobs.replicas,
                "drawn" if self.knobs.audited else "none",
            )  # fmt: skip
        self.stranger = self.keyring.key("stranger")
        """A valid key that the network document does not list."""
        self.is_unsafe = True
        self.store_away_until_s = 0.0
        self.healed_s = 0.0
        self._head: tuple[bytes | None, model_pb2.Head | None] = (None, None)
        self.error: BaseException | None = None
        self.on_second: Callable[[ControlWorld], None] | None = None
        """Called once in every virtual second; must change nothing."""
        self.wire = Tamperer(self)
        self.checkers = ControlCheckers(self)
        self.calls = Calls(self)
        self.store = StoreService(self)
        self.orchestrators: list[OrchestratorShell] = []
        self._by_id: dict[str, OrchestratorShell] = {}
        self.pnodes: list[PNodeShell] = []
        self._pnodes_by_id: dict[str, PNodeShell] = {}
        self.maintainers = Maintainers(self)
        self.faults = ControlFaults(self)

    # ---- what parts of the world ask each other ---------------------------------------------------------------------------

    def true_clock(self) -> SimClock:
        """The time as it is."""
        return SimClock(self.kernel, 0.0)

    def step_s(self, pnode: PNodeShell, vnode: str) -> float:
        """What a step takes there, as the worker measures it."""
        return self.community.costs[vnode].step_flops / (pnode.gflops * 1e9) * pnode.factor

    def wanted(self, vnode: str) -> int:
        """Replicas that the graph wants of a VNode; 0 for the planner's choice."""
        return self.knobs.replicas[self.community.vnodes.index(vnode) % len(self.knobs.replicas)]

    def primary_of(self, pnode: PNodeShell, replica: Replica) -> tuple[PNodeShell, Replica] | None:
        """The living primary that a replica exchanges with, and where it lives; None where it does not reach it."""
        other = self.pnode(replica.primary.pnode_id)
        if other is None or not other.process.alive or other.process.paused or not other.worker.alive:
            return None
        if self.network.is_blocked(pnode.host, other.host) or self.network.is_blocked(other.host, pnode.host):
            return None
        found = other.worker.replicas.get(replica.primary.replica)
        if found is None or not found.leads or found.job_id != replica.job_id or other.loop.time() < found.ready_s:
            return None
        return other, found

    def orchestrator(self, node_id: NodeId) -> OrchestratorShell:
        """By id."""
        return self._by_id[node_id]

    def pnode(self, node_id: str) -> PNodeShell | None:
        """By id."""
        return self._pnodes_by_id.get(node_id)

    def honest(self) -> list[OrchestratorShell]:
        """All that do not lie."""
        return [shell for shell in self.orchestrators if not isinstance(shell, LiarShell)]

    @property
    def liars(self) -> set[str]:
        """Ids of PNodes that report what they never did."""
        return {shell.node_id for shell in self.pnodes[: self.knobs.lying_pnodes]}

    async def ask_orchestrator(self, caller: Process, node_id: NodeId, method: str, data: bytes, timeout_s: float) -> bytes:
        """A unary call."""
        shell = self.orchestrator(node_id)
        serve = getattr(shell, method)
        return await self.calls.call(caller, shell.process, shell.loop, lambda: serve(data), timeout_s)

    def on_the_wire(self, message: Any) -> bytes:
        """The bytes that arrive: sometimes not those that were sent."""
        return self.wire.send(message)

    def failed(self, error: BaseException) -> None:
        """A task died of an exception: the run ends with it."""
        if self.error is None:
            self.error = first_cause(error) if isinstance(error, BaseExceptionGroup) else error

    def fail(self, checker: str, message: str) -> None:
        """Raises Violation with everything needed to see it again."""
        violation = Violation(checker, f"[{checker}] {message} (at {self.kernel.now_s:.2f} s; replay: {self.replay})")
        self.failed(violation)
        raise violation

    @property
    def replay(self) -> str:
        """The command that runs this history again."""
        return f"python -m simulation {self.options} --seed {self.seed}"

    def require(self, holds: bool, checker: str, message: str) -> None:
        """Fails unless ``holds``."""
        if not holds:
            self.fail(checker, message)

    def head(self) -> model_pb2.Head | None:
        """The head as it lies in the store now."""
        data = self.store.store.peek(keys.head(MODEL))
        if data is not self._head[0]:
            self._head = data, open_head(data, self.community.policy, MODEL) if data is not None else None
        return self._head[1]

    # ---- the run ----------------------------------------------------------------------------------------------------------

    def run(self) -> ControlWorld:
        """A whole history. Raises Violation, or what a task died of."""
        with adapters(self.knobs, self.keyring):
            try:
                self._run()
            finally:
                shells: list[OrchestratorShell | PNodeShell] = [*self.orchestrators, *self.pnodes]
                for shell in shells:
                    shell.process.kill()
                    shell.loop.bury()
                self.maintainers.end()
                self.store.process.kill()
                self.store.loop.bury()
        return self

    def _run(self) -> None:
        self._begin()
        self._until(self.knobs.faults_s, lambda: False)
        self.is_unsafe = False
        self.healed_s = self.kernel.now_s
        self.faults.heal()
        if not self._until(self.kernel.now_s + self.knobs.healing_s, self.is_done):
            self.fail("liveness", "not finished\n" + "\n".join(self.story()))
        self._until(self.kernel.now_s + 20.0, lambda: False)
        self.checkers.at_end()

    def _begin(self) -> None:
        self._seed_store()
        for index in range(self.knobs.num_orchestrators):
            is_liar = self.knobs.liar and index == self.knobs.num_orchestrators - 1
            self.orchestrators.append(LiarShell(self, index) if is_liar else OrchestratorShell(self, index))
        self._by_id = {shell.node_id: shell for shell in self.orchestrators}
        num_first = self.knobs.num_pnodes - self.knobs.num_joiners
        self._join(range(num_first))
        if self.knobs.num_joiners:
            self.kernel.after(self.knobs.join_s, lambda: self._join(range(num_first, self.knobs.num_pnodes)))
        self.maintainers.start()
        self.faults.plan()
        self._look()

    def _join(self, indices: range) -> None:
        for index in indices:
            pnode = LyingPNode(self, index) if index < self.knobs.lying_pnodes else PNodeShell(self, index)
            self.pnodes.append(pnode)
            self._pnodes_by_id[pnode.node_id] = pnode
            if self.kernel.now_s:
                self.faults.shock(pnode)

    def _until(self, end_s: float, is_done: Callable[[], bool]) -> bool:
        def is_over() -> bool:
            if self.on_second is not None:
                self.on_second(self)
            return self.error is not None or is_done()

        found = self.kernel.run_until(end_s, is_over)
        if self.error is not None:
            raise self.error
        return found

    def _look(self) -> None:
        if self.error is None:
            self.checkers.look()
            self.kernel.after(0.5, self._look)

    def _seed_store(self) -> None:
        store, world = self.store.store, self.community
        store.rewind(keys.graph(world.graph_digest), world.graph_bytes)
        store.rewind(keys.manifest(MODEL, digest_of(world.manifest0)), world.manifest0)
        for vnode, data in world.initial.items():
            store.rewind(keys.state(MODEL, vnode, digest_of(data)), data)

    @property
    def must_complete(self) -> frozenset[str]:
        """Jobs that nobody calls off, that never expire and that do not rest."""
        return frozenset(f"job-{index}" for index in range(self.knobs.jobs - 2))

    def is_done(self) -> bool:
        """Every accepted job has ended, in the store, and nothing is active any more; but for one that is paused for good."""
        if not self.maintainers.is_done:
            return False
        head, unfinished = self.head(), self.maintainers.unfinished()
        if head is None or unfinished != [name for name in (head.active.job_id,) if name]:
            return False
        return not unfinished or (unfinished == [self.maintainers.resting] and head.active.state == model_pb2.JOB_STATE_PAUSED)

    def story(self) -> list[str]:
        """Who holds what, and what is missing."""
        head = self.head()
        lines = [f"orchestrators {len(self.orchestrators)}, PNodes {len(self.pnodes)}, VNodes {self.knobs.num_vnodes}"]
        if head is not None:
            state = model_pb2.JobState.Name(head.active.state) if head.active.job_id else "no job"
            lines.append(
                f"  head epoch {head.epoch} sequence {head.sequence} holder {head.holder[:8]} {head.active.job_id} {state}"
            )
            lines.extend(f"    {item.job_id} {model_pb2.JobState.Name(item.state)} {item.reason[:100]}" for item in head.decided)
        for shell in self.orchestrators:
            if shell.is_alive and not isinstance(shell, LiarShell):
                runtime = shell.runtime
                plan = runtime.view.plan if runtime.view is not None else None
                placed = f"plan {plan.number} waiting {list(plan.waiting)}" if plan is not None else "no plan"
                lines.append(
                    f"  {shell.host} {shell.node_id[:8]} life {shell.lives} holder {shell.is_holder} {runtime.loop.core.reason!r} {placed}"
                    f" attached {shell.shared.inventory.num_attached()} {runtime.trouble} {runtime.decider.trouble}"
                )
        for pnode in self.pnodes:
            if pnode.process.alive:
                for replica in pnode.worker.replicas.values():
                    lines.append(
                        f"    {pnode.host} {replica.replica} of {replica.job_id} {replica.lineage} durable {replica.durable}"
                        f" pending {len(pnode.worker.pending)}"
                    )
        return lines


def with_knobs(seed: int, **changes: Any) -> ControlWorld:
    """A world with the knobs of its seed but for ``changes``."""
    return ControlWorld(seed, replace(control_knobs(seed), **changes))


@contextlib.contextmanager
def adapters(knobs: ControlKnobs, keyring: Keyring) -> Iterator[None]:
    """Disk, store and signatures are the simulated ones meanwhile."""

    async def fetch_small(_url: str, *, max_bytes: int, rule: object) -> tuple[bytes, str]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ProcessLoop)
        assert loop.store is not None
        found = await loop.store.get(keys.head(MODEL), max_bytes=max_bytes)
        return found.data, found.etag

    with contextlib.ExitStack() as stack:
        stack.enter_context(signatures(keyring))
        for name, value in {
            "pnode.written.write_atomically": control_disk.write_atomically,
            "pnode.written.read_message": control_disk.read_message,
            "pnode.duties.read_message": control_disk.read_message,
            "pnode.headcheck.fetch_small": fetch_small,
            "orchestrator.decider.SWEEP_S": knobs.sweep_s,
            "orchestrator.decider.GRANT_LIFETIME_S": knobs.grant_lifetime_s,
            "pnode.headcheck.secrets": SimpleNamespace(token_bytes=_Nonces()),
        }.items():
            stack.enter_context(mock.patch(name, value))
        yield


def signatures(keyring: Keyring) -> contextlib.AbstractContextManager[object]:
    """Whoever opens an envelope meanwhile asks that keyring."""
    return mock.patch("trust.envelope.verify_signature", keyring.verify)


class _Nonces:
    """Numbers in place of randomness that nothing in a history should depend on."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, num_bytes: int | None = None) -> bytes:
        """Never the same twice in one history."""
        self._count += 1
        return self._count.to_bytes(num_bytes or 32, "big")
