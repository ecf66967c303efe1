"""Sandboxes for programs that a model wrote, and tests of these programs."""
