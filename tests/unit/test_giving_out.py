"""Goal: a run of all tests ends, also where a test process dies in the middle of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from giving_out import FromBothEnds
from xdist.remote import Producer

FILES = {"a": 4, "b": 4, "c": 1, "d": 4, "e": 4, "f": 4}
TESTS = [f"{name}.py::test[{number}]" for name, count in FILES.items() for number in range(count)]


class Process:
    """A test process as xdist's: it begins a test when it knows of the next one, or that there is none."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.waiting: list[int] = []

    def send_runtest_some(self, indexes: list[int]) -> None:
        self.waiting += indexes

    def shutdown(self) -> None:
        self.shutting_down = True

    def next(self) -> int | None:
        return self.waiting.pop(0) if len(self.waiting) > 1 or (self.waiting and self.shutting_down) else None


def finished(scheduler: FromBothEnds, processes: list[Process], dies_in: str) -> list[str]:
    """What is run until nobody goes on. One process dies in that test, and another one takes its place."""
    done: list[str] = []
    goes_on = True
    while goes_on:
        goes_on = False
        for process in list(processes):
            if scheduler.tests_finished:
                for one in processes:
                    one.shutdown()
            if (index := process.next()) is None:
                continue
            goes_on = True
            if TESTS[index] == dies_in:
                dies_in = ""
                processes.remove(process)
                assert scheduler.remove_node(process) == TESTS[index]  # type: ignore[arg-type]
                processes.append(joined(scheduler, Process(f"gw{len(processes) + 1}")))
            else:
                done.append(TESTS[index])
                scheduler.mark_test_complete(process, index)  # type: ignore[arg-type]
    return done


def joined(scheduler: FromBothEnds, process: Process) -> Process:
    node: Any = process
    scheduler.add_node(node)
    scheduler.add_node_collection(node, TESTS)
    if scheduler.collection_is_completed:
        scheduler.schedule()
    return process


def test_a_run_ends_in_which_a_test_process_dies_in_whichever_test() -> None:
    config: Any = SimpleNamespace(getvalue=lambda name: ["3*popen"], option=SimpleNamespace(loadscopereorder=False))
    for dies_in in TESTS:
        scheduler = FromBothEnds(config, Producer("test", enabled=False))
        processes = [joined(scheduler, Process(f"gw{number}")) for number in range(3)]
        assert sorted(finished(scheduler, processes, dies_in)) == sorted(TESTS), dies_in
