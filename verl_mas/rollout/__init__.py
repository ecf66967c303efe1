"""Workflows inside verl's agent-loop workers: acts become stored rows and session records."""
