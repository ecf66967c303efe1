"""Tools for tests of teams: `check_workflow`, scripted replies, tiny models."""
