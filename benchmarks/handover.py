"""Hand-over of tensors between two workers: MB/s of our whole data plane against bare `grpc.aio` streaming with the same TLS.

Ours: spool, digest, signed header, chunks over an authenticated Link, digest and signature checked, decoded to an array. Two peers move bytes and
do nothing else: *tensors* sends each tensor as a stream of its own that is answered when it is there, *grpc* sends messages of 1 MiB over one stream without
end and without an answer. All keep their connection between rounds; rounds are interleaved. *Streamed* is as many frames at once as the protocol's own
window holds, *one by one* sends the next frame when the last one is there.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import psutil

from benchmarks.handover_ends import hand_over_locally
from benchmarks.handover_replicas import SIZES
from benchmarks.machine import ROOT
from benchmarks.profiles import Stacks, sample, summary, thread_cpu_s, thread_table
from benchmarks.result import Options, Result, Row, Target, median_of, ratio, rounded
from dcnr import limits
from pnode.supervisor import ALLOCATION

WANTED_RATIO: Final = 0.70
PEERS: Final = {"tensors": "tensor by tensor", "grpc": "in one stream without end"}
FRAMES: Final = {1 * limits.MIB: 256, 4 * limits.MIB: 64, 64 * limits.MIB: 4}
ONE_BY_ONE: Final = {1 * limits.MIB: 64, 4 * limits.MIB: 32, 64 * limits.MIB: 4}
PROFILE_S: Final = 8.0
PROFILE_SIZE: Final = 4 * limits.MIB


@dataclass(frozen=True, slots=True)
class Pair:
    """A sender and a receiver, connected."""

    sender: subprocess.Popen[str]
    receiver: subprocess.Popen[str]

    def transfer(self, size: int, frames: int, *, one_by_one: bool) -> Row:
        """MB/s (10⁶ bytes) and CPU milliseconds per MB of both ends together."""
        before = self._cpu_s()
        seconds = self.ask({"size": size, "frames": frames, "one_by_one": one_by_one})["seconds"]
        megabytes = size * frames / 1e6
        return {"mb_s": round(megabytes / seconds, 1), "cpu_ms_per_mb": round(1e3 * (self._cpu_s() - before) / megabytes, 3)}

    def ask(self, message: Row) -> Any:
        """One question to the receiver."""
        assert self.receiver.stdin is not None
        self.receiver.stdin.write(json.dumps(message) + "\n")
        self.receiver.stdin.flush()
        return read_line(self.receiver)

    def _cpu_s(self) -> float:
        times = [psutil.Process(process.pid).cpu_times() for process in (self.sender, self.receiver)]
        return sum(item.user + item.system for item in times)


def run(options: Options) -> Result:
    """All sizes, both kinds, interleaved."""
    sizes = SIZES[:2] if options.quick else SIZES
    share = 16 if options.quick else 1
    result = Result(
        "handover",
        "Hand-over of tensors between two workers, codec raw, TLS",
        {
            "sizes_mib": [size // limits.MIB for size in sizes], "frames": {size // limits.MIB: max(1, FRAMES[size] // share) for size in sizes},
            "frames_one_by_one": {size // limits.MIB: max(1, ONE_BY_ONE[size] // share) for size in sizes},
            "chunk_bytes": limits.MAX_CHUNK_BYTES, "window_bytes": limits.WINDOW_BYTES, "rounds": options.rounds,
        },
    )  # fmt: skip
    with pair("ours") as ours, pair("grpc") as bare, pair("tensors") as tensors:
        for implementation in (ours, bare, tensors):
            for size in sizes:
                implementation.transfer(size, max(1, FRAMES[size] // share), one_by_one=False)  # warm-up
        for number in range(options.rounds):
            for size in sizes:
                row: Row = {"round": number, "size_mib": size // limits.MIB}
                first = (("ours", ours), ("grpc", bare), ("tensors", tensors))
                for name, implementation in first if number % 2 == 0 else reversed(first):
                    streamed = implementation.transfer(size, max(1, FRAMES[size] // share), one_by_one=False)
                    single = implementation.transfer(size, max(1, ONE_BY_ONE[size] // share), one_by_one=True)
                    row |= {f"{name}_{key}": value for key, value in streamed.items()}
                    row |= {f"{name}_one_by_one_{key}": value for key, value in single.items()}
                local = asyncio.run(hand_over_locally(size, max(1, FRAMES[size] // (2 * share))))
                frames = max(1, FRAMES[size] // (2 * share))
                row |= {"local_mb_s": round(size * frames / 1e6 / local["seconds"], 1), "local_hop_us": round(local["hop_us"], 1)}
                result.rounds.append(row)
        if options.profile:
            result.profile = profile_of(ours, bare)
    conclude(result)
    return result


def conclude(result: Result) -> None:
    """Medians, ratios and targets from the rounds alone."""
    keys = [key for key in result.rounds[0] if key not in ("round", "size_mib")]
    for mib in result.settings["sizes_mib"]:
        rows = [row for row in result.rounds if row["size_mib"] == mib]
        medians = {key: rounded(median_of(rows, key)) for key in keys}
        ratios = {
            f"{how}_{peer}": ratio(medians[f"ours_{before}mb_s"], medians[f"{peer}_{before}mb_s"])
            for how, before in (("streamed", ""), ("one_by_one", "one_by_one_"))
            for peer in PEERS
        }
        result.medians[f"{mib}_mib"] = medians
        result.ratios[f"{mib}_mib"] = {name: rounded(value) for name, value in ratios.items()}
        for peer, what in PEERS.items():
            result.targets.append(
                Target(
                    f"{mib} MiB streamed, ours / grpc.aio {what}", ratios[f"streamed_{peer}"], WANTED_RATIO, "ratio", at_least=True
                )
            )
    result.notes.append(
        "Peers only move bytes; ours also spools, digests, signs, verifies and decodes, on the same cores. Both ends share the machine."
    )


@contextmanager
def pair(kind: str) -> Iterator[Pair]:
    """Both processes of one implementation, ended at the end."""
    with ExitStack() as stack:
        sender = stack.enter_context(_process("serve", kind))
        there = read_line(sender)
        receiver = stack.enter_context(_process("receive", kind, json.dumps(there)))
        read_line(receiver)
        yield Pair(sender, receiver)


def profile_of(ours: Pair, bare: Pair) -> str:
    """Samples both ends while frames stream: where the time goes."""
    mib = PROFILE_SIZE // limits.MIB
    parts = [f"Where the time goes while frames of {mib} MiB stream, codec raw (both ends, bare grpc.aio first)."]
    for title, implementation in (("grpc.aio", bare), ("ours", ours)):
        pids = {"sender": implementation.sender.pid, "receiver": implementation.receiver.pid}
        before = {name: thread_cpu_s(pid) for name, pid in pids.items()}
        implementation.transfer(PROFILE_SIZE, 2 * FRAMES[PROFILE_SIZE], one_by_one=False)
        for name, pid in pids.items():
            megabytes = 2 * FRAMES[PROFILE_SIZE] * PROFILE_SIZE / 1e6
            parts.append(f"== {title}, {name}\n" + thread_table(before[name], thread_cpu_s(pid), megabytes, "MB"))
    for name, process in (("sender", ours.sender), ("receiver", ours.receiver)):
        parts.append(f"== ours, {name}\n" + summary(_sample_while_streaming(ours, process.pid)))
    return "\n\n".join(parts)


def _sample_while_streaming(ours: Pair, pid: int) -> Stacks:
    stop = threading.Event()

    def stream() -> None:
        while not stop.is_set():
            ours.transfer(PROFILE_SIZE, FRAMES[PROFILE_SIZE], one_by_one=False)

    streaming = threading.Thread(target=stream)
    streaming.start()
    try:
        return sample(pid, PROFILE_S)
    finally:
        stop.set()
        streaming.join()


def read_line(process: subprocess.Popen[str]) -> Any:
    """One JSON line that it prints. Raises RuntimeError when it has ended instead."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a process of the benchmark ended with {process.wait(10)}")
    return json.loads(line)


@contextmanager
def _process(role: str, kind: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.handover_ends", role, kind, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=ROOT, env={**os.environ, **(ALLOCATION if kind == "ours" else {})},
    )  # fmt: skip
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        if process.stdout is not None:
            process.stdout.close()
