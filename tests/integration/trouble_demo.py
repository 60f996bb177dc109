"""The demo with a tiny example: ``python trouble_demo.py EXAMPLE DIRECTORY [--no-kills]``; it ends as the real one does."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dcnr.demo.examples import Example
from dcnr.demo.run import Options, run_demo
from dcnr.testing import LocalPNode

PNODES = (LocalPNode("p1", 1.0, 512), LocalPNode("p2", 1.0, 512))

if __name__ == "__main__":
    folder, directory = Path(sys.argv[1]), Path(sys.argv[2])
    chosen = Example("tiny", "tiny", folder, "CC0", "a teacher", 60.0, as_bytes=True)
    options = Options(directory=directory, reference=False, kills="--no-kills" not in sys.argv)
    sys.exit(run_demo(options, environment=dict(os.environ), chosen=chosen, pnodes=PNODES, num_orchestrators=2))
