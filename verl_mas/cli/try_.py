"""Try a workflow without verl: scripted replies, good and bad, then a session with a model of an endpoint.

    verl-mas try my_team.py:MyTeam --reply "<answer>5</answer>" \\
        --task "2 + 3 = ?" --truth 5
    verl-mas try my_team.py:MyTeam --task "2 + 3 = ?" \\
        --endpoint http://localhost:8000/v1 --model Qwen/Qwen3-1.7B

The exit code is 1 if the workflow would fail or lose sessions in a training run, or if the session fails.
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from verl_mas.cli._arguments import add_json, add_settings, values
from verl_mas.cli._output import show
from verl_mas.cli._parser import Parser
from verl_mas.errors import ConfigError, SessionFault

if TYPE_CHECKING:
    from verl_mas.workflow.base import Workflow
    from verl_mas.workflow.session import Session
    from verl_mas.workflow.task import Task


def parser() -> Parser:
    command = Parser("verl-mas try", __doc__)
    forms = "FILE.py:CLASS, module:CLASS, or the name of a registered workflow"
    command.add_argument("workflow", metavar="WORKFLOW", help=forms)
    add_settings(command, "--args", "arguments of the workflow, as mas.workflow.args")
    command.add_argument("--task", default="2 + 2?", metavar="TEXT", help="the question")
    command.add_argument("--truth", metavar="TEXT", help="its ground truth")
    replies = 'the scripted good reply, or "AGENT: TEXT" of one agent or role; may be given several times'
    command.add_argument("--reply", action="append", default=[], metavar="TEXT", help=replies)
    command.add_argument(
        "--endpoint", metavar="URL", help="an OpenAI-compatible server, such as http://localhost:8000/v1"
    )
    command.add_argument("--model", metavar="NAME", help="the model of the endpoint, as the server names it")
    command.add_argument("--api-key-env", metavar="NAME", help="the environment variable with its key")
    add_json(command)
    return command


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    if (options.endpoint is None) != (options.model is None):
        missing = "--model" if options.model is None else "--endpoint"
        rule = "a session needs the address of a server and the name of its model"
        raise ConfigError(f"{missing} is missing", rule=rule, fix="give --endpoint and --model, or neither of them")
    from verl_mas.config.values import load_dataclass
    from verl_mas.testing.check_workflow import check_workflow
    from verl_mas.workflow.base import find
    from verl_mas.workflow.task import Task

    path, _, name = options.workflow.rpartition(":")
    kind = find(name, path or None)
    given = values(options.args, "--args NAME=VALUE")
    make = partial(load_dataclass, kind, given, "--args")
    task = Task([{"role": "user", "content": options.task}], ground_truth=options.truth)
    report = check_workflow(make, _replies(options.reply, make().agents), task)
    session = _session(options, make(), task) if report.ok and options.endpoint else None
    found = {"accepted": report.ok, "problems": report.problems, "cases": [asdict(case) for case in report.cases]}
    verdict = "accepted" if report.ok else f"refused: {len(report.problems)} problems"
    verdict += "" if report.ok or not options.endpoint else ", so no session was run"
    of_session = f"\n{session}\n" if session else ""
    show(
        options, found | ({"session": dict(session.record())} if session else {}), f"{report}\n{of_session}{verdict}\n"
    )
    return 0 if report.ok else 1


def _replies(given: list[str], agents: object) -> str | dict[str, str]:
    """One text for all agents, or texts by agent or role."""
    if not given:
        return "fine"
    from verl_mas.workflow.members import role_of

    by_agent = {name.strip(): text.strip() for name, colon, text in (reply.partition(":") for reply in given) if colon}
    assert isinstance(agents, tuple | list)
    if len(given) == 1 and next(iter(by_agent), "") not in {*agents, *map(role_of, agents)}:
        return given[0]
    return by_agent


def _session(options: argparse.Namespace, workflow: Workflow, task: Task) -> Session:
    from verl_mas.endpoints.openai import OpenAIClient
    from verl_mas.workflow.run import arun

    async def one() -> Session:
        client = OpenAIClient(options.endpoint, options.model, api_key_env=options.api_key_env)
        try:
            return await arun(workflow, task, client)
        finally:
            await client.aclose()

    try:
        return asyncio.run(one())
    except SessionFault as fault:
        rule = "the endpoint serves the model, and answers every act"
        fix = "check the address, the name of the model and the key; `curl <URL>/models` lists the models"
        raise ConfigError(f"the session at {options.endpoint} failed: {fault}", rule=rule, fix=fix) from fault
