"""The trainers of a team, one per mode (`config.modes`)."""
