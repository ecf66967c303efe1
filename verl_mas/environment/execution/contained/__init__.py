"""The default executor: a fork server, and one process per program that can open nothing."""
