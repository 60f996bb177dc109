"""Makes the bundle of an interval out of what a replica kept: signed statements, logs, states, inputs and outputs, displacements.

States between the first and the last that the checks ask for are kept only where they are small: others are made again from the first, which gives the same
bits on the same machine. Either go into the bundle only if they have the digests that the replica has stated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Final

import numpy as np

from dcnr.codecs import decode_values
from dcnr.errors import NotFound, Unavailable
from dcnr.ids import check_digest, digest_of
from dcnr.tensor import Array
from dcnr.v1 import local_pb2, model_pb2
from pnode.evidence import place_of
from pnode.hosting import Prepared
from pnode.inputs import Inputs
from pnode.pace import Pace
from trust.commits import MAX_COMMIT_BYTES
from trust.envelope import parse, parse_envelope
from trust.step_logs import MAX_LOG_BYTES
from vnode.bundle import Bundle, BundleWriter, Written, key_of, places_of_states, read_bundle
from vnode.state import StateInfo
from vnode.vocabulary import TRAIN_LANE, Mode

GATHER_S: Final = 300.0
"""Within this time a bundle is made, or not at all."""


@dataclass(frozen=True, slots=True)
class Means:
    """What it takes to compute again."""

    prepare: Callable[[local_pb2.HostReplica], Prepared]
    """Blocks; for the thread."""
    inputs: Callable[[Prepared], Inputs]
    pace: Pace


async def gather(directory: Path, replica: str, interval: str, destination: Path, means: Means) -> Written:
    """The bundle of an interval of that replica, kept in ``directory``, as the file ``destination``. Raises NotFound (``no_evidence``), Unavailable
    (``evidence_lost``, ``not_reproduced``, ``evidence_late``), OSError, and what computing again raises.
    """
    place = await asyncio.to_thread(place_of, directory, check_digest(interval))
    if place is None:
        raise NotFound("no evidence of that interval is kept here", code="no_evidence")
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"gather-{replica}")
    try:
        async with asyncio.timeout(GATHER_S):
            return await _Gathering(*place, destination, means, thread).run()
    except TimeoutError:
        raise Unavailable(f"the evidence was not gathered within {GATHER_S:.0f} s", code="evidence_late") from None
    finally:
        thread.shutdown(wait=False, cancel_futures=True)


class Gatherings:
    """Makes bundles, one of each interval at a time: who wishes for one again awaits the one under way no more, so that ends."""

    def __init__(self) -> None:
        self._under_way: dict[str, asyncio.Task[Written]] = {}

    async def gather(self, directory: Path, replica: str, interval: str, destination: Path, means: Means) -> Written:
        """As `gather`. Cancelled by a newer wish."""
        if (older := self._under_way.get(interval)) is not None:
            older.cancel()
        task = self._under_way[interval] = asyncio.create_task(gather(directory, replica, interval, destination, means))
        try:
            return await task
        finally:
            if self._under_way.get(interval) is task:
                del self._under_way[interval]


class _Gathering:
    """``num_statements``: of the folder, with the last of which the interval ends; None: with all of it."""

    def __init__(
        self, folder: Path, num_statements: int | None, destination: Path, means: Means, thread: ThreadPoolExecutor
    ) -> None:
        self._folder, self._num_statements, self._destination, self._means, self._thread = (
            folder, num_statements, destination, means, thread,
        )  # fmt: skip
        self._parts: Bundle | None = None

    async def run(self) -> Written:
        try:
            return await self._gather()
        finally:
            if self._parts is not None:
                self._parts.close()

    async def _gather(self) -> Written:
        loop = asyncio.get_running_loop()
        logs = await loop.run_in_executor(self._thread, self._logs)
        steps = [step for log in logs for step in log.steps]
        with BundleWriter(self._destination) as writer:
            await loop.run_in_executor(self._thread, self._copy, writer, logs)
            between = {entry: step.state_digest for entry, step in enumerate(steps[:-1], start=1) if step.state_digest}
            lacking = await loop.run_in_executor(self._thread, self._add_kept, writer, between)
            if lacking:
                named = {
                    entry: self._folder / name for (entry, _), name in self._states_by_place(logs) if name.startswith("anchor-")
                }
                await self._states(writer, steps[: max(lacking)], lacking, named)
            return await loop.run_in_executor(self._thread, writer.close)

    def _logs(self) -> list[model_pb2.StepLog]:
        lost = self._folder / "lost"
        if lost.exists():
            raise Unavailable(f"the evidence is not whole: {lost.read_text()}", code="evidence_lost")
        if not (self._folder / "begin").exists():
            raise Unavailable("the state with which it begins is not written yet", code="evidence_late")
        return [
            parse(model_pb2.StepLog, path.read_bytes(), MAX_LOG_BYTES) for path in self._numbered("steps", self._num_statements)
        ]

    def _copy(self, writer: BundleWriter, logs: Sequence[model_pb2.StepLog]) -> None:
        """All that is kept."""
        for kind, name, most in (
            (model_pb2.EVIDENCE_KIND_STATEMENT, "statement", self._num_statements),
            (model_pb2.EVIDENCE_KIND_STEPS, "steps", self._num_statements),
            (model_pb2.EVIDENCE_KIND_DISPLACEMENT, "delta", self._num_merges()),
        ):
            for number, path in enumerate(self._numbered(name, most)):
                writer.add_file(model_pb2.EvidencePart(kind=kind, entry=number), path)
        for (entry, port), name in self._states_by_place(logs):
            if (self._folder / name).exists():
                writer.add_file(
                    model_pb2.EvidencePart(kind=model_pb2.EVIDENCE_KIND_STATE, entry=entry, port=port), self._folder / name
                )
        if self._num_statements is None and (measured := self._folder / "measured").exists():
            writer.add_file(model_pb2.EvidencePart(kind=model_pb2.EVIDENCE_KIND_MEASURED), measured)
        if not (self._folder / "parts").stat().st_size:
            return
        num_entries = sum(len(log.steps) for log in logs)
        with self._read_parts() as parts:
            for kind in (model_pb2.EVIDENCE_KIND_INPUT, model_pb2.EVIDENCE_KIND_OUTPUT):
                for part in parts.parts(kind):
                    if part.entry < num_entries:
                        writer.add(part, _data(parts, part))

    def _read_parts(self) -> Bundle:
        """Where the interval is not all of the folder, more may be written to it, or its end was cut off with its worker."""
        return read_bundle(self._folder / "parts", may_be_cut=self._num_statements is not None)

    def _num_merges(self) -> int | None:
        """Displacements that the statements say were taken in; None: all that are there."""
        if self._num_statements is None:
            return None
        envelopes = (
            parse_envelope(path.read_bytes(), MAX_COMMIT_BYTES) for path in self._numbered("statement", self._num_statements)
        )
        return sum(len(parse(model_pb2.Commit, one.payload, MAX_COMMIT_BYTES).merges) for one in envelopes)

    def _add_kept(self, writer: BundleWriter, between: Mapping[int, str]) -> dict[int, str]:
        """Those of these states that are kept; returns the others."""
        lacking: dict[int, str] = {}
        for entry, digest in between.items():
            path = self._folder / f"state-{entry}"
            data = path.read_bytes() if path.exists() else b""
            if digest_of(data) == digest:
                writer.add(model_pb2.EvidencePart(kind=model_pb2.EVIDENCE_KIND_STATE, entry=entry), data)
            else:
                lacking[entry] = digest
        return lacking

    def _states_by_place(self, logs: Sequence[model_pb2.StepLog]) -> Iterator[tuple[tuple[int, int], str]]:
        """Where states stand in a bundle, and in which file they are kept."""
        yield (0, 0), "begin"
        places = places_of_states([len(log.steps) for log in logs])
        for number, place in enumerate(places):
            is_end = self._num_statements is None and number == len(places) - 1
            yield place, "end" if is_end else f"anchor-{number}"

    def _numbered(self, name: str, most: int | None) -> Iterable[Path]:
        for number in count() if most is None else range(most):
            path = self._folder / f"{name}-{number}"
            if not path.exists():
                return
            yield path

    async def _states(
        self, writer: BundleWriter, steps: list[model_pb2.Step], between: Mapping[int, str], anchors: Mapping[int, Path]
    ) -> None:
        """Runs these steps again and adds the states between them, by how many entries come before."""
        loop, pace = asyncio.get_running_loop(), self._means.pace
        order = local_pb2.HostReplica.FromString((self._folder / "order").read_bytes())
        order.state_path = str(self._folder / "begin")
        prepared = await loop.run_in_executor(self._thread, self._means.prepare, order)
        reading, info = self._means.inputs(prepared), prepared.info
        for entry, step in enumerate(steps):
            if entry in anchors:
                info = await loop.run_in_executor(self._thread, prepared.compute.restore, anchors[entry])
            if not step.forward_only:
                await reading.ready(TRAIN_LANE, step.batch)
            begun = pace.begin()
            try:
                info = await loop.run_in_executor(self._thread, self._again, prepared, info, entry, step)
            finally:
                pace.end(begun)
            if entry + 1 in between:
                data = await loop.run_in_executor(self._thread, prepared.compute.snapshot, info)
                if digest_of(data) != between[entry + 1]:
                    raise Unavailable(f"the state after entry {entry} did not come out as it was stated", code="not_reproduced")
                part = model_pb2.EvidencePart(kind=model_pb2.EVIDENCE_KIND_STATE, entry=entry + 1)
                await loop.run_in_executor(self._thread, writer.add, part, data)
            await asyncio.sleep(pace.owed_s())

    def _again(self, prepared: Prepared, info: StateInfo, entry: int, step: model_pb2.Step) -> StateInfo:
        """One entry; what the state says of itself after it."""
        inputs = [self._input(prepared, entry, step, port) for port in range(len(prepared.stage.inputs))]
        if step.forward_only:
            prepared.compute.forward(step.batch, inputs, Mode.FORWARD_ONLY)
            return info
        prepared.compute.learn(step.batch, inputs, prepared.samples.read_target(TRAIN_LANE, step.batch), step.num_learned)
        return replace(info, lineage=info.lineage.add(step.batch))

    def _input(self, prepared: Prepared, entry: int, step: model_pb2.Step, port: int) -> Array:
        if port in prepared.config.input_edges:
            return prepared.samples.read_input(TRAIN_LANE, step.batch)
        if self._parts is None:
            self._parts = self._read_parts()
        part = self._parts.part(model_pb2.EVIDENCE_KIND_INPUT, entry=entry, batch=step.batch, port=port)
        spec = prepared.stage.inputs[port].spec
        payload = np.frombuffer(_data(self._parts, part), np.uint8).copy()
        codec = part.frame.codec if part.HasField("frame") else "raw"
        num_values = int(np.prod(part.frame.shape)) if part.HasField("frame") else payload.size // np.dtype(spec.dtype).itemsize
        return decode_values(codec, spec.dtype, payload, num_values).reshape(-1, *spec.shape)


def _data(parts: Bundle, part: model_pb2.EvidencePart) -> memoryview:
    kind, entry, batch, port = key_of(part)
    return parts.data(model_pb2.EvidenceKind.ValueType(kind), entry=entry, batch=batch, port=port)
