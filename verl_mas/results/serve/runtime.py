"""Loads an exported team to run sessions: its workflow, and clients for its policies that work as in training."""

import itertools
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

from omegaconf import OmegaConf

from verl_mas.config.compose import compose
from verl_mas.config.run import load as load_mas
from verl_mas.config.sampling import Sampling
from verl_mas.config.schema import PolicySpec, WorkflowSpec
from verl_mas.config.user_code import load_user_code
from verl_mas.config.values import load_dataclass
from verl_mas.environment.grading.grader import ASKED
from verl_mas.environment.mcp.servers import McpServers
from verl_mas.errors import ConfigError, raise_all
from verl_mas.gateway.endpoints.openai import OpenAIClient
from verl_mas.gateway.streaming import Listener, Listening, Usage
from verl_mas.results.serve.endpoints import Endpoint, EngineSettings, remotes
from verl_mas.results.serve.places import open_export, places
from verl_mas.results.serve.trust import asks
from verl_mas.workflow.agents import ResolvedAgent
from verl_mas.workflow.base import agents_of, resolve
from verl_mas.workflow.client import LLMClient
from verl_mas.workflow.run import run_session
from verl_mas.workflow.session import Scorer, SessionConfig, SessionResult
from verl_mas.workflow.task import Task
from verl_mas.workflow.team_file import TEAM_FILE
from verl_mas.workflow.tool_sources import tools_of, unknown_tools
from verl_mas.workflow.tools import ToolLike

_OWN_UID = Task([]).uid
TRAINING = "training"  # value of `sampling` that selects the sampling settings of training


@dataclass(frozen=True)
class EndedSession:
    """A session, and the token usage of all its attempts."""

    result: SessionResult
    usage: Usage


class Runtime:
    """A loaded team. All sessions must run in the event loop of the first session."""

    def __init__(
        self,
        folder: Path,
        engine: EngineSettings | None = None,
        endpoints: Mapping[str, Endpoint] | None = None,
        *,
        sampling: Mapping[str, object] | str = "",
        trust: bool = False,
    ):
        """Load the team. Agents use their validation settings. `sampling` has settings that override them for every
        agent, or is `training`, which selects the training settings."""
        self.trust = trust
        self.folder, self.file = folder, open_export(folder)
        if not trust and (asked := list(asks(self.file))):
            rule = "it may be of somebody else, and would run or send these"
            fix = "read them; if you trust them and the code of its models, add --trust-remote-code, or in Python "
            fix += "trust_remote_code=True"
            raise ConfigError(f"{folder / TEAM_FILE}: {'; '.join(asked)}", rule=rule, fix=fix)
        # Build a `mas` configuration of the team in which no policy is trained.
        self.mas = replace(
            load_mas({}),
            plugins=self.file.plugins,
            workflow=WorkflowSpec(self.file.workflow.name, self.file.workflow.path, self.file.workflow.args),
            agents=self.file.agents,
            policies={name: PolicySpec(trainable=False) for name in self.file.policies},
        )
        load_user_code(self.mas)
        resolve(self.mas.workflow).check()
        # verl's own configuration, with the team's settings.
        self.verl = compose([])
        for name, value in self.file.verl.items():
            OmegaConf.update(self.verl, name, value, force_add=True)
        agents = agents_of(self.mas)
        if lacking := [name for name, one in agents.items() if not {name, one.role} & self.file.agents.keys()]:
            rule, fix = "it has the settings of every agent of its workflow", "export the team again"
            raise ConfigError(f"{folder / TEAM_FILE} has no agent {', '.join(lacking)}", rule=rule, fix=fix)
        self.agents = _sampling_as(agents, sampling)
        self.clients = self._clients(engine or EngineSettings(), endpoints or {}, trust=trust)
        self._servers = McpServers(self.file.mcp)
        self.config = self._session_config()
        self._numbers = itertools.count()

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    def stop(self) -> None:
        """Stop the servers of tools, and free the engines with their clients."""
        self._servers.stop()
        self.clients, self.config = {}, replace(self.config, clients={})

    async def aclose(self) -> None:
        for client in self.clients.values():
            if isinstance(client, OpenAIClient):
                await client.aclose()
        self.stop()

    async def session(
        self,
        task: Task,
        *,
        listener: Listener | None = None,
        sampling: Mapping[str, object] | None = None,
        score: Scorer | None = None,
    ) -> EndedSession:
        """Run one session with the settings of validation. `sampling` overrides the settings of every agent."""
        if not self.clients:
            raise ConfigError(f"a session of {self.folder}", rule="the team is closed", fix="load it again")
        task = replace(self.numbered(task), validate=True)
        listening = Listening(listener)
        config = replace(self.config, clients=listening.clients(self.config.clients))
        if sampling:
            config = replace(config, agents=_sampling_as(self.agents, sampling))
        ASKED.set(task.ground_truth is None)
        result = await run_session(partial(resolve, self.mas.workflow), task, config, score)
        if task.ground_truth is None and result.session.outcome is not None:
            # Remove the reward, which is meaningless without a ground truth.
            result.session.outcome = replace(result.session.outcome, reward=None, info={}, verdicts={})
        return EndedSession(result, listening.usage)

    def numbered(self, task: Task) -> Task:
        """Give a task without a name a unique name, because sessions of the same name have the same seed."""
        return replace(task, uid=f"{task.uid}-{next(self._numbers)}") if task.uid == _OWN_UID else task

    def _clients(
        self, engine: EngineSettings, endpoints: Mapping[str, Endpoint], *, trust: bool
    ) -> dict[str, LLMClient]:
        policies = self.file.policies
        acting = list(dict.fromkeys(agent.spec.policy for agent in self.agents.values()))
        given = {name: policies[name].remote for name in acting}
        at = {name: remote for name, remote in given.items() if remote is not None}
        # Pass no model name for a policy with a folder. Its `model` is the base model, which an endpoint that serves
        # the adapter also lists, so the name would select the base model.
        at |= remotes(endpoints, {name: None if policies[name].folder else policies[name].model for name in acting})
        here = [name for name in acting if name not in at]
        clients: dict[str, LLMClient] = {name: OpenAIClient.of(remote) for name, remote in at.items()}
        placed = places(self.folder, self.file, here)
        if not placed and engine != EngineSettings():
            rule = "it is of the engine in this process, and all policies are at endpoints"
            raise ConfigError("--engine", rule=rule, fix="leave it out")
        if placed:
            with quiet_import():
                from verl_mas.results.serve.embedded import Embedded

            clients |= Embedded(self.verl, engine, trust).clients(placed, policies)
        return clients

    def _session_config(self) -> SessionConfig:
        with quiet_import():
            from verl_mas.rollout.tool_calls import tool_limits

        config, functions = self.file.tools.tool_config_path, self.file.tools.function_tool_path
        verls: Sequence[ToolLike] = ()
        if config or functions:
            from verl.tools.tool_registry import load_all_tools

            verls = load_all_tools(tool_config_path=config, function_tool_path=functions)
        tools = tools_of([*verls, *self._servers.start().tools])
        raise_all(unknown_tools(self.agents.values(), tools))
        limits = tool_limits(self.verl.actor_rollout_ref.rollout.multi_turn)
        file = self.file
        return SessionConfig(self.agents, self.clients, file.branch, file.reward, file.faults, tools, limits)


@contextmanager
def quiet_import() -> Iterator[None]:
    """Import verl within the context without its log messages and warnings about missing engines and accelerators. On a
    machine without a GPU, verl selects the CPU platform."""
    import torch

    before, level = os.environ.get("VERL_PLATFORM"), logging.root.manager.disable
    logging.disable(logging.INFO)
    if before is None and not torch.cuda.is_available():
        os.environ["VERL_PLATFORM"] = "cpu"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        if before is None:
            os.environ.pop("VERL_PLATFORM", None)


def _sampling_as(agents: Mapping[str, ResolvedAgent], sampling: Mapping[str, object] | str) -> dict[str, ResolvedAgent]:
    """Override the agents' sampling settings. `max_tokens` can only get smaller."""
    given = {} if isinstance(sampling, str) else checked_sampling(sampling, "sampling")
    changed = {}
    for name, agent in agents.items():
        own = agent.spec.sampling if sampling == TRAINING else agent.spec.validation_sampling
        merged = {**own, **given}
        limits = [limit for limit in (own.get("max_tokens"), given.get("max_tokens")) if limit is not None]
        if limits:
            merged["max_tokens"] = min(limits)
        changed[name] = replace(agent, spec=replace(agent.spec, validation_sampling=cast(Sampling, merged)))
    return changed


def checked_sampling(sampling: Mapping[str, object], where: str) -> Sampling:
    return load_dataclass(Sampling, sampling, where)
