"""Reads a run for the report and the viewer: its settings, metrics and sessions."""
