"""gRPC between nodes: pinned TLS, sessions and typed errors, for both sides. Importing the package itself imports nothing."""
