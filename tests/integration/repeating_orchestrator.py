"""An orchestrator whose verifier repeats whatever an auditor passes, and not one pass in twenty: what else would take an hour to see."""

from __future__ import annotations

import trust.draw
from dcnr.cli.orchestrator import main

if __name__ == "__main__":
    trust.draw.CANARY_RATE = 1.0  # type: ignore[misc]
    main()
