"""Measurements of the real parts against the targets of the project: raw rounds, medians, ratios to a peer or a limit of the same run, as JSON."""
