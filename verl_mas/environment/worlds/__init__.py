"""Worlds of other libraries as tasks of a team: an episode says who acts, what each player sees, and what each has
earned.

A hub (TextArena, OpenSpiel, PettingZoo, ...) is a file in `hubs/`; the workflow `world` plays all of them.
"""

from verl_mas.environment.worlds.world import Observation, Setup, View, World, register_world

__all__ = ["Observation", "Setup", "View", "World", "register_world"]
