"""Where VNodes of this machine compute."""

from __future__ import annotations

import torch


def found_device(wanted: str) -> str:
    """``wanted`` as torch names it; ``auto`` is the first of cuda and mps that works here, else cpu."""
    if wanted != "auto":
        return wanted
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def name_of_device(device: str) -> str:
    """What its maker calls an accelerator; empty for anything else."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") and torch.cuda.is_available() else ""
