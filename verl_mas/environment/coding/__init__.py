"""Prompts, tests and rewards that teams of coders and testers share."""
