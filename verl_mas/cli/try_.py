"""Try a workflow without verl: with good and bad scripted replies, then in a session with a model of an endpoint.

    verl-mas try my_team.py:MyTeam --reply "<answer>5</answer>" \\
        --task "2 + 3 = ?" --truth 5
    verl-mas try my_team.py:MyTeam --row train.parquet:7 \\
        --reply "writer: draft" --reply "writer: <answer>5</answer>"
    verl-mas try my_team.py:MyTeam --task "2 + 3 = ?" \\
        --endpoint http://localhost:8000/v1 --model Qwen/Qwen3-1.7B

The exit code is 1 if the workflow would fail or lose sessions in a training run, or if the session fails.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from verl_mas.cli._arguments import add_json, add_settings, values, whole
from verl_mas.cli._output import show
from verl_mas.cli._parser import Parser, UsageError
from verl_mas.config.registry import closest, nearest
from verl_mas.errors import ConfigError, SessionFault, failures

if TYPE_CHECKING:
    from verl_mas.testing.check_workflow import Replies
    from verl_mas.testing.report import CaseResult
    from verl_mas.testing.scripted_llm import Answer
    from verl_mas.verl_.types import Fields
    from verl_mas.workflow.base import Workflow
    from verl_mas.workflow.session import Session
    from verl_mas.workflow.task import Task

CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def parser() -> Parser:
    command = Parser("verl-mas try", __doc__)
    forms = "FILE.py:CLASS, module:CLASS, or the name of a registered workflow"
    command.add_argument("workflow", metavar="WORKFLOW", help=forms)
    add_settings(command, "--args", "arguments of the workflow, as mas.workflow.args")
    add_task(command)
    replies = (
        'a scripted good reply, or "AGENT: TEXT" of one agent or role; given several times, one after the other; a '
        'call of a tool is <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    )
    command.add_argument("--reply", action="append", default=[], metavar="TEXT", help=replies)
    limit = "how long a case may take (default: 3, and 30 for a program), as one with a coding harness takes longer"
    command.add_argument("--seconds", type=whole(1), metavar="N", help=limit)
    server = "an OpenAI-compatible server, such as http://localhost:8000/v1"
    command.add_argument("--endpoint", metavar="URL", help=server)
    command.add_argument("--model", metavar="NAME", help="the model of the endpoint, as the server names it")
    command.add_argument("--api-key-env", metavar="NAME", help="the environment variable with its key")
    add_json(command)
    return command


def add_task(parser: argparse.ArgumentParser) -> None:
    """Add `--task`, `--truth` and `--row`, which `task_of` reads."""
    parser.add_argument("--task", metavar="TEXT", help="the question (default: 2 + 2?)")
    parser.add_argument("--truth", metavar="TEXT", help="its ground truth")
    row = "the task: a row of a data file as for training, the first one or number N, from 0"
    parser.add_argument("--row", metavar="FILE[:N]", help=row)


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    if (options.endpoint is None) != (options.model is None):
        missing = "--model" if options.model is None else "--endpoint"
        rule = "a session needs the address of a server and the name of its model"
        raise ConfigError(f"{missing} is missing", rule=rule, fix="give --endpoint and --model, or neither of them")
    if options.api_key_env and not options.endpoint:
        raise UsageError("--api-key-env", rule="it is the key of --endpoint", fix="give --endpoint, or leave it out")
    from verl_mas.checks.refusals import user_code
    from verl_mas.config.values import load_dataclass
    from verl_mas.testing.check_workflow import check_workflow
    from verl_mas.testing.report import empty_answer
    from verl_mas.workflow.agents import resolve_agents
    from verl_mas.workflow.base import find

    path, _, name = options.workflow.rpartition(":")
    if not path and name.endswith(".py"):
        raise ConfigError(name, rule="a file has classes, of which one is tried", fix=f"write {name}:CLASS")
    with user_code():
        kind = find(name, path or None)
        make = partial(load_dataclass, kind, values(options.args, "--args NAME=VALUE"), "--args")
        agents = resolve_agents(make().agents, {}, {})
    task = task_of(options)
    known = list(dict.fromkeys(name for agent in agents.values() for name in (agent.name, agent.role)))
    report = check_workflow(make, _replies(options.reply, known), task, limit_s=options.seconds)
    if options.row:
        first, *others = report.cases
        report = replace(report, cases=[_with_score(first, dict(task.fields)), *others])
    session = _session(options, make(), task) if report.ok and options.endpoint else None
    report = replace(report, notes=[*report.notes, *(empty_answer(session) if session else ())])
    found = {"accepted": report.ok, "problems": report.problems, "notes": report.notes}
    found |= {"cases": [asdict(case) for case in report.cases]} | ({"session": session.record()} if session else {})
    verdict = report.verdict + ("" if report.ok or not options.endpoint else ", so no session was run")
    of_session = f"\n{session}\n" if session else ""
    show(options, found, f"{report}\n{of_session}{verdict}\n")
    return 0 if report.ok else 1


def _with_score(case: CaseResult, row: Fields) -> CaseResult:
    """Score the answer by verl's own reward function, which reads the row."""
    if not case.scored_by_verl or case.answer is None:
        return case
    from verl.utils.reward_score import default_compute_score

    from verl_mas.checks.answers import score_by

    try:
        with failures():  # verl's functions may raise any exception for a row of another data source
            score = f"{score_by(default_compute_score, row, case.answer):g}"
    except SessionFault as fault:
        score = f"it fails, {fault.cause}"
    return replace(case, verl_score=score)


def task_of(options: argparse.Namespace) -> Task:
    if options.truth and not (options.task or options.row):
        raise UsageError("--truth without --task", rule="it is the answer of a task", fix="give --task")
    from verl_mas.data.own_rows import as_dataset, read
    from verl_mas.verl_.row import GLOBAL_STEPS, SESSION_ID, UID
    from verl_mas.workflow.task import Task

    if options.row is None:
        question = "2 + 2?" if options.task is None else options.task
        return Task([{"role": "user", "content": question}], ground_truth=options.truth)
    if options.task is not None or options.truth is not None:
        rule = "a row has the question and the ground truth"
        raise ConfigError("--row with --task or --truth", rule=rule, fix="give --row alone, or leave it out")
    file, number = row_file(options.row)
    row = next(islice(read(file), number, None), None)
    if row is None:
        fix = "give the number of a row; the first one is 0"
        raise ConfigError(f"--row {options.row}", rule=f"the file has a row {number}", fix=fix)
    named = as_dataset(row, f"--row {options.row}") | {UID: "task", SESSION_ID: 0, GLOBAL_STEPS: 0}
    return Task.of_row(named, validate=False, greedy=False)


def row_file(text: str) -> tuple[Path, int]:
    """Split `--row FILE:N` into the file and the number, which is 0 if it is missing."""
    file, _, number = text.rpartition(":")
    return (Path(file), int(number)) if file and number.isdecimal() else (Path(text), 0)


def _replies(given: Sequence[str], known: Sequence[str]) -> Replies:
    """Group scripted replies by the agent or role that they name. If no reply names an agent, the replies are for all
    agents. `known`: the names of agents and roles."""
    of_all, by_agent = list[str](), dict[str, list[str]]()
    for reply in given:
        name, colon, text = reply.partition(":")
        if colon and name.strip() in known:
            by_agent.setdefault(name.strip(), []).append(text.strip())
        elif colon and closest(name.strip(), known):
            rule = "what is before the colon is an agent of the team, or a role"
            raise ConfigError(f"--reply {reply!r:.60}", rule=rule, fix=nearest(name.strip(), known))
        else:
            of_all.append(reply)
    if of_all and by_agent:
        rule, fix = "all replies name their agent, or none does", f"write 'AGENT: TEXT'; {nearest('', known)}"
        raise ConfigError(f"--reply {of_all[0]!r:.60} names no agent", rule=rule, fix=fix)
    of_agents = {name: [_answer(text) for text in texts] for name, texts in by_agent.items()}
    return of_agents or [_answer(text) for text in of_all] or "fine"


def _answer(text: str) -> Answer:
    """Read a scripted reply, in which tool calls are written in Qwen's form."""
    from verl_mas.testing.scripted_llm import calls

    try:
        called = [json.loads(each) for each in CALL.findall(text)]
        named = [(each["name"], each["arguments"]) for each in called]
    except (ValueError, KeyError, TypeError) as error:
        form = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
        raise ConfigError(f"--reply {text!r:.80}", rule="a call is a JSON object", fix=f"write {form}") from error
    return calls(*named, text=CALL.sub("", text).strip()) if named else text


def _session(options: argparse.Namespace, workflow: Workflow, task: Task) -> Session:
    from verl_mas.gateway.endpoints.openai import OpenAIClient
    from verl_mas.workflow.run import run

    client = OpenAIClient(options.endpoint, options.model, api_key_env=options.api_key_env)
    try:
        return run(workflow, task, client)
    except SessionFault as fault:
        rule = "the endpoint serves the model, and answers every act"
        fix = "check the address, the name of the model and the key; `curl <URL>/models` lists the models"
        raise ConfigError(f"the session at {options.endpoint} failed: {fault}", rule=rule, fix=fix) from fault
