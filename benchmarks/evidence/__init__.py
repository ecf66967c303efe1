"""Runs over seeds that show what teams learn, what the choice of advantage changes, and what each role has learned."""
