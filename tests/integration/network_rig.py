"""A whole network of real processes with a small staged data set, seen from outside: through a maintainer's calls and each PNode's own status."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import nursery
import psutil

import dcnr.sdk
from dcnr.audit_lineage import VNodeLineage, audit_lineage
from dcnr.cli.local_door import asked
from dcnr.errors import DcnrError
from dcnr.graph import Graph
from dcnr.sdk.client import AsyncClient, connect_async
from dcnr.sdk.staging import Source
from dcnr.sdk.submission import JobOptions
from dcnr.specs import TensorSpec
from dcnr.testing import ORCHESTRATOR, LocalNetwork, LocalPNode, Process
from dcnr.v1 import identity_pb2, local_pb2, model_pb2, orchestrator_pb2
from dcnr.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from trust.identity import NodeKey
from trust.records import open_location
from trust.standing import ORDINARY, Terms

MODEL = "dots"
SAMPLES = 320
BATCH_SIZE = 8
USABLE = (orchestrator_pb2.NODE_STATE_ACTIVE, orchestrator_pb2.NODE_STATE_PROBATION)
ACTIVE = orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE
LOOK_PAUSE_S = 0.25
"""Between looks at all PNodes: each is asked over a connection of its own, which costs both sides milliseconds of the processor."""
CALL_PAUSE_S = 0.3
"""Between questions to an orchestrator: workers that start need the processor."""

T = TypeVar("T")


class Rig:
    """One network, one maintainer. Every wait has a deadline and says what it waited for."""

    def __init__(self, network: LocalNetwork, data: Path, *, width: int, vnodes: Sequence[str], batch_size: int) -> None:
        self.network, self.vnodes = network, tuple(vnodes)
        self._data, self._width, self._batch_size = data, width, batch_size
        self.key = NodeKey.load(network.maintainer_key)
        self._outcome = self._last_error = ""
        self._unanswered: dict[str, str] = {}
        self.silent: set[str] = set()
        """Names of PNodes that a test has stopped: they are not asked."""
        self._runner = asyncio.Runner()
        self._asking: AsyncClient | None = None

    def close(self) -> None:
        """Ends what its questions keep open."""
        with self._runner:
            if self._asking is not None:
                self._runner.run(self._asking.close())

    def ask(self, question: Callable[[AsyncClient], Coroutine[Any, Any, T]]) -> T:
        """What an orchestrator answers to a maintainer, over connections that stay open between questions."""

        async def put() -> T:
            if self._asking is None:
                self._asking = await connect_async(self.network.bootstrap, network=self.network.network_file, key=self.key)
            return await question(self._asking)

        return self._runner.run(put())

    def client(self) -> dcnr.sdk.Client:
        """A maintainer's client; to be closed by the caller."""
        return dcnr.sdk.connect(self.network.bootstrap, network=self.network.network_file, key=self.key)

    def stage(self) -> None:
        """Brings the data set into the network."""
        with self.client() as client:
            client.stage(Source(str(self._data), MODEL, "CC0", "made here"))

    def graph(self, passes: int, replicas: int = 1, *, is_chain: bool = True) -> model_pb2.ModelGraph:
        """A chain of linear VNodes, each with so many replicas; or all of them beside one another."""
        graph = Graph(
            MODEL, input=TensorSpec("float32", (self._width,)), target=TensorSpec("int64", ()), num_classes=4,
            train={"passes": passes, "batch_size": self._batch_size, "seed": 1, "codec": "raw", "merge_every": 10},
            data={use: f"dataset:{MODEL}#{use}" for use in ("train", "validation", "test")},
        )  # fmt: skip
        before = "input"
        for vnode in self.vnodes:
            graph.vnode(
                vnode, "linear", {"out_features": self._width}, inputs=[before],
                objective={"name": "local_ce", "config": {}}, optimizer={"name": "sgd", "lr": 0.01}, replicas=replicas,
            )  # fmt: skip
            before = vnode if is_chain else before
        return graph.build()

    def submit(self, key: str, *, passes: int, replicas: int = 1, is_chain: bool = True, **options: float) -> str:
        """A job that is in the store when this returns; its id."""
        chosen = JobOptions(idempotency_key=key, **{"checkpoint_s": 1.0, "unit_batches": 8, "lead_batches": 512, **options})  # type: ignore[arg-type]
        return self.ask(lambda client: client.submit(self.graph(passes, replicas, is_chain=is_chain), [self.key], chosen)).job_id

    def job(self, job_id: str) -> orchestrator_pb2.JobView:
        """As an orchestrator sees it."""
        return self.ask(lambda client: client.job(job_id, MODEL))

    def holder(self, job_id: str) -> str:
        """Who decides on a job, as an orchestrator sees it; empty while none answers."""
        with contextlib.suppress(DcnrError):
            return self.job(job_id).holder
        return ""

    def durable(self, vnode: str) -> bool:
        """Whether the living PNode that hosts a VNode knows of a durable checkpoint of it."""
        found = self.hosts().get(vnode)
        return found is not None and bool(found[1].durable.intervals)

    def ended(self, job_id: str, within_s: float) -> orchestrator_pb2.JobView:
        """The job once it has ended, which must be completed."""
        found: list[orchestrator_pb2.JobView] = []

        def ended() -> bool:
            try:
                found.append(self.job(job_id))
            except DcnrError as error:
                self._last_error = f"{error.code}: {error}"
            return bool(found) and found[-1].HasField("outcome") and bool(found[-1].outcome.job_id)

        try:
            self.until(ended, f"{job_id} has ended", within_s, pause_s=0.5)
        except AssertionError as late:
            late.add_note(f"the last error: {self._last_error or '-'}; as last seen:\n{found[-1] if found else '-'}")
            raise
        assert found[-1].state == model_pb2.JOB_STATE_COMPLETED, found[-1].outcome
        self._outcome = found[-1].outcome.manifest_digest
        return found[-1]

    def audit(self) -> list[VNodeLineage]:
        """What the commits behind the manifest with which the last job ended say: another orchestrator may still know an older one."""

        return self.ask(lambda client: audit_lineage(client, MODEL, manifest=self._outcome))

    def located(self, replica: str) -> int:
        """The incarnation that serves a replica, as an orchestrator finds it in the DHT; 0 if it does not."""

        async def found(client: AsyncClient) -> int:
            request = orchestrator_pb2.ResolveRequest(model=MODEL, replica=replica)
            answer = await client.orchestrators.call(OrchestratorServiceStub, "Resolve", request)
            place = open_location(answer.location, network_id=client.policy.network_id, now_wall=time.time())
            return place.delegation.incarnation

        try:
            return self.ask(found)
        except DcnrError:
            return 0

    def status(self, process: Process) -> local_pb2.StatusResponse | None:
        """What a PNode says of itself; None if it does not run or does not answer."""
        if not process.alive or process.name in self.silent:
            return None
        try:
            answer: local_pb2.StatusResponse = self._runner.run(asked(process.home, "Status", local_pb2.StatusRequest()))
        except DcnrError as error:
            self._unanswered[process.name] = f"{error.code}: {error}"
            return None
        return answer

    def told(self, process: Process) -> local_pb2.StatusResponse:
        """What a PNode that must run says of itself."""
        status = self.status(process)
        assert status is not None, f"{process.name} does not answer: {self._unanswered.get(process.name, '')}\n{process.tail()}"
        return status

    def hosts(self) -> dict[str, tuple[Process, orchestrator_pb2.ReplicaReport]]:
        """By VNode: where its newest active replica is, as the living PNodes themselves say."""
        found: dict[str, tuple[Process, orchestrator_pb2.ReplicaReport]] = {}
        for process in self.network.pnodes:
            told = self.status(process)
            for report in told.replicas if told is not None else ():
                known = found.get(report.vnode)
                newer = known is None or int(report.replica.rpartition(".")[2]) > int(known[1].replica.rpartition(".")[2])
                if report.state == ACTIVE and newer:
                    found[report.vnode] = process, report
        return found

    def hosted(self, within_s: float) -> dict[str, tuple[Process, orchestrator_pb2.ReplicaReport]]:
        """`hosts`, once every VNode has one."""
        found: dict[str, tuple[Process, orchestrator_pb2.ReplicaReport]] = {}

        def all_hosted() -> bool:
            found.clear()
            found.update(self.hosts())
            return set(found) == set(self.vnodes)

        self.until(all_hosted, "every VNode is hosted", within_s)
        return found

    def learning(self, job_id: str, num_batches: int, within_s: float) -> dict[str, tuple[Process, orchestrator_pb2.ReplicaReport]]:
        """Waits until every VNode of that job has learned so many batches."""
        seen: dict[str, tuple[Process, orchestrator_pb2.ReplicaReport]] = {}

        def learning() -> bool:
            seen.update(self.hosts())
            return set(seen) == set(self.vnodes) and all(item.num_learned >= num_batches for _, item in seen.values())

        def running() -> bool:
            with contextlib.suppress(DcnrError):
                return self.job(job_id).state == model_pb2.JOB_STATE_RUNNING
            return False

        self.until(running, f"{job_id} runs", within_s, pause_s=CALL_PAUSE_S)
        seen.clear()
        self.until(learning, f"every VNode of {job_id} has learned {num_batches} batches", within_s)
        return seen

    def until(self, condition: Callable[[], bool], what: str, within_s: float, *, pause_s: float = LOOK_PAUSE_S) -> float:
        """Waits for it; the seconds that took."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() < began + within_s, (
                f"not within {within_s:.0f} s: {what}\n{self.network.trouble()}\n{self._told()}\n{self._tails()}"
            )
            time.sleep(pause_s)
        return time.monotonic() - began

    def events(self, process: Process) -> list[str]:
        """The newest events of a PNode as text."""
        return [f"{event.kind} {event.subject} {event.reason}" for event in self.told(process).events]

    def _tails(self) -> str:
        return "\n".join(f"{process.name}:\n{process.tail()}" for process in (*self.network.orchestrators, *self.network.pnodes))

    def _told(self) -> str:
        lines = []
        for process in self.network.pnodes:
            told = self.status(process)
            if told is None:
                lines.append(
                    f"{process.name} does not answer: {self._unanswered.get(process.name, 'it is not asked')}; {_seen(process)}"
                )
                continue
            for report in told.replicas:
                lines.append(
                    f"{process.name} {report.replica} state {report.state} learned {report.num_learned} held back by "
                    f"{report.held_back_by or '-'}: {report.reason}"
                )
        return "\n".join((*lines, *self._placed()))

    def _placed(self) -> list[str]:
        """Where the plan has what and why, with what it knows of machines."""
        names = {process.node_id: process.name for process in self.network.pnodes}
        wish = orchestrator_pb2.ExplainRequest(model=MODEL)
        try:
            nodes, plan = self.ask(lambda client: client.nodes()), self.ask(lambda client: client.explain(wish))
        except DcnrError as error:
            return [f"no plan is told: {error.message}"]
        told = [
            f"{names[item.node_id]}: {item.capability.gflops:.2f} GFLOP/s, {item.reason}" for item in nodes if item.node_id in names
        ]
        return [*told, *(f"{item.subject}: {item.verdict}, {item.reason}" for item in plan)]


def _seen(process: Process) -> str:
    """What the system says of its main process."""
    try:
        found = psutil.Process(process.pid)
        return f"{found.status()}, {found.cpu_times()}, {found.num_threads()} threads, {found.num_fds()} files"
    except psutil.Error as error:
        return str(error)


@contextlib.contextmanager
def running_network(
    pnodes: Sequence[LocalPNode], *, num_orchestrators: int, width: int = 32, vnodes: Sequence[str] = ("a", "b", "c"),
    batch_size: int = BATCH_SIZE, samples: int = SAMPLES, way_to_store: Callable[[str], str] = lambda endpoint: endpoint,
    audits: str = "none", trusted: Sequence[str] = (), terms: Terms = ORDINARY,
    locality: identity_pb2.Locality.ValueType = identity_pb2.LOCALITY_SINGLE_HOST, forked: bool = True,
    additions: Mapping[str, Mapping[str, str]] | None = None, orchestrator_module: str = ORCHESTRATOR, host: str = "127.0.0.1",
    public_way: Callable[[str], str] | None = None,
) -> Iterator[Rig]:  # fmt: skip
    """Store, orchestrators and PNodes, all attached, with the data set staged. Not ``forked``: PNodes are executed, and execute their workers, as
    volunteers' do, for tests that look at what a start makes of them (`nursery`). ``host``: where orchestrators and store are reached.
    """
    with tempfile.TemporaryDirectory(prefix="dcnr-", ignore_cleanup_errors=True) as directory:
        data = Path(directory) / "dots.npz"
        np.savez(data, **dots(width, samples))  # type: ignore[arg-type]  # numpy's stub wants no arrays by keyword
        where = Path(directory) / "n"
        with (
            LocalNetwork(
                where,
                num_orchestrators=num_orchestrators,
                pnodes=nursery.nursed(pnodes) if forked else pnodes,
                starting=nursery.forked,
                additions=additions,
                way_to_store=way_to_store,
                public_way=public_way,
                audits=audits,
                trusted=trusted,
                terms=terms,
                locality=locality,
                orchestrator_module=orchestrator_module,
                host=host,
            ) as network,
            contextlib.closing(Rig(network, data, width=width, vnodes=vnodes, batch_size=batch_size)) as rig,
        ):
            rig.until(lambda: _all_attached(rig), "all PNodes are attached with a worker", 180.0, pause_s=CALL_PAUSE_S)
            rig.stage()
            yield rig


def dots(width: int, samples: int) -> dict[str, np.ndarray]:
    """Four clouds."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((4, width)).astype(np.float32) * 2
    arrays: dict[str, np.ndarray] = {}
    for split, count in (("train", samples), ("validation", 32), ("test", 32)):
        arrays[f"{split}_y"] = rng.integers(0, 4, count)
        arrays[f"{split}_x"] = (centres[arrays[f"{split}_y"]] + rng.standard_normal((count, width))).astype(np.float32)
    return arrays


def _all_attached(rig: Rig) -> bool:
    wanted = {process.node_id for process in rig.network.pnodes}
    with contextlib.suppress(DcnrError):
        return wanted <= {node.node_id for node in rig.ask(lambda client: client.nodes()) if node.attached and node.state in USABLE}
    return False
