"""Goal: spans of one trace reach a collector with their parents; nothing is made, sent or imported unless an owner asks; strangers' words are checked."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
from collector_rig import Collector

from dcnr.errors import InvalidInput, Unavailable
from dcnr.settings import TracingSettings
from dcnr.tracing import UNTRACED, Untraced, Value, checked, current, of_job, started
from dcnr.v1 import orchestrator_pb2
from pnode.job_traces import JobTraces

TRACE, SPAN = "ab" * 16, "cd" * 8
CONTEXT = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    "told",
    [
        "", "x", CONTEXT + "-", CONTEXT[:-1], CONTEXT.upper(), "01" + CONTEXT[2:], f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01",
        CONTEXT.replace("-", "_"), CONTEXT[:-1] + "\n", CONTEXT[:-1] + "٣", "a" * 10_000_000,
    ],
)  # fmt: skip
def test_what_is_no_context_is_dropped(told: str) -> None:
    assert checked(told) == ""
    with UNTRACED.span("x", told):
        assert current() == ""


def test_without_a_collector_a_context_is_handed_on_and_nothing_else() -> None:
    assert started(TracingSettings(), "s", "i") is UNTRACED
    with UNTRACED.span("x", CONTEXT) as span:
        span.note(number=1)
        assert current() == CONTEXT
        with UNTRACED.span("y"):
            assert current() == CONTEXT
    assert current() == ""
    UNTRACED.close()


def test_nothing_is_imported_that_nobody_asked_for() -> None:
    code = "import sys, gateway.gate, orchestrator.trying, pnode.infer_desk; print([n for n in sys.modules if 'opentelemetry.sdk' in n])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_spans_reach_the_collector_with_their_parents() -> None:
    with Collector() as collector:
        tracer = started(TracingSettings(collector.url), "dcnr.test", "me")
        with tracer.span("outer", CONTEXT, model="m") as outer:
            outer.rename("renamed")
            inside = current()
            with contextlib.suppress(Unavailable), tracer.span("inner") as inner:
                inner.note(step=3)
                raise Unavailable("a text that may name people", code="busy")
        tracer.close()
        first, second = sorted(collector.wait(TRACE, lambda spans: len(spans) == 2), key=lambda span: span.name)
    assert (first.service, first.instance, first.name, first.status) == ("dcnr.test", "me", "inner", "Unavailable busy")
    assert (second.name, second.parent, second.facts, second.status) == ("renamed", SPAN, {"model": "m"}, "")
    assert (first.parent, first.facts) == (second.span, {"step": 3})
    assert inside == f"00-{TRACE}-{second.span}-01"


def test_a_job_is_a_trace_that_everybody_knows_by_its_id() -> None:
    context = of_job("mnist-1f0a")
    assert checked(context) == context == of_job("mnist-1f0a")
    assert context.split("-")[1] != of_job("mnist-1f0b").split("-")[1]
    UNTRACED.past("nothing", context, 1.0)
    with Collector() as collector:
        tracer = started(TracingSettings(collector.url), "dcnr-test", "me")
        tracer.past("plan", context, 2.5, number=4)
        tracer.close()
        [told] = collector.wait(context.split("-")[1], lambda spans: len(spans) == 1)
    assert (told.name, told.parent, told.facts) == ("plan", context.split("-")[2], {"number": 4})
    assert told.seconds == pytest.approx(2.5)


def test_a_worker_tells_once_when_a_replica_was_restored_and_took_its_first_step() -> None:
    told: list[tuple[str, str, float, str]] = []

    class Told(Untraced):
        def past(self, name: str, parent: str, seconds: float, **facts: Value) -> None:
            told.append((name, parent, seconds, str(facts["replica"])))

    class Hand:
        now_s = 100.0

        def monotonic(self) -> float:
            return self.now_s

        def wall(self) -> float:
            return self.now_s

    clock = Hand()
    traces = JobTraces(Told(), clock)
    provisioning, active = orchestrator_pb2.ASSIGNMENT_STATE_PROVISIONING, orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE

    def look(state: orchestrator_pb2.AssignmentState.ValueType, step_s: float, job: str = "j") -> None:
        report = orchestrator_pb2.ReplicaReport(replica="a.1", vnode="a", state=state, num_learned=7, step_s=step_s)
        traces.look([report], {"a.1": job})

    for state, step_s in ((provisioning, 0.0), (active, 0.0), (active, 0.0), (active, 0.25), (active, 0.5)):
        look(state, step_s)
        clock.now_s += 3.0
    assert told == [("restore", of_job("j"), 3.0, "a.1"), ("first step", of_job("j"), 0.25, "a.1")]
    look(active, 0.5, job="another")
    assert [parent for _, parent, *_ in told[2:]] == [of_job("another")] * 2, "a replica that goes on in another job, seen late"
    traces.look([], {})
    look(active, 0.0)
    assert [name for name, *_ in told[4:]] == ["restore"], "one that went and came back"


def test_tasks_have_contexts_of_their_own() -> None:
    with Collector() as collector:
        tracer = started(TracingSettings(collector.url), "dcnr.test", "me")

        async def one(turns: list[asyncio.Event], number: int) -> tuple[str, str]:
            with tracer.span("task"):
                mine = current()
                turns[number].set()
                await turns[1 - number].wait()
                return mine, current()

        async def both() -> list[tuple[str, str]]:
            turns = [asyncio.Event(), asyncio.Event()]
            return await asyncio.gather(one(turns, 0), one(turns, 1))

        found = asyncio.run(both())
        tracer.close()
    assert all(before == after for before, after in found)
    assert found[0] != found[1]


def test_what_was_not_chosen_elsewhere_and_what_is_not_chosen_here_is_not_sent() -> None:
    unchosen = CONTEXT[:-1] + "0"
    sentinel = secrets.token_hex(16)
    with Collector() as collector:
        tracer, never = (started(TracingSettings(collector.url, share), "dcnr.test", "me") for share in (1.0, 0.0))
        with tracer.span("x", unchosen):
            assert current().endswith("-00")
        with never.span("y"):
            begun = current()
        with tracer.span("last", f"00-{sentinel}-{SPAN}-01"):
            pass
        never.close()
        tracer.close()
        collector.wait(sentinel, lambda spans: len(spans) == 1)
        assert collector.of(TRACE) == []
        assert collector.of(begun.split("-")[1]) == []


SILENT = """
import socket, time
from dcnr.settings import TracingSettings
from dcnr.tracing import started
with socket.socket() as silent:
    silent.bind(("127.0.0.1", 0))
    silent.listen(8)
    tracer = started(TracingSettings(f"http://127.0.0.1:{silent.getsockname()[1]}"), "dcnr-test", "me")
    for _ in range(5000):
        with tracer.span("x"):
            pass
    began_s = time.monotonic()
    tracer.close()
    print(time.monotonic() - began_s)
"""


def test_a_collector_that_does_not_answer_keeps_nobody() -> None:
    """Goal: more spans than wait at once, and an end within seconds; in a process of its own, whose last thread would disturb others here."""
    done = subprocess.run([sys.executable, "-c", SILENT], capture_output=True, text=True, timeout=90, check=True)
    assert float(done.stdout) < 15.0


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4318", "ftp://x", "http://", "nonsense"])
def test_an_endpoint_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(endpoint)):
        started(TracingSettings(endpoint), "s", "i")


def test_without_the_library_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry" / "__init__.py").write_text("raise ImportError('not installed')")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from dcnr.tracing import started\nfrom dcnr.settings import TracingSettings\nfrom dcnr.errors import InvalidInput\n"
        "try:\n    started(TracingSettings('http://127.0.0.1:1'), 's', 'i')\nexcept InvalidInput as error:\n    print(error.code, error.remedy)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("no_tracing_library pip install '.[otel]'")
