"""Sharing of GPUs: which policies share which GPUs, and when."""
