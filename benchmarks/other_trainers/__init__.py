"""The same training of SmolLM2 with verl-mas and with the trainers that a user might choose instead."""
