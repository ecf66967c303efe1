"""Clients of language models that other servers serve."""
