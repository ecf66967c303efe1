"""Runs that a newcomer can watch: `run(overrides, console)` of a demo trains a recipe and says what it learned."""
