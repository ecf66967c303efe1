"""Environments of OpenEnv. A running server gives each connection its own environment.

This module implements the protocol itself, because OpenEnv's client imports OpenEnv's server, whose packages need
mcp<2, while verl-mas needs mcp>=2.3.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from importlib import import_module

import httpx

from verl_mas.config.registry import Extra, nearest
from verl_mas.config.values import Count, Positive, Text, load_dataclass
from verl_mas.environment.worlds.world import Observation, Setup, View, World, register_world
from verl_mas.errors import ConfigError
from verl_mas.verl_.types import Untyped

PLAYER, JSON, OPTIONS = "player", "json", "mas.workflow.args.options"
websockets = Extra("websockets", "openenv")
LARGEST = 100 * 2**20  # bytes of a message, as in OpenEnv's client


class Refused(Exception):
    def __init__(self, code: str, message: str):
        super().__init__(f"{message} ({code})")
        self.code, self.message = code, message


@dataclass(frozen=True)
class Options:
    base_url: Text  # http(s)://, without the path
    action: Text  # the field of an action that gets the reply; json: the reply is the action, as a JSON object
    observation: Sequence[str] = ()  # the fields that a player sees; (): all except the metadata
    prompt: str = ""  # text before every observation, such as the rules, which most servers do not send
    illegal_reward: float = 0.0  # reward of an action that the server refuses; OpenEnv has no rule for it
    # Maximum number of steps in an episode. Without this limit, an episode would never end if the environment never
    # ends it, or if the server refuses every action.
    steps: Count = 32
    reset: Mapping[str, object] = field(default_factory=dict)  # arguments of `reset` besides the seed
    wait_s: Positive = 30.0  # timeout for waiting until the server has a free environment

    @classmethod
    def of(cls, setup: Setup) -> Options:
        return load_dataclass(cls, dict(setup.options), OPTIONS)

    def page(self, name: str) -> Untyped:
        try:
            return httpx.get(f"{self.base_url.rstrip('/')}/{name}", timeout=10).raise_for_status().json()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            value, rule = f"{OPTIONS}.base_url={self.base_url}: {error}", "a server of OpenEnv answers there"
            raise ConfigError(value, rule=rule, fix="start it, or correct the address") from error

    def connected(self) -> Untyped:
        address = f"ws{self.base_url.removeprefix('http').rstrip('/')}/ws"
        return import_module("websockets.sync.client").connect(address, max_size=LARGEST, compression=None)


@register_world("openenv")
class OpenEnv(World):
    @classmethod
    def players(cls, setup: Setup) -> Sequence[str]:
        return (PLAYER,)

    @classmethod
    def fixed(cls, setup: Setup) -> str | None:
        return "a server of OpenEnv does not copy an environment"

    @classmethod
    def check(cls, setup: Setup) -> None:
        websockets.require()
        options = Options.of(setup)
        name, schema = str(options.page("metadata").get("name")), options.page("schema")
        if name != setup.name:
            value, rule = f"mas.workflow.args.world=openenv/{setup.name}", "it names the environment of the server"
            raise ConfigError(value, rule=rule, fix=nearest(setup.name, [name]))
        for kind, names in ("action", {options.action} - {JSON}), ("observation", set(options.observation)):
            known = list(schema[kind].get("properties") or names)  # a union of classes has no fields of its own
            for unknown in sorted(names - set(known)):
                value, rule = f"{OPTIONS}.{kind}={unknown}", f"it is a field of the {kind} of {name}"
                raise ConfigError(value, rule=rule, fix=nearest(unknown, known))

    def start(self) -> View:
        self.options, self.resources = Options.of(self.setup), ExitStack()
        self.earned, self.steps, self.illegal = 0.0, 0, 0
        deadline = time.monotonic() + self.options.wait_s
        while True:
            self.connection = self.resources.enter_context(self.options.connected())
            try:
                return self._took(self._ask("reset", {**self.options.reset, "seed": self.setup.seed}))
            except Refused as refused:
                self.close()
                if refused.code != "CAPACITY_REACHED" or time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def step(self, actions: Mapping[str, str | None]) -> View:
        self.steps += 1
        action = self._action(actions[PLAYER])
        if action is None:
            return self._refuse("it is not in the form of an action")
        try:
            return self._took(self._ask("step", action))
        except Refused as refused:
            if refused.code != "VALIDATION_ERROR":
                raise
            return self._refuse(refused.message)

    def close(self) -> None:
        self.resources.close()

    def _action(self, text: str | None) -> Mapping[str, object] | None:
        if text is None or self.options.action != JSON:
            return None if text is None else {self.options.action: text}
        try:
            action = json.loads(text)
        except (ValueError, RecursionError):
            return None
        return action if isinstance(action, dict) else None

    def _ask(self, kind: str, data: Mapping[str, object]) -> Untyped:
        # A full server sends an error and closes the connection before it gets a request. Sending then fails, but the
        # error can still be received.
        with suppress(websockets.ConnectionClosed):
            self.connection.send(json.dumps({"type": kind, "data": data}))
        answer = json.loads(self.connection.recv())
        content = answer["data"]
        if answer["type"] == "error":
            fields = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in content.get("errors", ())]
            raise Refused(content["code"], "; ".join(fields) or content["message"])
        return content

    def _took(self, result: Untyped) -> View:
        self.earned += float(result["reward"] or 0)
        self.done, self.seen = result["done"], self._text(result["observation"])
        return self._view()

    def _refuse(self, why: str) -> View:
        self.illegal += 1
        self.earned += self.options.illegal_reward
        return self._view("" if self.setup.compact else f"The last action was refused: {why}")

    def _text(self, fields: Mapping[str, object]) -> str:
        wanted = self.options.observation or fields.keys() - {"metadata"}
        seen = {name: value for name, value in fields.items() if name in wanted and value is not None}
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in seen.items()}
        if len(texts) == 1:
            return next(iter(texts.values()))
        return "\n".join(f"{name}: {text}" for name, text in texts.items())

    def _view(self, refused: str = "") -> View:
        over = self.done or self.steps == self.options.steps
        content = "\n\n".join(filter(None, (self.options.prompt, self.seen, refused)))
        seen = {} if over else {PLAYER: Observation(content, news=refused or self.seen)}
        return View(seen, {PLAYER: self.earned}, {PLAYER: self.illegal}, {"ended": float(self.done)}, board=self.seen)
