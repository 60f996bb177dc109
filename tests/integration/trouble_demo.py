"""The demo with a tiny example: ``python trouble_demo.py EXAMPLE DIRECTORY [--no-kills] [--keep] [--nurseries=…] [STORE_URL KEYS]``; it ends as the real one
does. With what `nursery.lent` says its processes are forked, for tests that look at it once they all run.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import nursery

import dcnr.demo.run
from dcnr.demo.examples import Example
from dcnr.demo.run import Options, run_demo
from dcnr.testing import LocalNetwork, LocalPNode

PNODES = (LocalPNode("p1", 1.0, 512), LocalPNode("p2", 1.0, 512))

if __name__ == "__main__":
    folder, directory, *more = sys.argv[1:]
    url, keys, *_ = [*(word for word in more if not word.startswith("--")), "", ""]
    chosen = Example("tiny", "tiny", Path(folder), "CC0", "a teacher", 60.0, as_bytes=True)
    options = Options(
        directory=Path(directory),
        reference=False,
        kills="--no-kills" not in more,
        keep="--keep" in more,
        store_url=url,
        store_file=Path(keys) if keys else None,
    )
    pnodes = PNODES
    if any(word.startswith(nursery.LEND) for word in more):
        pnodes = nursery.nursed(PNODES)
        dcnr.demo.run.LocalNetwork = functools.partial(LocalNetwork, starting=nursery.forked)  # type: ignore[misc,assignment]
    sys.exit(run_demo(options, environment=dict(os.environ), chosen=chosen, pnodes=pnodes, num_orchestrators=2))
