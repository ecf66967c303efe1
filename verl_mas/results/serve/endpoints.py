"""Servers of a loaded team's policies: the engine of this process, or OpenAI-compatible endpoints (of vLLM, SGLang or
any other server). Importing this module does not load torch."""

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated
from urllib.parse import urlsplit

import httpx

from verl_mas.config.registry import nearest
from verl_mas.config.schema import RemoteSpec
from verl_mas.config.values import Checked, Count, Positive, Range, load_dataclass
from verl_mas.errors import ConfigError, raise_all
from verl_mas.gateway.endpoints.endpoint import check_endpoint, hidden
from verl_mas.util.bodies import TooLong, answered
from verl_mas.util.loops import waited_for
from verl_mas.workflow.team_file import Dtype

# A URL, or the fields of a RemoteSpec. Without the field `model`, the endpoint's list of models is searched for the
# policy.
Endpoint = str | Mapping[str, object]
# Timeout in seconds and maximum size in bytes for reading an endpoint's list of models.
TIMEOUT_S, MAX_LIST = 10.0, 4_000_000


@dataclass(frozen=True)
class EngineSettings(Checked):
    """Settings of the engine of this process: `engine` of `verl_mas.load`, and --engine of the commands."""

    device: str | None = None  # Device that computes, such as cuda:1. None: a GPU if there is one, else the CPU
    dtype: Dtype | None = None  # Precision of the weights. None: the precision of the run
    threads: Count | None = None  # Threads of torch. None: one per core
    cache_gib: Positive = 2.0  # Memory for keys and values; decides how many sequences run at once
    max_sequences: Count = 256  # Maximum number of sequences that run at once
    max_model_len: Count | None = None  # Limit of prompt and reply together, in tokens. None: the limit of the run
    seed: Annotated[int, Range(0)] = 0  # The same task, session number and seed give the same session


def remotes(endpoints: Mapping[str, Endpoint], acting: Mapping[str, str | None]) -> dict[str, RemoteSpec]:
    """Find the endpoint of each policy. `acting` has the policies on which agents act, each with the name of its model;
    None for a policy with weights of its own."""
    for name in endpoints:
        if name not in acting:
            rule = "it serves a policy on which an agent of the team acts"
            raise ConfigError(f"an endpoint for policy {name}", rule=rule, fix=nearest(name, list(acting)))
    specs = {}
    for name, given in endpoints.items():
        fields, where = {"base_url": given} if isinstance(given, str) else dict(given), f"the endpoint of policy {name}"
        url = str(fields.get("base_url") or "")
        if url and not urlsplit(url).path.strip("/"):
            fields["base_url"] = url = f"{url.rstrip('/')}/v1"
        key = fields.get("api_key_env")
        problems = check_endpoint(url, None if key is None else str(key), f"{where}: ")
        raise_all(problem for problem in problems if isinstance(problem, ConfigError))
        if "model" not in fields:
            fields["model"] = _served(name, acting[name], url, None if key is None else os.environ[str(key)])
        specs[name] = load_dataclass(RemoteSpec, fields, where)
    return specs


def _served(policy: str, model: str | None, url: str, key: str | None) -> str:
    """Find the name under which the endpoint serves the policy. It is the name of the policy, the name of its model, or
    a path that ends with the name of the policy."""
    names = _listed(policy, url, key)
    fitting = [name for name in names if name in (policy, model) or PurePosixPath(name).name == policy]
    if fitting:
        return policy if policy in fitting else fitting[0]
    value = f"{url} serves {', '.join(names) or 'no model'}, and policy {policy} under none of these names"
    rule = "an endpoint has the policy under its name, such as vllm serve DIR/POLICY --served-model-name POLICY, or "
    rule += "for an adapter --lora-modules POLICY=DIR/POLICY"
    raise ConfigError(value, rule=rule, fix=f"serve it so, or name the model: {_named(policy, url)}")


def _listed(policy: str, url: str, key: str | None) -> list[str]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    fix = f"start the server, and try curl {url}/models"

    async def asked() -> tuple[int, bytes]:
        async with httpx.AsyncClient(headers=headers, timeout=TIMEOUT_S) as client:
            return await answered(client, "GET", f"{url.rstrip('/')}/models", MAX_LIST)

    try:
        status, body = waited_for(asked(), 2 * TIMEOUT_S)
        if status < 300:
            return [str(one["id"]) for one in json.loads(body)["data"]]
        problem = f"it answers /models with HTTP {status}"
        fix = f"{fix}; for a server without a list of models, name the model: {_named(policy, url)}"
    except (httpx.HTTPError, TooLong, TimeoutError, asyncio.TimeoutError) as error:
        problem = f"{type(error).__name__}: {hidden(str(error).splitlines()[0] if str(error) else '', key)}"
    except (ValueError, LookupError, TypeError, RecursionError):
        problem = "its answer to /models is not a list of models"
        fix = f"name the model: {_named(policy, url)}"
    rule = "an endpoint answers before the team is served"
    raise ConfigError(f"policy {policy} at {url}: {problem}", rule=rule, fix=fix)


def _named(policy: str, url: str) -> str:
    return f"{policy}={{base_url: {url}, model: NAME}}"
