"""Policies that are adapters on one base: one worker group and one set of engines for all of them."""
