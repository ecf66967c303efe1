"""Metrics of a run: their names, their meanings, and findings in them."""
