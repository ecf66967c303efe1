"""Adapters on one base, which share one worker group and one set of engines."""
