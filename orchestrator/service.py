"""The orchestrator's process: opens the store, serves the contract, keeps a runtime per model, and judges the nodes several times a second.

Any number of these run side by side without a leader: whoever holds a model's head decides for it, the others answer, deliver, proxy and stand by.
With the store away nothing is decided; the process stays up and says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import structlog
from grpc import aio

from dataservice import keys
from dataservice.pacing import BYTES_PER_MBIT
from dataservice.s3 import S3Store
from dcnr import __version__
from dcnr.client import Orchestrators
from dcnr.errors import DcnrError, InvalidInput, Unavailable, for_others
from dcnr.groups import apart, first_cause
from dcnr.ids import NodeId, check_name
from dcnr.logs import name_node
from dcnr.ports import Clock, Random
from dcnr.rpc.dialer import Dialer
from dcnr.rpc.server import RpcServer
from dcnr.settings import OrchestratorSettings
from dcnr.tracing import started
from dcnr.v1 import data_pb2_grpc, ledger_pb2_grpc, membership_pb2, membership_pb2_grpc, orchestrator_pb2, orchestrator_pb2_grpc
from membership.bootstrap import listed
from membership.gossip import Gone, GoneReason, GossipEvent
from membership.node import Membership
from membership.reach_desk import ReachDesk
from membership.relay_desk import RelayDesk
from membership.relays import RelayDialer
from orchestrator.asking import Asking
from orchestrator.attach import AttachService, tell_transitions
from orchestrator.candidates import Workers
from orchestrator.datarpc import DataServicer
from orchestrator.history import History
from orchestrator.holders import Holders
from orchestrator.infer_streams import InferStreams
from orchestrator.inventory import Inventory
from orchestrator.keeping import Keeper
from orchestrator.ledger_rpc import LedgerServicer
from orchestrator.looks import Looks
from orchestrator.metering import Metering
from orchestrator.offers import PlanPolicy
from orchestrator.opened_store import opened_store, probed
from orchestrator.own_eyes import OwnEyes
from orchestrator.rpc import OrchestratorServicer
from orchestrator.runtime import UNLISTED, ModelRuntime, Shared
from orchestrator.standings import Standings
from orchestrator.usage import Books, HistoryBooks
from orchestrator.view import ViewLoader
from trust.addresses import join_address
from trust.caps import IDS_PER_SUBNET
from trust.delegation import VerifiedDelegation
from trust.draw_secret import load_or_create_secret
from trust.identity import NodeKey
from trust.in_force import InForce
from trust.network import NetworkPolicy
from trust.session import Peer, RandomBytes
from trust.trusted import OwnList, read_own_list
from vnode.checks.verifying import Verifier
from vnode.registry import registry_with

JUDGE_S: Final = 0.25
DISCOVER_S: Final = 3.0
LOOK_S: Final = 0.5
"""At most one look for models so often, however many ask for jobs that nobody knows."""
MAX_MODELS: Final = 16
RESTART_S: Final = 2.0
STOP_GRACE_S: Final = 1.0
DRAW_FILE: Final = "draw.key"
SOFTWARE: Final = f"dcnr {__version__}"
_log = structlog.get_logger("orchestrator")


class ModelTable:
    """The runtimes of all models that the store's index names."""

    def __init__(self, shared: Shared, group: asyncio.TaskGroup) -> None:
        self.shared, self._group = shared, group
        self.loader = ViewLoader(shared.store, lambda: shared.policy, shared.registry, shared.clock)
        self.runtimes: dict[str, ModelRuntime] = {}
        self.software, self.started_at = SOFTWARE, shared.clock.monotonic()
        self._tasks: list[asyncio.Task[None]] = []
        self._looks = Looks(self._list, LOOK_S)

    def runtime(self, model: str) -> ModelRuntime:
        """The runtime of a model, started if it was not known. Raises Unavailable where there are too many."""
        found = self.runtimes.get(model)
        if found is None:
            self.check_room(model)
            found = self.runtimes[model] = ModelRuntime(model, self.shared)
            self._tasks.append(self._group.create_task(self._keep(model, found), name=f"model-{model}"))
        return found

    def check_room(self, model: str) -> None:
        """Raises Unavailable (``too_many_models``) for a model for which there is no runtime, and no place for one."""
        if model not in self.runtimes and len(self.runtimes) >= MAX_MODELS:
            raise Unavailable(f"this orchestrator serves {MAX_MODELS} models already", code="too_many_models")

    async def _keep(self, model: str, runtime: ModelRuntime) -> None:
        """A runtime whose invariant breaks is replaced by one that knows nothing, an ordinary taker; the others do not notice."""
        while True:
            try:
                await apart(runtime.run())
            except* Exception as errors:  # noqa: BLE001  what one model's documents or reports cause must not end the other models
                self.shared.history.say("runtime_failed", model, for_others(first_cause(errors)))
                _log.error("runtime_failed", model=model, exc_info=errors)
            runtime = self.runtimes[model] = ModelRuntime(model, self.shared)
            await asyncio.sleep(RESTART_S)

    def close(self) -> None:
        """Ends all runtimes: from now on nothing is decided here."""
        for task in self._tasks:
            task.cancel()

    async def discover(self) -> None:
        """Looks for models in the store, until cancelled."""
        while True:
            try:
                await self._looks.anew()
            except DcnrError as error:
                _log.debug("models_not_listed", reason=error.message)
            await asyncio.sleep(DISCOVER_S)

    async def look(self) -> None:
        """Knows all models that the store names when this returns, in a look that others who ask share. Raises Unavailable where the store does not answer."""
        await self._looks.anew()

    async def _list(self) -> None:
        prefix = keys.model_index_prefix()
        for row in await self.shared.store.list(prefix, max_keys=MAX_MODELS):
            try:
                self.runtime(check_name(row.key.removeprefix(prefix)))
            except (InvalidInput, Unavailable) as error:  # the others are not to blame
                _log.debug("model_not_served", reason=error.message)


async def run_orchestrator(
    settings: OrchestratorSettings,
    home: Path,
    *,
    key: NodeKey,
    network: InForce,
    clock: Clock,
    rng: Random,
    random_bytes: RandomBytes,
    stop: asyncio.Event,
    store_file: Path | None = None,
    verifier: Verifier | None = None,
    books: Books | None = None,
    gateways: Collection[str] = (),
    on_ready: Callable[[str, int], None] = lambda host, port: None,
) -> None:
    """Runs until ``stop`` is set. ``store_file``: credentials of an external store (0600). ``verifier``: ended with this.
    ``books``: what is told of usage and asked for quotes; without one the history. ``gateways``: ids of gateways that may ask as often as there is
    room, besides those of the settings.

    Raises Refused for a store without preconditions, InvalidInput for a bad list of trusted PNodes.
    """
    trusted = read_own_list(Path(settings.trusted)) if settings.trusted else OwnList()
    registry = registry_with(settings.components)
    settings = replace(settings, bootstrap=listed(settings.bootstrap, settings.bootstrap_file))
    name_node(key.node_id)
    tracer = started(settings.tracing, "dcnr-orchestrator", key.node_id)
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    policy = network.policy
    if not policy.is_orchestrator(key.node_id):
        _log.warning("not_listed", reason=UNLISTED)
    async with opened_store(settings, home, policy, store_file) as store:
        proxy_uploads = await probed(store, stop)
        if proxy_uploads is None:
            return
        history = History(home / "history.db", key.node_id, clock)
        await history.open()
        try:
            shared = Shared(
                key, network, store, clock, registry, Inventory(), history, trusted=trusted,
                plan_policy=_plan_policy(policy), draw_secret=load_or_create_secret(home / DRAW_FILE, random_bytes),
                own_eyes=OwnEyes(store, policy.network_id, home / "audits", verifier), random_bytes=random_bytes,
                books=books, gateways=frozenset((*settings.gateways, *gateways)), standings=Standings(policy.terms, clock.wall),
                tracer=tracer,
            )  # fmt: skip
            await _serve(settings, home, shared, store, proxy_uploads, rng, random_bytes, stop, on_ready)
        finally:
            if verifier is not None:
                await verifier.close()
            await history.close()
            tracer.close()


def _plan_policy(policy: NetworkPolicy) -> PlanPolicy:
    """The planner's rules as the network document has them."""
    apart = not policy.single_host
    subnets = IDS_PER_SUBNET if apart and policy.audits_drawn else 0
    return PlanPolicy(keeps_apart=apart, ids_per_subnet=subnets, young_contribute=not policy.audits_drawn)


async def _serve(
    settings: OrchestratorSettings,
    home: Path,
    shared: Shared,
    store: S3Store,
    proxy_uploads: bool,
    rng: Random,
    random_bytes: RandomBytes,
    stop: asyncio.Event,
    on_ready: Callable[[str, int], None],
) -> None:
    dialer = Dialer(shared.key, shared.policy.network_id, clock=shared.clock, rng=random_bytes)
    server = RpcServer(shared.key, shared.policy.network_id, clock=shared.clock, rng=random_bytes)
    membership = Membership(
        key=shared.key, network=shared.network, kind=membership_pb2.NODE_KIND_ORCHESTRATOR, dialer=dialer, clock=shared.clock, rng=rng,
        bootstrap=settings.bootstrap, cache_path=home / "nodes.json",
    )  # fmt: skip
    # adverts, delegations and expiries are judged by network time: a wrong wall clock is no reason to refuse
    shared.clock = membership.clock
    shared.network.follow(shared.amended)
    async with asyncio.TaskGroup() as group:
        models = ModelTable(shared, group)
        presigner = store if store.address.public_endpoint else None
        data = DataServicer(
            shared, models.runtimes, presigner=presigner, proxy_uploads=proxy_uploads, known=lambda node: _known(shared, membership, node),
        )  # fmt: skip
        attach = AttachService(
            shared, models.runtimes, head_url=data.head_url, reach=lambda node, where: _reach(dialer, node, where), probe=membership.probe,
        )  # fmt: skip
        books = shared.books or HistoryBooks(shared.history, shared.policy.network_id)
        keeper = Keeper(shared, models.runtimes, books)
        await keeper.begin()
        own_host = "127.0.0.1" if settings.listen_host in ("0.0.0.0", "::", "") else settings.listen_host
        relays = _relays(shared, membership, random_bytes, lambda: join_address(own_host, server.port))
        membership.servicer.relay = _relay_desk(shared, membership, random_bytes, settings.relay_mbit)
        membership.servicer.reach = ReachDesk(shared.policy.network_id, shared.clock)
        asking, metering = (
            _asking(shared, membership, RelayDialer(dialer, relays, prefer=shared.key.node_id), rng),
            Metering(shared, books),
        )
        services = OrchestratorServicer(models, attach, membership, asking, metering)
        _register(server, services, data, LedgerServicer(shared, books, keeper.passes), membership)
        port = await server.start(settings.listen_host, settings.control_port)
        host = settings.advertise_host or own_host
        membership.subscribe(lambda event: _gossiped(shared, event))
        membership.update_self(software=SOFTWARE)
        await membership.start(join_address(host, port), settings.listen_host, settings.dht_port)
        own = (shared.history.run(), keeper.run(), asking.run(), metering.run())
        tasks = [group.create_task(work) for work in (models.discover(), _judge(shared, attach, membership), *own)]
        shared.history.say("orchestrator_started", shared.key.node_id, f"it listens on {join_address(host, port)}")
        on_ready(host, port)
        await stop.wait()
        models.close()
        await membership.stop()
        await server.stop(STOP_GRACE_S)
        await asking.close()
        await relays.close()
        await metering.tell()
        for task in tasks:
            task.cancel()


def _register(
    server: RpcServer, services: OrchestratorServicer, data: DataServicer, ledger: LedgerServicer, membership: Membership
) -> None:
    def orchestrator(target: aio.Server) -> None:
        orchestrator_pb2_grpc.add_OrchestratorServiceServicer_to_server(services, target)

    def dataservice(target: aio.Server) -> None:
        data_pb2_grpc.add_DataServiceServicer_to_server(data, target)

    def gossip(target: aio.Server) -> None:
        membership_pb2_grpc.add_MembershipServiceServicer_to_server(membership.servicer, target)

    def ledgers(target: aio.Server) -> None:
        ledger_pb2_grpc.add_LedgerServiceServicer_to_server(ledger, target)

    server.add(ledgers, "dcnr.v1.LedgerService")
    server.add(orchestrator, "dcnr.v1.OrchestratorService")
    server.add(dataservice, "dcnr.v1.DataService")
    server.add(gossip, "dcnr.v1.MembershipService")


def _gossiped(shared: Shared, event: GossipEvent) -> None:
    if event.advert.is_orchestrator:
        return
    if isinstance(event, Gone):
        if event.reason is not GoneReason.CROWDED_OUT:
            shared.inventory.vanished(event.advert.node_id)
    else:
        shared.inventory.advertised(event.advert.advert, shared.clock.monotonic(), event.advert.owner)


def _known(shared: Shared, membership: Membership, node_id: str) -> bool:
    record = shared.inventory.nodes().get(node_id)
    return (record is not None and record.beat_at is not None) or membership.find(node_id) is not None


def _relays(shared: Shared, membership: Membership, random_bytes: RandomBytes, own: Callable[[], str]) -> Orchestrators:
    """Through whom workers are asked that nobody can dial: this orchestrator, at whose desk most of them listen, and the others."""
    dialer = Dialer(shared.key, shared.policy.network_id, clock=shared.clock, rng=random_bytes, own_connections=True)

    def known() -> list[tuple[NodeId, Sequence[str]]]:
        others = [
            (one.node_id, tuple(one.advert.control_addresses))
            for one in membership.orchestrators()
            if one.node_id != shared.key.node_id
        ]
        return [(shared.key.node_id, (own(),)), *others]

    return Orchestrators(dialer, known)


def _relay_desk(shared: Shared, membership: Membership, random_bytes: RandomBytes, mbit: float) -> RelayDesk | None:
    """What passes bytes on for PNodes that are known; None where ``mbit`` is 0."""

    def is_orchestrator(name: str) -> bool:
        return name == shared.key.node_id or shared.policy.is_orchestrator(name)

    def may_use(peer: Peer) -> bool:
        name = peer.pnode_id or peer.node_id
        return is_orchestrator(name) or _known(shared, membership, name)

    if not mbit:
        return None
    return RelayDesk(shared.clock, random_bytes, may_use=may_use, is_orchestrator=is_orchestrator, bytes_s=mbit * BYTES_PER_MBIT)


def _asking(shared: Shared, membership: Membership, dialer: RelayDialer, rng: Random) -> Asking:
    """What brings questions from here."""
    return Asking(
        shared,
        streams=InferStreams(partial(dialer.connect, own_connection=True), shared.clock),
        workers=Workers(shared.policy.network_id, shared.clock.wall, lambda node: _worker(membership, node)),
        rng=rng,
        holders=Holders(dialer.direct, membership.find),
    )


def _worker(membership: Membership, node_id: str) -> VerifiedDelegation | None:
    found = membership.find(node_id)
    return found.delegation if found is not None else None


async def _reach(dialer: Dialer, node_id: str, addresses: list[str]) -> bool:
    try:
        connection = await dialer.connect(node_id, addresses, own_connection=True)
    except DcnrError:
        return False
    await connection.close()
    return True


async def _judge(shared: Shared, attach: AttachService, membership: Membership) -> None:
    """Judges whoever may have changed, at once and several times a second; the lost are looked for, so that they leave everybody's view if they are dead."""
    lost, seen = set[str](), -1
    while True:
        if changes := tell_transitions(shared, shared.clock.monotonic()):
            shared.nodes_changed.fire()
            for change in changes:
                (lost.add if change.after == orchestrator_pb2.NODE_STATE_OFFLINE else lost.discard)(change.node_id)
            lost &= shared.inventory.nodes().keys()
            for node_id in sorted(lost):
                membership.suspect(node_id)
        for node_id in shared.inventory.take_missed():
            attach.probe(node_id)
        seen = await shared.nodes_changed.wait(seen, JUDGE_S)
