"""Faults on purpose: crash points at durable writes, and schedules of kills, partitions and pauses on a network of real processes."""
