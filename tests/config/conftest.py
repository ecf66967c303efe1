"""A configuration of verl's own, composed once, with a team on top."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from verl_mas.diagnosis import compose

BASE = [
    "+platform=cpu",
    "algorithm.adv_estimator=agent_grpo",
    "actor_rollout_ref.model.path=hub/tiny",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "actor_rollout_ref.rollout.n=4",
    "data.train_batch_size=8",
]


@pytest.fixture(scope="session")
def composed():
    """Composing takes a second, so each team is composed once and then copied and changed."""
    cache = {}

    def get(team: str):
        if team not in cache:
            cache[team] = compose([f"+mas={team}", *BASE])
        return cache[team].copy()

    return get


@pytest.fixture
def make(composed):
    def make(team: str = "solver_verifier", **settings):
        """`mas__policies={...}` sets mas.policies."""
        config = composed(team)
        for key, value in settings.items():
            OmegaConf.update(config, key.replace("__", "."), value, force_add=True)
        return config

    return make


@pytest.fixture
def two(make):
    """A solver and a verifier on a policy each."""

    def two(**settings):
        team = {
            "mas__policies": {"a": {}, "b": {}},
            "mas__agents": {"solver": {"policy": "a"}, "verifier": {"policy": "b"}},
        }
        return make(**{**team, **settings})

    return two
