"""Worlds of other libraries as tasks of a team. A view of an episode has the observations of the players that act now,
and the rewards of all players so far.

A hub (TextArena, OpenSpiel, PettingZoo, ...) is a file in `hubs/`; the workflow `world` plays the worlds of all hubs.
"""

from verl_mas.environment.worlds.world import Observation, Setup, View, World, register_world

__all__ = ["Observation", "Setup", "View", "World", "register_world"]
