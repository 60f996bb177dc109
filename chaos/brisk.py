"""An orchestrator that looks for states to delete every second and takes any upload older than a second for one: what else would take an hour to see."""

from __future__ import annotations

import orchestrator.decider
from dcnr.cli.orchestrator import main

BRISK_S = 1

if __name__ == "__main__":
    for name in ("SWEEP_S", "GRANT_LIFETIME_S"):
        setattr(orchestrator.decider, name, BRISK_S)
    main()
