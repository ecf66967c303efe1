"""Environments of OpenEnv behind one server, and OpenEnv's own client, which plays them. Both run in the Python
environment of OpenEnv, whose packages conflict with those of the tests. `python openenv_server.py PORT ENVIRONMENTS`
starts the server. `python openenv_server.py URL` reads seeds and actions as JSON from stdin, and plays episodes with
them."""

import json
import os
import random
import sys
import time

import uvicorn
from fastapi import FastAPI
from fastmcp import FastMCP
from openenv.core import GenericEnvClient
from openenv.core.env_server import Action, Environment, MCPEnvironment, Observation, State, create_fastapi_app
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from pydantic import Field


class Guess(Action):
    number: int = Field(ge=0, le=9)


class Hint(Observation):
    hint: str
    left: int
    between: str


class Guessing(Environment):
    """A player guesses a digit, with five guesses by default. A wrong guess costs 0.1."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    open = 0

    def __init__(self):
        super().__init__()
        Guessing.open += 1

    def reset(self, seed=None, episode_id=None, guesses=5, **_):
        self.secret, self.left = random.Random(seed).randrange(10), guesses
        self.low, self.high = 0, 9
        return self.seen("guess", done=False, reward=0.0)

    def step(self, action, timeout_s=None, **_):
        self.left -= 1
        right = action.number == self.secret
        if action.number < self.secret:
            self.low = max(self.low, action.number + 1)
        elif not right:
            self.high = min(self.high, action.number - 1)
        hint = "right" if right else ("higher" if action.number < self.secret else "lower")
        return self.seen(hint, done=right or not self.left, reward=1.0 if right else -0.1)

    def seen(self, hint, **fields):
        return Hint(hint=hint, left=self.left, between=f"{self.low} {self.high}", **fields)

    @property
    def state(self):
        return State(step_count=5 - self.left)

    def close(self):
        Guessing.open -= 1


class Say(Action):
    message: str


class Heard(Observation):
    text: str


class Echo(Environment):
    """An endless environment in which some messages are commands that cause errors."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **_):
        return Heard(text="ready")

    def step(self, action, timeout_s=None, **_):
        match action.message:
            case "raise":
                raise KeyError("no such room")
            case "die":
                os._exit(1)
            case "hang":
                time.sleep(5)
            case "large":
                return Heard(text="x" * 2_000_000)
            case "open":
                return Heard(text=str(Guessing.open))
        return Heard(text=action.message, reward=len(action.message) / 10)

    @property
    def state(self):
        return State()


class Tools(MCPEnvironment):
    """An environment whose actions are calls of a tool."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        tools = FastMCP("tools")

        @tools.tool
        def add(a: int, b: int) -> int:
            return a + b

        super().__init__(tools)

    def reset(self, seed=None, episode_id=None, **_):
        return Observation(done=False, reward=0.0, metadata={"status": "ready"})

    def _step_impl(self, action, timeout_s=None, **_):
        return Observation(done=True)

    @property
    def state(self):
        return State()


def serve(port, environments):
    app = FastAPI()
    for path, kind, action, observation in [
        ("guess", Guessing, Guess, Hint),
        ("echo", Echo, Say, Heard),
        ("tools", Tools, CallToolAction, CallToolObservation),
    ]:
        app.mount(f"/{path}", create_fastapi_app(kind, action, observation, max_concurrent_envs=environments))
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


def play(url, episodes):
    """Play episodes with OpenEnv's own client. Print the summed reward and the number of refused actions of each."""
    results = []
    with GenericEnvClient(base_url=url).sync() as client:
        for seed, actions in episodes:
            result, left = client.reset(seed=seed), iter(actions)
            earned, refused = result.reward, 0
            while not result.done:
                try:
                    result = client.step({"number": next(left)})
                except RuntimeError as error:
                    if "VALIDATION_ERROR" not in str(error):
                        raise
                    refused += 1
                else:
                    earned += result.reward
            results.append([earned, refused])
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    if sys.argv[1].isdigit():
        serve(int(sys.argv[1]), int(sys.argv[2]))
    else:
        play(sys.argv[1], json.load(sys.stdin))
