"""PNodes that cheat, for tests and demonstrations. Never installed."""
