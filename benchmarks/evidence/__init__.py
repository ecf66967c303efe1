"""Runs over seeds: what teams learn, how the choice of advantage changes it, and what each role has learned."""
