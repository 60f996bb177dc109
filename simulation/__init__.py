"""A deterministic world in virtual time around the real cores: one seed gives one history. ``python -m simulation --seed N`` replays it."""
