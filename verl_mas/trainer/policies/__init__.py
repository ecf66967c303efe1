"""A policy of a run: its workers, engines and weights."""
