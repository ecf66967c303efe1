"""Plays tasks in environments of the library verifiers, whose seats are agents of the run.

This file runs in an interpreter in which verifiers is installed; verl-mas need not be installed there. `python FILE
SETTINGS COUNT` prints the prompts of the first COUNT tasks.
"""

from __future__ import annotations

import copy
import inspect
import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import lru_cache
from itertools import islice
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeAlias

import httpx
import verifiers.v1 as vf
from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.null import NullHarness
from verifiers.v1.harnesses.utils.compaction import CONTEXT_OVERFLOW_MARKERS, bound_tool_message
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp

if TYPE_CHECKING:
    from verl_mas.gateway.runner import Gateway, ProgramTask

__all__ = ["InProcess"]
Json: TypeAlias = dict[str, Any]
IN_PROCESS = "verl_mas_in_process"
# verifiers finds a harness by the name of its module.
sys.modules.setdefault(IN_PROCESS, sys.modules[__name__])


class InProcess(NullHarness):
    """The chat loop of verifiers' `null` harness, without its process per turn, which takes a second."""

    SUPPORTS_TOOL_INTERCEPTION = False

    async def setup(self, runtime: vf.Runtime) -> None:
        """Do nothing: there is no program to install."""

    async def launch(
        self,
        ctx: ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        messages = self._messages(data)
        servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
        async with AsyncExitStack() as stack:
            # The endpoint is on this machine, so no proxy and no certificates are needed; loading certificates takes
            # longer than an act.
            own = httpx.AsyncClient(timeout=None, trust_env=False, verify=False)
            client = await stack.enter_async_context(own)
            client.headers["Authorization"] = f"Bearer {secret}"
            tools, dispatch, connected = await connect_mcp({"mcpServers": servers}, stack)
            request = {"model": ctx.model, "messages": messages, **({"tools": tools} if tools else {})}
            while True:
                answer = await client.post(f"{endpoint}/chat/completions", json=request)
                if answer.is_error:
                    return _refused(answer.text)
                messages.append(answer.json()["choices"][0]["message"])
                if not (calls := messages[-1].get("tool_calls")):
                    return vf.ProgramResult(0, "", "")
                messages += [await _result(call, dispatch, connected) for call in calls]

    def _messages(self, data: vf.TaskData) -> list[Json]:
        system, prompt = self.resolve_prompt(data)
        first = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            return [*first, {"role": "user", "content": prompt}]
        return [*first, *(message_to_wire(message) for message in prompt or ())]


def _refused(text: str) -> vf.ProgramResult:
    """Make the result of a refused request. As in `null`, a rollout whose context is full ends and is scored; after any
    other refusal, the rollout fails."""
    full = any(marker in text.casefold() for marker in CONTEXT_OVERFLOW_MARKERS)
    return vf.ProgramResult(0 if full else 1, "", text)


async def _result(call: Json, dispatch: Json, connected: Json) -> Json:
    """Make the result of a tool call. A call that cannot be made gets the error message of the `null` harness."""
    name = call["function"]["name"]
    content: object
    try:
        arguments = json.loads(call["function"]["arguments"] or "{}")
    except json.JSONDecodeError as error:
        content = f"error: invalid JSON in tool arguments ({error}); resend the call with valid JSON"
    else:
        if not isinstance(arguments, dict):
            kind = type(arguments).__name__
            content = f"error: tool arguments must be a JSON object, got {kind}; resend as an object"
        elif name in dispatch:
            content = await call_mcp(connected, dispatch, name, arguments)
        else:
            content = f"error: unknown tool {name!r}"
    message = {"role": "tool", "tool_call_id": call["id"], "name": name, "content": content}
    return dict(bound_tool_message(message))


class Tasks:
    """The tasks of a taskset, which may be endless."""

    def __init__(self, taskset: vf.Taskset):
        self._stream, self._read = iter(taskset), list[vf.Task]()

    def __getitem__(self, number: int) -> vf.Task:
        self._read += islice(self._stream, max(0, number + 1 - len(self._read)))
        if number >= len(self._read):
            raise ValueError(f"there is no task {number}: the taskset has {len(self._read)}")
        return self._read[number]


class Environment:
    """An environment with its tasks, shared by all sessions of this process."""

    def __init__(self, settings: Json):
        self.agents: Sequence[str] = settings["agents"]
        config = _config(settings)
        self._check(config)
        self.env = vf.load_environment(config.model_copy(update=dict(self._seats(config))))
        self.tasks = Tasks(self.env.taskset)

    def _check(self, config: vf.EnvConfig) -> None:
        seats = agent_config_fields(config)
        named = {name for name, seat in seats.items() if seat.model and seat.client}
        if unknown := set(self.agents) - set(seats):
            raise ValueError(f"no seats {sorted(unknown)}; the seats are {', '.join(seats)}")
        if missing := set(seats) - {*self.agents, *named}:
            raise ValueError(
                f"the seats {sorted(missing)} are no agents, and have no `model` and `client` of their own"
            )
        if config.max_concurrent_agents != 1:
            # The n-th act of an agent must be the n-th call of its seat.
            raise ValueError(f"max_concurrent_agents={config.max_concurrent_agents}; set 1, so that acts have an order")

    def _seats(self, config: vf.EnvConfig) -> Iterator[tuple[str, vf.AgentConfig]]:
        """Configure the seats. The seat of an agent requests the model that has the name of the agent. A seat without
        its own `runtime` runs on this machine; if it is a chat loop, it runs in this process."""
        bundled = vf.default_harness_id(config.taskset.id)
        for name, seat in agent_config_fields(config).items():
            own: Json = {"model": name, "client": None} if name in self.agents else {}
            if "runtime" not in seat.model_fields_set:
                own["runtime"] = vf.SubprocessConfig()
                if (seat.harness.id == "null") if seat.harness else bundled == "bash":
                    known = seat.harness.model_dump(exclude={"id"}) if seat.harness else {}
                    own["harness"] = vf.harness_config_type(IN_PROCESS).model_validate({**known, "id": IN_PROCESS})
            yield name, seat.model_copy(update=own)

    async def episode(self, number: int, client: vf.EvalClientConfig) -> vf.Episode:
        env = copy.copy(self.env)  # a copy that serves this episode only
        async with env.serving():
            played = await env.run_episode(self.tasks[number], ModelContext("", client))
        if not env.complete(played):
            errors = [*played.errors, *(error for trace in played.traces for error in trace.errors)]
            raise RuntimeError("; ".join(f"{error.type}: {error.message}" for error in errors) or "it is not complete")
        return played


def _config(settings: Json) -> vf.EnvConfig:
    if (folder := settings["folder"]) not in (None, *sys.path):
        sys.path.append(folder)
        # The processes of tools must find the folder, too.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), folder]))
    taskset = {**settings["options"], "id": settings["taskset"]}
    return vf.resolve_env_config({**settings["environment"], "taskset": taskset})


@lru_cache(maxsize=8)
def environment(settings: str) -> Environment:
    return Environment(json.loads(settings))


async def play(task: ProgramTask, gateway: Gateway) -> Json:
    named: Json = task.extra_info
    played = environment(json.dumps(named["settings"], sort_keys=True))
    with _client(gateway) as client:
        return outcome(await played.episode(named["number"], client), played.agents)


@contextmanager
def _client(gateway: Gateway) -> Iterator[vf.EvalClientConfig]:
    """Pass the key in an environment variable, as verifiers expects. The name contains API_KEY, so verifiers does not
    pass the variable on to the processes that it starts."""
    variable = f"VERL_MAS_API_KEY_{secrets.token_hex(8)}"
    os.environ[variable] = gateway.api_key
    try:
        yield vf.EvalClientConfig(base_url=gateway.base_url, api_key_var=variable)
    finally:
        del os.environ[variable]


def outcome(episode: vf.Episode, agents: Sequence[str]) -> Json:
    """Make the outcome of an episode: the reward is the mean over the rollouts on which verifiers would train.

    `acts` lists all acts in order, each with its agent, the reward of its rollout, and whether verifiers would train on
    that rollout.
    """
    ours = [trace for trace in episode.traces if trace.agent.name in agents]
    trained = [trace for trace in ours if trace.agent.trainable] or ours
    calls = [(call.time.start, trace) for trace in ours for call in trace.calls if call.node is not None]
    acts = [
        [trace.agent.name, trace.reward, trace.agent.trainable] for _, trace in sorted(calls, key=lambda each: each[0])
    ]
    info = {name: fmean(values) for name, values in _values(trained).items()}
    return {"reward": fmean(trace.reward for trace in trained), "info": {**info, "acts": acts}}


def _values(traces: Sequence[vf.Trace]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for trace in traces:
        parts = {name: part.score for name, part in trace.rewards.items() if part is not None}
        seat = {f"reward_{trace.agent.name}": trace.reward, "turns": trace.num_turns}
        for name, value in {**seat, **parts, **trace.metrics}.items():
            if value is not None:
                found.setdefault(name, []).append(float(value))
    return found


async def score(task: ProgramTask, gateway: Gateway) -> dict[str, float]:
    """Score a text with its task, as in a rollout whose only reply is the text."""
    named: Json = task.extra_info
    scorer = tasks(json.dumps(named["settings"], sort_keys=True))[named["number"]]
    if needs := [hook.__name__ for hook in (*scorer.hooks("reward"), *scorer.hooks("metric")) if _needs_runtime(hook)]:
        raise ValueError(
            f"{', '.join(needs)} of {type(scorer).__name__} need the runtime of a rollout: use +mas=verifiers"
        )
    about = vf.TraceTask(type=type(scorer).__name__, data=scorer.data)
    reply = vf.MessageNode(message=vf.AssistantMessage(content=named["text"]), sampled=True)
    trace = vf.Trace(task=about, agent=vf.AgentInfo(config=vf.AgentConfig()), nodes=[reply])
    await scorer.score(trace)
    return {"score": trace.reward, **{name: fmean(values) for name, values in _values([trace]).items()}}


def _needs_runtime(hook: Callable[..., object]) -> bool:
    """Whether a reward or metric function needs a runtime. Without a runtime, verifiers would skip the function."""
    given = inspect.signature(hook).parameters.get("runtime")
    return given is not None and given.default is inspect.Parameter.empty


@lru_cache(maxsize=8)
def tasks(settings: str) -> Tasks:
    return Tasks(vf.load_taskset(_config(json.loads(settings)).taskset))


def prompts(settings: str, count: int) -> list[str]:
    """Return the prompts of the first `count` tasks, or of all tasks if there are fewer. If `count` is 0, only check
    that the environment exists."""
    if not count:
        environment(settings)
    taskset = vf.load_taskset(_config(json.loads(settings)).taskset)
    return [task.data.prompt_text for task in islice(taskset, count)]


def _in_one_line(error: Exception) -> str:
    lines = (line.strip() for line in str(error).splitlines())
    return f"{type(error).__name__}: {'; '.join(line for line in lines if 'errors.pydantic.dev' not in line)}"


if __name__ == "__main__":
    try:
        sys.stdout.write(json.dumps(prompts(sys.argv[1], int(sys.argv[2]))))
    except Exception as error:  # noqa: BLE001  (the boundary: environments of others may raise anything)
        sys.exit(_in_one_line(error))
