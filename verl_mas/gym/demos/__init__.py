"""Demos for new users: `run(overrides, console)` of a demo trains a recipe and reports the results."""
