"""What a maintainer types, run in this process, and the small model that it is typed about."""

from __future__ import annotations

import contextlib
import io

from collector_rig import Collector
from schemas_rig import check_output
from trouble_rig import SAMPLES, graph_text

from dcnr.cli import dcnr as maintainer
from dcnr.cli import errors, orchestrator, pnode
from dcnr.testing import LocalNetwork

RELU = """
[[vnode]]
id = "r"
component = "relu"
inputs = ["a"]
"""
PASSES = 4
GRAPH = graph_text(passes=PASSES).replace('inputs = ["a"]', 'inputs = ["r"]') + RELU
APPS = {"dcnr": maintainer.app, "orchestrator": orchestrator.app, "pnode": pnode.app}
NUM_BATCHES = PASSES * (SAMPLES // 16)


class Shell:
    """Runs commands as a maintainer of the network does, in this process: starting them anew is `benchmarks/startup.py`'s business."""

    def __init__(self, network: LocalNetwork, collector: Collector) -> None:
        self.network, self.collector = network, collector

    def run(self, line: str, *more: str, code: int = 0) -> str:
        """Standard output of a command that must end with ``code``."""
        name, *arguments = line.split()
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            ended = errors.exit_code(APPS[name], name, [*arguments, *more])
        assert ended == code, f"{line}: {ended}\n{out.getvalue()}\n{err.getvalue()}\n{self.network.trouble()}"
        if ended == 0:
            check_output(" ".join([line, *more]), out.getvalue())
        return out.getvalue()
