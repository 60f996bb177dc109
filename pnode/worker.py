"""The worker process: hosts replicas and the data plane for a daemon, whose descriptor is its only master; when that closes, it ends.

It makes its own key, never holds the node's, reads what the daemon laid on disk, and opens no connection besides those to neighbouring workers, and to the
collector of traces that its owner named.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from dcnr import crashpoints, logs
from dcnr.errors import Corrupt, DcnrError
from dcnr.groups import first_cause
from dcnr.ids import NodeId, ReplicaId, check_replica_id
from dcnr.open_files import let_open
from dcnr.ports import Clock
from dcnr.settings import TracingSettings
from dcnr.specs import Registry
from dcnr.system import SystemClock
from dcnr.tracing import started
from dcnr.v1 import common_pb2, identity_pb2, local_pb2, orchestrator_pb2, vnode_pb2
from pnode.auditing import Auditing, Auditor
from pnode.courtesy import give_way
from pnode.crew import Acting, Crew, Outlets
from pnode.donors import Donor
from pnode.frames import intervals_of
from pnode.hub import LinkHub
from pnode.infer_desk import Here, InferDesk
from pnode.infer_places import Place
from pnode.infer_ways import Ways
from pnode.job_traces import JobTraces
from pnode.links import LinkService, PeerLinks
from pnode.listening import Listening
from pnode.making import Making
from pnode.memory import rss_bytes
from pnode.merge_calls import MergeCalls
from pnode.pace import Pace
from pnode.pipe import LocalPipe
from pnode.rpc import GRACE_S, HeldPort, data_server, outward
from pnode.seats import Seats
from pnode.service import DataPlane
from pnode.uplink import Uplink
from trust.delegation import VerifiedDelegation, open_delegation
from trust.envelope import open_single, parse
from trust.identity import NodeKey
from vnode.registry import registry_with

REPORT_S: Final = 1.0
MIN_REPORT_GAP_S: Final = 0.05
MAX_QUEUED: Final = 4096
MAX_EVIDENCE: Final = 32
EVIDENCE_AFTER_S: Final = 1.0
EXECUTOR_THREADS: Final = 4
NO_TRACING: Final = TracingSettings()


class NetworkClock:
    """Network time as the daemon knows it: a machine whose clock is wrong takes part all the same. A `dcnr.ports.Clock`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.offset_s = 0.0

    def monotonic(self) -> float:
        """As the machine's."""
        return self._clock.monotonic()

    def wall(self) -> float:
        """Seconds since 1970 UTC."""
        return self._clock.wall() + self.offset_s


class Worker:
    """One worker from its delegation to the end of its pipe."""

    def __init__(
        self, pipe: LocalPipe[local_pb2.ToWorker], key: NodeKey, clock: Clock, computing: local_pb2.WorkerHello, making: Making, *, registry: Registry,
        tracing: TracingSettings = NO_TRACING,
    ) -> None:  # fmt: skip
        """``computing``: what it says about its device."""
        self._computing, self._device, self._tracing, self._registry = computing, computing.device, tracing, registry
        self._pipe, self._key, self._clock, self._making = pipe, key, NetworkClock(clock), making
        self._executor = ThreadPoolExecutor(max_workers=EXECUTOR_THREADS, thread_name_prefix="worker-io")
        self._out: asyncio.Queue[local_pb2.FromWorker] = asyncio.Queue(MAX_QUEUED)
        self._news = asyncio.Event()
        self._delegation = identity_pb2.Envelope()
        self._crew: Crew
        self._hub: LinkHub
        self._acting: Acting
        self._auditing: Auditing
        self._seats: Seats
        self._desk: InferDesk
        self._relays: list[tuple[NodeId, Sequence[str]]] = []
        self._volunteers: frozenset[NodeId] = frozenset()
        self._listening: Listening
        self._job_traces: JobTraces | None = None

    async def run(self, held: HeldPort) -> None:
        """Until the daemon is gone."""
        hello = local_pb2.WorkerHello(public_key=self._key.public_der, data_port=held.port)
        hello.MergeFrom(self._computing)
        await self._pipe.send(local_pb2.FromWorker(hello=hello))
        first = await self._pipe.receive()
        if first is None:
            return
        if first.WhichOneof("kind") != "delegation":
            raise Corrupt("the daemon must send a delegation first", code="no_delegation")
        self._clock.offset_s = first.network_time_offset_s
        self._acting = self._act_for(first.delegation)
        out = outward(
            self._key, self._acting.network_id, self._clock, lambda: self._delegation, lambda: self._relays,
            near=lambda worker_id: self._hub.near(worker_id), volunteers=lambda: self._volunteers,
        )  # fmt: skip
        dial = out.dial
        peers = PeerLinks(self._clock, random.Random(), self._executor, dial, self._lost, self._told)
        uplink = Uplink(self._clock)
        self._hub = LinkHub(self._clock, self._acting.pnode_id, peers, self._lost)
        ways = Ways(self._clock, dial, self._told, out.certificates)
        tracer = started(self._tracing, "dcnr-worker", self._acting.pnode_id)
        self._job_traces = JobTraces(tracer, self._clock) if self._tracing.endpoint else None
        here = Here(self._acting.network_id, self._acting.pnode_id, self._key.node_id, tracer)
        self._desk = InferDesk(
            here, clock=self._clock, executor=self._executor, find=self._place, ways=ways, told=self._told,
            ended=lambda caller, session: self._seats.ended(caller, session),
        )  # fmt: skip
        server = data_server(self._key, self._acting.network_id, self._clock, lambda peer: self._new_data_plane(peer, uplink))
        held.free()
        await server.start(held.host, held.port)
        self._listening = Listening(
            self._key.node_id, server.port, out.relays, self._clock, random.Random(), self._told, self._news.set,
            host=held.own_host, volunteers=lambda: self._volunteers,
        )  # fmt: skip
        try:
            async with asyncio.TaskGroup() as group:
                pace = Pace(self._clock, time.process_time)
                self._crew = self._new_crew(group, MergeCalls(dial, uplink), pace)
                self._auditing = self._new_auditing(group, pace)
                self._seats = self._new_seats(group, pace)
                own = (ways.run(), self._desk.run(), self._listening.run(), self._send(), self._report())
                for work in (peers.run(), self._hub.run(), *own):
                    group.create_task(work)
                await self._obey(group)
                self._seats.close()
                raise _DaemonGone  # cancels everything that runs here
        except BaseExceptionGroup as group:
            unexpected = group.split(_DaemonGone)[1]
            if unexpected is not None:
                raise unexpected from None
        finally:
            await out.relays.close()
            await server.stop(GRACE_S)
            self._executor.shutdown(wait=False, cancel_futures=True)
            tracer.close()

    def _new_data_plane(self, peer: Callable[[Any], str], uplink: Uplink) -> DataPlane:
        return DataPlane(
            LinkService(self._clock, self._key, self._hub.find, peer, self._told, lambda: self._crew.readers()),
            peer=peer,
            desk=lambda replica: self._crew.desk(replica),
            donor=Donor(self._acting.network_id, lambda *state: self._crew.state_file(*state), uplink),
            uplink=uplink,
            infer=self._desk,
        )

    def _new_auditing(self, group: asyncio.TaskGroup, pace: Pace) -> Auditing:
        acting = self._acting
        return self._making.auditing(
            Auditor(acting.network_id, acting.pnode_id, self._key, lambda: self._delegation, self._registry),
            clock=self._clock, executor=self._executor, pace=pace, shards=self._shards, done=self._audited, group=group,
        )  # fmt: skip

    def _new_crew(self, group: asyncio.TaskGroup, calls: MergeCalls, pace: Pace) -> Crew:
        outlets = Outlets(snapshot=self._snapshot, shards=self._shards, news=self._news.set, told=self._told)
        return Crew(
            self._acting,
            key=self._key,
            delegation=lambda: self._delegation,
            hub=self._hub,
            registry=self._registry,
            clock=self._clock,
            executor=self._executor,
            pace=pace,
            calls=calls,
            device=self._device,
            outlets=outlets,
            group=group,
            making=self._making,
        )

    def _new_seats(self, group: asyncio.TaskGroup, pace: Pace) -> Seats:
        return Seats(
            self._registry, compute=self._making.compute, device=self._device, clock=self._clock, pace=pace, news=self._news.set,
            group=group,
        )  # fmt: skip

    def _place(self, model: str, hop: vnode_pb2.InferHop) -> Place:
        """Who computes that hop here. Raises NotFound (``not_here``)."""
        if hop.replica:
            return self._crew.place(model, hop.vnode, hop.replica)
        return self._seats.find(model, hop.vnode, hop.state_digest)

    def _act_for(self, envelope: identity_pb2.Envelope) -> Acting:
        """Takes over a delegation of our own key. Raises Corrupt."""
        payload, _ = open_single(envelope, identity_pb2.DOMAIN_DELEGATION)
        claimed = parse(identity_pb2.Delegation, payload)
        verified = open_delegation(envelope, network_id=claimed.network_id, now_wall=self._clock.wall())
        if verified.worker_public_der != self._key.public_der:
            raise Corrupt("a delegation of another worker's key", code="wrong_delegation")
        self._delegation = envelope
        return Acting(claimed.network_id, verified.pnode_id, verified.incarnation)

    # ---- what the daemon says -----------------------------------------------------------------------------------------------

    async def _obey(self, group: asyncio.TaskGroup) -> None:
        while (message := await self._pipe.receive()) is not None:
            self._clock.offset_s = message.network_time_offset_s
            try:
                self._obey_one(message, group)
            except DcnrError as error:
                self._told("worker_refused", message.WhichOneof("kind") or "", f"{error.code}: {error.message}")

    def _obey_one(self, message: local_pb2.ToWorker, group: asyncio.TaskGroup) -> None:
        match message.WhichOneof("kind"):
            case "delegation":
                self._act_for(message.delegation)
            case "host":
                self._crew.host(message.host)
            case "release":
                self._crew.release(message.release.replica, hand_over=message.release.hand_over)
            case "neighbour":
                self._neighbour(message.neighbour)
            case "durable":
                durable = message.durable
                self._crew.named(durable.replica, intervals_of(durable.lineage), durable.digest)
            case "drain":
                group.create_task(self._drain(message.drain))
            case "head_seen":
                self._crew.head_seen()
            case "shard_ready":
                self._crew.shard_ready(message.shard_ready.digest, message.shard_ready.error)
                self._auditing.shard_ready(message.shard_ready.digest, message.shard_ready.error)
            case "snapshot":
                self._crew.snapshot(message.snapshot.replica, message.snapshot.reason)
            case "audit":
                self._auditing.audit(message.audit)
            case "gather":
                group.create_task(self._gather(message.gather))
            case "seat":
                self._seats.ordered(message.seat)
            case "callers":
                self._desk.allow(message.callers.orchestrators)
            case "caches":
                self._seats.lend(message.caches.max_bytes)
            case "relays":
                self._relays = [(NodeId(relay.node_id), tuple(relay.addresses)) for relay in message.relays.relays]
                self._volunteers = frozenset(NodeId(relay.node_id) for relay in message.relays.relays if relay.volunteer)
                self._listening.want(message.relays.listen)
            case "verdicts":
                group.create_task(self._crew.decided(message.verdicts))

    def _neighbour(self, news: local_pb2.NeighbourAddress) -> None:
        worker: VerifiedDelegation = open_delegation(
            news.delegation, network_id=self._acting.network_id, now_wall=self._clock.wall()
        )
        if worker.pnode_id != news.pnode_id:
            raise Corrupt("a delegation of another PNode than the one named", code="wrong_pnode")
        self._hub.neighbour(check_replica_id(news.replica), worker)

    async def _gather(self, wish: local_pb2.GatherEvidence) -> None:
        self._put(local_pb2.FromWorker(gathered=await self._crew.gather(wish)))

    async def _drain(self, order: local_pb2.WorkerDrain) -> None:
        await self._crew.drain(order)
        self._put(local_pb2.FromWorker(report=self._current_report()))
        self._put(local_pb2.FromWorker(drained=local_pb2.WorkerDrained()))

    # ---- what the daemon hears ----------------------------------------------------------------------------------------------

    def _put(self, message: local_pb2.FromWorker) -> None:
        """Queues a message; a daemon that has not read thousands of them is stuck, and `_send` ends this worker."""
        with contextlib.suppress(asyncio.QueueFull):
            self._out.put_nowait(message)

    async def _send(self) -> None:
        while True:
            await self._pipe.send(await self._out.get())

    async def _report(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPORT_S):
                    await self._news.wait()
            self._news.clear()
            self._seats.review()
            self._put(local_pb2.FromWorker(report=self._current_report()))
            await asyncio.sleep(MIN_REPORT_GAP_S)

    def _current_report(self) -> local_pb2.WorkerReport:
        evidence = [
            orchestrator_pb2.LinkEvidence(
                replica=trouble.replica, pnode_id=trouble.pnode_id, broken=trouble.broken, since_s=trouble.since_s
            )
            for trouble in self._hub.troubles()
            if trouble.since_s >= EVIDENCE_AFTER_S
        ]
        reports = self._crew.reports()
        if self._job_traces is not None:
            self._job_traces.look(reports, self._crew.jobs())
        return local_pb2.WorkerReport(
            replicas=reports, evidence=evidence[:MAX_EVIDENCE], rss_bytes=rss_bytes(),
            seats=self._seats.reports(), cpu_s=time.process_time(), num_questions=self._desk.num_computed,
            listens_at=self._listening.at, num_learned=self._crew.num_learned,
        )  # fmt: skip

    def _snapshot(self, ready: local_pb2.SnapshotReady) -> None:
        self._put(local_pb2.FromWorker(snapshot=ready))

    def _audited(self, audited: local_pb2.WorkerAudited) -> None:
        self._put(local_pb2.FromWorker(audited=audited))

    def _shards(self, dataset: str, sizes: Mapping[str, int]) -> None:
        self._put(
            local_pb2.FromWorker(shards=local_pb2.ShardsWanted(dataset=dataset, digests=sizes.keys(), size_bytes=sizes.values()))
        )

    def _lost(self, replica: ReplicaId, pnode_id: str, broken: bool) -> None:
        self._put(local_pb2.FromWorker(lost=local_pb2.NeighbourLost(replica=replica, pnode_id=pnode_id, broken=broken)))
        self._news.set()

    def _told(self, kind: str, subject: str, reason: str) -> None:
        event = common_pb2.Event(
            time_unix_ms=int(self._clock.wall() * 1000), kind=kind, subject=subject, reason=reason[:512], reporter=self._reporter()
        )
        self._put(local_pb2.FromWorker(event=event))

    def _reporter(self) -> NodeId:
        return NodeId(self._acting.pnode_id)


class _DaemonGone(Exception):
    """Ends the task group of a worker whose daemon closed the pipe."""


def main(arguments: Sequence[str] | None = None, making: Making = Making()) -> int:  # noqa: B008  frozen
    """What a worker's process does: see `pnode.worker_process`."""
    parser = argparse.ArgumentParser(prog="pnode.worker", description="Started by the daemon; not for people.")
    parser.add_argument("--fd", type=int, required=True, help="inherited end of the pipe to the daemon")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0 picks a free one")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--device", default="cpu", help="device of torch")
    parser.add_argument("--trace-endpoint", default="", help="collector of traces; empty: none")
    parser.add_argument("--trace-share", type=float, default=1.0, help="of the traces that begin here")
    parser.add_argument("--components", action="append", default=[], help="file or module of components from outside the tree")
    options = parser.parse_args(arguments)
    give_way()
    let_open()
    return asyncio.run(_main(options, making))


async def _main(options: argparse.Namespace, making: Making) -> int:
    from vnode.devices import opened  # torch

    clock, key = SystemClock(), NodeKey.generate()
    logs.configure(level="info", as_json=False)
    end = socket.socket(fileno=options.fd)
    try:
        crashpoints.arm(os.environ)
        pipe = await LocalPipe.over(end, local_pb2.ToWorker)
        device = opened(options.device)
        tracing = TracingSettings(options.trace_endpoint, options.trace_share)
        registry = registry_with(options.components)
        computing = local_pb2.WorkerHello(
            device=device.name, device_name=device.title, gflops=device.gflops, memory_bytes=device.memory_bytes,
            runtime_bytes=device.runtime_bytes,
        )  # fmt: skip
        worker = Worker(pipe, key, clock, computing, making, registry=registry, tracing=tracing)
        await worker.run(HeldPort(options.host, options.port))
    except (DcnrError, OSError) as error:
        sys.stderr.write(f"worker: {error}\n")
        return 1
    except BaseExceptionGroup as group:
        sys.stderr.write(f"worker: {first_cause(group)!r}\n")
        return 1
    finally:
        # threads that hang keep this process, and who waits for the pipe's end keeps it open, closed or not
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
    return 0
