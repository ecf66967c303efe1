"""Metrics of a run: their names, their file, and findings in them."""
