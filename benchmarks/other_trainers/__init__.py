"""The same training of SmolLM2 by verl-mas and by the trainers that a user would pick instead."""
