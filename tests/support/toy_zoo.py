"""Environments of PettingZoo that tests name as `pettingzoo/toy_zoo:<class>`."""

import random
import threading
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Text
from gymnasium.utils import EzPickle
from pettingzoo import AECEnv, ParallelEnv

DRAWN = 10
LINE = Text(20, charset="abcdefghijklmnopqrstuvwxyz0123456789 ")
COUNT = Box(0, 9, (1,), np.int64)
LOOK = Dict({"text": LINE})


class Signals(ParallelEnv[str, dict[str, str], int]):
    """`scout` sees a colour and sends a signal, then `runner` sees the signal and names the colour: both earn 1 if it
    is right. A `deaf` runner sees no signal."""

    metadata = {"name": "signals"}  # noqa: RUF012  (as PettingZoo has it)

    def __init__(self, colours: int = 3, deaf: bool = False):
        self.possible_agents, self.render_mode = ["scout", "runner"], None
        self.colours, self.deaf = Discrete(colours), deaf

    def action_space(self, agent: str) -> Space[Any]:
        return self.colours

    def observation_space(self, agent: str) -> Space[Any]:
        return LOOK

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.colour = np.random.default_rng(seed).integers(self.colours.n)
        self.agents = ["scout"]
        return {"scout": {"text": f"colour {self.colour}"}}, {"scout": {}}

    def step(self, actions: dict[str, int]) -> Any:
        (agent,) = self.agents
        right = agent == "runner" and actions["runner"] == self.colour
        self.agents = ["runner"] if agent == "scout" else []
        signal = "signal" if self.deaf else f"signal {actions[agent]}"
        earned = dict.fromkeys(self.possible_agents, float(right))
        over = {each: each not in self.agents for each in {agent, *self.agents}}
        observations = {each: {"text": signal} for each in over}
        return observations, earned, over, dict.fromkeys(over, False), {each: {} for each in over}


class Changing(AECEnv[Any, Any, int], EzPickle):
    """The acting agent earns its action plus a random number. Agent 3 dies after its first turn, and `late` joins after
    two turns."""

    metadata = {"name": "changing"}  # noqa: RUF012
    turns: tuple[Any, ...] = ("a b", 3, "a b", "late", "late", "a b")

    def __init__(self, draws: str = "own"):
        EzPickle.__init__(self, draws)
        self.possible_agents = ["a b", 3, "late"]
        self.draws, self.lock = draws, threading.Lock() if draws == "locked" else None
        self.actions = Discrete(5, start=1)

    def action_space(self, agent: Any) -> Space[Any]:
        return self.actions

    def observation_space(self, agent: Any) -> Space[Any]:
        return COUNT

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.np_random, self.turn, self.agents = np.random.default_rng(seed), 0, ["a b", 3]
        self.rewards, self._cumulative_rewards = dict.fromkeys(self.agents, 0.0), dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos: dict[Any, Any] = {agent: {} for agent in self.agents}
        self.agent_selection = self.turns[0]

    def observe(self, agent: Any) -> Any:
        return np.array([self.turn])

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0
        self._clear_rewards()
        drawn = random.randrange(DRAWN) if self.draws == "global" else self.np_random.integers(DRAWN)
        self.rewards[agent] = action + int(drawn)
        self.turn += 1
        self.terminations[agent] = agent == 3
        if self.turn == 2:
            self.agents.append("late")
            for values, value in zip(self._by_agent(), (0.0, 0.0, False, False, {}), strict=True):
                values["late"] = value
        if self.turn == len(self.turns):
            self.truncations = dict.fromkeys(self.agents, True)
        else:
            self.agent_selection = self.turns[self.turn]
        self._accumulate_rewards()
        self._deads_step_first()

    def _by_agent(self) -> tuple[dict[Any, Any], ...]:
        return self.rewards, self._cumulative_rewards, self.terminations, self.truncations, self.infos


class Once(ParallelEnv[str, Any, Any]):
    """One agent, one step, and an observation and an action space of any kind."""

    metadata = {"name": "once"}  # noqa: RUF012

    def __init__(self, space: str = "two", observes: str = "text", agents: int = 1):
        self.possible_agents = ["alone", "alone?"][:agents]
        self.space, self.observes = space, observes

    def action_space(self, agent: str) -> Space[Any]:
        return {"two": Discrete(2), "many": MultiDiscrete([2, 2]), "words": Text(8, min_length=2, charset="abc")}[
            self.space
        ]

    def observation_space(self, agent: str) -> Space[Any]:
        return LINE

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = list(self.possible_agents)
        return {agent: OBSERVATIONS[self.observes] for agent in self.agents}, {}

    def step(self, actions: dict[str, Any]) -> Any:
        self.agents = []
        earned = {"ghost": 1.0} if self.observes == "named" else {agent: 2.5 for agent in actions}
        return {}, earned, {}, {}, {}


OBSERVATIONS: dict[str, object] = {
    "text": "look",
    "named": {"text": "read", "action_mask": [0, 1]},
    "grid": {"observation": np.array([[1, 0], [0, 2]])},
    "planes": np.array([[[1, 0], [0, 0]], [[0, 1], [0, 0]]], dtype=np.int8),
    "parts": {"place": np.array([0.5, 2.0]), "time": 3},
    "picture": np.full((4, 6, 3), 7, dtype=np.uint8),
    "huge": np.zeros((50, 50)),
    "objects": [object()],
}


def described(observation: object, agent: str) -> str:
    return f"{agent} sees {type(observation).__name__}"


def nothing() -> object:
    return object()
