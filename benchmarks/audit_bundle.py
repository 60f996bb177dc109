"""One interval from learning to its audit, with the real parts but the links: a stage in torch, the books, the bundle that is gathered from them, its check.

The stage reads what another VNode sends it, in frames that are really signed. What each part costs is told apart: learning, gathering, opening, checking, and
the bytes of the bundle by kind. An interval ends where the books ask for it, as in a worker with the usual room for evidence.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import numpy as np

from benchmarks.result import Row
from benchmarks.tolerance_cases import NARROW, OPTIMIZERS, REGISTRY, WIDE_RATES
from dcnr import limits
from dcnr.ids import ReplicaId, VNodeId, digest_of
from dcnr.specs import Config, TensorSpec
from dcnr.stages import Stage, VNodeSpec, stages_of
from dcnr.system import SystemClock
from dcnr.tensor import decode, encode_final
from dcnr.v1 import identity_pb2, local_pb2, model_pb2
from examples.byzantine.interval import INCARNATION, Party
from pnode.arrivals import Arrival
from pnode.books import Books
from pnode.chain import CommitChain, Standing
from pnode.gathering import Means, gather
from pnode.pace import Pace
from pnode.spool import Frame
from trust.commits import Place
from trust.comparison import judge
from trust.envelope import sign_apart
from vnode.bundle import Bundle, read_bundle
from vnode.checks.opening import Assigned, open_claim, read_stated
from vnode.checks.plan import checks_of_stage
from vnode.checks.torch_check import Checker
from vnode.checks.torch_record import as_array
from vnode.signed_frames import FrameNumber, statement
from vnode.state import Array, StateInfo
from vnode.torch_compute import TorchCompute
from vnode.torch_stage import initial_state
from vnode.vocabulary import TRAIN_LANE, Mode, Peer

NETWORK: Final = "5" * 40
NUM_CLASSES: Final = 10
JOB_BATCHES: Final = 65_536
"""Of the job: the interval is none with which it ends."""
HASHED_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Kind:
    """A stage behind another one of the same component. ``shape``: of the data set; ``anchor_every``: steps between anchors, 0: none."""

    name: str
    component: str
    before: Config
    config: Config
    shape: tuple[int, ...]
    optimizer: str
    width: int
    batch_size: int
    codec: str
    num_steps: int = 256
    anchor_every: int = 0

    def stage(self) -> Stage:
        """The second of the two."""
        config = {**OPTIMIZERS[self.optimizer], **({"lr": WIDE_RATES[self.optimizer]} if self.width > NARROW else {})}
        vnodes = [
            VNodeSpec(name, self.component, given, (source,), "local_ce", {"pool": 4} if self.component == "conv_block" else {}, self.optimizer, config)
            for name, given, source in (("a", self.before, "input"), ("b", self.config, "a"))
        ]  # fmt: skip
        return stages_of(vnodes, REGISTRY, TensorSpec("float32", self.shape), TensorSpec("int64", ()), NUM_CLASSES)[1]


async def measured(kind: Kind, folder: Path, seed: int) -> Row:
    """Seconds of processor time and bytes of one interval. Raises AssertionError where its audit finds something: then nothing was measured."""
    worker = _Worker(kind, folder, seed)
    learned_s, interval = await worker.learn()
    begun = time.process_time()
    written = await gather(worker.evidence, worker.replica, interval, folder / "bundle", worker.means())
    gathered_s = time.process_time() - begun
    row: Row = {
        "case": kind.name,
        "seed": seed,
        "steps": worker.steps,
        "learned_s": round(learned_s, 4),
        "gathered_s": round(gathered_s, 4),
    }
    row |= {"in_bytes": worker.in_bytes, "out_bytes": worker.out_bytes, "bundle_bytes": written.size_bytes}
    return row | _audited(worker, written.path)


class _Worker:
    """Who learns the interval, and hands it over."""

    def __init__(self, kind: Kind, folder: Path, seed: int) -> None:
        self.kind, self.stage, self.seed, self.steps = kind, kind.stage(), seed, 0
        self.in_bytes = self.out_bytes = 0
        self.replica, self.evidence = "b.1", folder / "evidence"
        self._folder, self._own, self._sender = folder, Party(NETWORK), Party(NETWORK)
        folder.mkdir(parents=True)
        self._first = initial_state(self.stage, REGISTRY, seed=seed, model="m", graph="", num_batches=JOB_BATCHES)
        (folder / "begin").write_bytes(self._first)
        self._compute = self._fresh()
        self._info = self._began = self._compute.restore(self._first)
        self._ends = False
        self._standing = Standing(
            NETWORK, "m", "j", VNodeId("b"), Peer(ReplicaId(self.replica), INCARNATION), self._own.node.node_id
        )
        self._chain = CommitChain(self._standing, self._own.worker, self._own.delegation, digest_of(self._first), "")

    def assigned(self) -> Assigned:
        """What the job says of it."""
        kind = self.kind
        return Assigned(Place(NETWORK, "m", "j", "b"), self.stage, kind.batch_size, JOB_BATCHES, kind.codec, is_read=True)

    def target(self, batch: int) -> Array:
        """Of the data set."""
        return np.random.default_rng((self.seed, batch, 1)).integers(0, NUM_CLASSES, self.kind.batch_size)

    async def learn(self) -> tuple[float, str]:
        """Seconds of the steps alone, and the name of the interval."""
        order = local_pb2.HostReplica(
            evidence_dir=str(self.evidence), evidence_bytes=limits.EVIDENCE_BYTES, state_path=str(self._folder / "begin"),
            assignment=model_pb2.DesiredAssignment(role=model_pb2.ROLE_PRIMARY),
        )  # fmt: skip
        span = checks_of_stage(self.stage, REGISTRY).replay().span_steps
        books = Books(
            self._standing, order, self._info, inputs=[0], is_read=True, span_steps=span, capture=self._capture, held=_ignore, crowded=self._crowded
        )  # fmt: skip
        learned_s = 0.0
        while self.steps < self.kind.num_steps and not self._ends:
            batch = self.steps
            await books.before_learning()
            arrival, target = self._arrival(batch), self.target(batch)
            begun = time.thread_time()
            learned = self._compute.learn(batch, [arrival.tensor], target, batch)
            learned_s += time.thread_time() - begun
            self._info, self.steps = replace(self._info, lineage=self._info.lineage.add(batch)), batch + 1
            encoded = encode_final(as_array(learned.output), self.kind.codec)
            frame: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
            frame.set_result(Frame(encoded, batch))
            self.in_bytes, self.out_bytes = self.in_bytes + len(arrival.encoded.payload), self.out_bytes + len(encoded.payload)
            await books.learned(batch, [arrival], learned, batch, frame)
            self._chain.learned(batch, learned.loss)
            await asyncio.sleep(0)
            if self.kind.anchor_every and self.steps % self.kind.anchor_every == 0 and self.steps < self.kind.num_steps:
                await self._anchor(books)
        return learned_s, await self._end(books)

    async def _anchor(self, books: Books) -> None:
        info = self._next()
        data = self._compute.anchor(info)
        log = await books.log(self._chain.state_digest)
        link = self._chain.close(anchor=digest_of(data), steps=digest_of(log))
        books.anchored(link.commit, log, data, info)
        self._info = info

    async def _end(self, books: Books) -> str:
        info = self._next()
        data = self._compute.snapshot(info)
        (self._folder / "end").write_bytes(data)
        log = await books.log(self._chain.state_digest)
        link = self._chain.close(state=digest_of(data), steps=digest_of(log))
        await books.keep(books.ended(link.commit, log, info), link.digest, self._folder / "end")
        books.close()
        return link.digest

    def means(self) -> Means:
        """To make states between again: the same maths, and inputs from the evidence. Targets are made anew, as a data set is read."""
        samples = SimpleNamespace(read_target=lambda lane, batch: self.target(batch))
        config = SimpleNamespace(input_edges=())

        def prepare(order: local_pb2.HostReplica) -> Any:
            compute = self._fresh()
            return SimpleNamespace(
                stage=self.stage, compute=compute, info=compute.restore(Path(order.state_path)), samples=samples, config=config
            )

        return Means(prepare, lambda _: cast("Any", _AlwaysReady()), Pace(SystemClock(), time.process_time))

    def _next(self) -> StateInfo:
        return replace(self._began, parent=self._chain.state_digest, step=self._info.step + 1, lineage=self._info.lineage)

    def _fresh(self) -> TorchCompute:
        return TorchCompute(self.stage, REGISTRY, num_batches=JOB_BATCHES, seed=self.seed, whole_anchors=True)

    async def _capture(self, info: StateInfo) -> bytes:
        return self._compute.snapshot(info)

    def _crowded(self, why: str) -> None:
        self._ends = True

    def _arrival(self, batch: int) -> Arrival:
        shape = (self.kind.batch_size, *self.stage.inputs[0].spec.shape)
        encoded = encode_final(
            np.random.default_rng((self.seed, batch, 0)).standard_normal(shape, dtype=np.float32), self.kind.codec
        )
        source, target = Peer(ReplicaId("a.1"), INCARNATION), self._standing.peer
        number = FrameNumber(TRAIN_LANE, batch, Mode.TRAIN)
        said = statement(source, target.replica, number, encoded.header, batch)
        signature = sign_apart(identity_pb2.DOMAIN_FRAME, said, self._sender.worker)
        values = decode(encoded.header, encoded.payload)
        return Arrival(values, encoded, number, source, target, batch, signature, self._sender.delegation())


class _AlwaysReady:
    """A data set that is here."""

    async def ready(self, lane: object, batch: int) -> None:
        """At once."""


class _Samples:
    def __init__(self, worker: _Worker) -> None:
        self._worker = worker

    def read_input(self, batch: int) -> Array:
        """Nothing reads it: the stage's input comes from a VNode."""
        raise NotImplementedError

    def read_target(self, batch: int) -> Array:
        """Of the data set."""
        return self._worker.target(batch)


def _audited(worker: _Worker, path: Path) -> Row:
    """What an auditor does with the bundle that it has fetched."""
    begun = time.thread_time()
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(HASHED_BYTES):
            digest.update(piece)
    digested_s, begun = time.thread_time() - begun, time.thread_time()
    assigned = worker.assigned()
    with read_bundle(path) as bundle:
        stated = read_stated(bundle, assigned)
        assert stated.broken is None, stated.broken
        opened = open_claim(stated, bundle, assigned, _Samples(worker))
        opened_s, begun = time.thread_time() - begun, time.thread_time()
        checker = Checker(assigned, REGISTRY, worker.seed, "")
        outcome = judge(checker.comparisons(opened.claim, model_pb2.CHECK_KIND_REPLAY, b""))
        replayed_s = time.thread_time() - begun
        assert outcome.passed, outcome.first_over
        sizes = _sizes(bundle, worker.steps, path.stat().st_size)
    times = {"digested_s": digested_s, "opened_s": opened_s, "replayed_s": replayed_s}
    return {**{name: round(value, 4) for name, value in times.items()}, **sizes}


def _sizes(bundle: Bundle, num_steps: int, total_bytes: int) -> Row:
    """Bytes of the bundle by kind; ``words_bytes``: statements, logs, and the header of each part, with the signature of its frame."""
    frames = sum(
        part.size_bytes for kind in (model_pb2.EVIDENCE_KIND_INPUT, model_pb2.EVIDENCE_KIND_OUTPUT) for part in bundle.parts(kind)
    )
    states = {(part.entry, part.port): part.size_bytes for part in bundle.parts(model_pb2.EVIDENCE_KIND_STATE)}
    ends = sum(states.get((entry, 0), 0) for entry in (0, num_steps))
    anchors = sum(size_bytes for (_, port), size_bytes in states.items() if port)
    between = sum(states.values()) - ends - anchors
    words = total_bytes - frames - sum(states.values())
    return {"frames_bytes": frames, "ends_bytes": ends, "between_bytes": between, "anchors_bytes": anchors, "words_bytes": words}


def _ignore(why: str) -> None:
    """Nobody listens."""


def run_one(kind: Kind, folder: Path, seed: int) -> Row:
    """`measured`, from a program without a loop."""
    return asyncio.run(measured(kind, folder, seed))
