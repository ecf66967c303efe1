"""Make a team of a program that asks models of OpenAI or Anthropic: play it, learn its agents, write its settings.

    verl-mas adopt my_graph.py --python .venv-graph
    verl-mas adopt --task "2 + 3 = ?" --truth 5 -- node team.mjs

The program is played with scripted replies, at an endpoint that takes every name of a model. Each tool that it offers
to a model is called once, with arguments made up from its schema.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from verl_mas.cli._arguments import add_json, add_out, add_settings, free, values, whole
from verl_mas.cli._output import show
from verl_mas.cli._parser import Parser, UsageError
from verl_mas.cli.new import PROGRAM
from verl_mas.cli.try_ import add_task, row_file, task_of
from verl_mas.errors import ConfigError
from verl_mas.row import DATA_SOURCE, EXTRA_INFO, GROUND_TRUTH, REWARD_MODEL
from verl_mas.run_folder.disk import write_whole, writing
from verl_mas.workflow.codecs import JsonObject

if TYPE_CHECKING:
    from verl_mas.testing.explorer import Explorer, Name, Play
    from verl_mas.workflow.task import Task

RULE = "a program asks its models at the address, and with the key, that its environment has in each session"
READS = "OPENAI_BASE_URL and OPENAI_API_KEY, or ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY"
EXAMPLE = ("2 + 2 = ?", "4")
TASKS, REWARD, MODEL = "tasks.jsonl", "reward.py", "model"
LEAST_PROMPT, ROUND, SPARE = 4000, 1000, 96  # tokens of the tiny model, of which each is a byte


def parser() -> Parser:
    command = Parser("verl-mas adopt", __doc__)
    program = "a Python file and its arguments or, after --, any command"
    command.add_argument("program", metavar="PROGRAM", nargs="+", help=program)
    python = "the interpreter of a Python file, or the folder of its environment; without it that of this command"
    command.add_argument("--python", type=Path, metavar="ENV", help=python)
    add_settings(command, "--args", "further mas.workflow.args, such as pass_env=[TAVILY_API_KEY]")
    add_task(command)
    reply = "the reply of a model that calls no tool; give one that the program can read"
    command.add_argument("--reply", default="fine", metavar="TEXT", help=reply)
    limit = "how long a session may take to its first request, and from there to its end"
    command.add_argument("--seconds", type=whole(1), default=60, metavar="N", help=limit)
    add_out(command, "the folder to write; without it NAME-team, here")
    add_json(command)
    return command


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    from verl_mas.config.values import load_dataclass
    from verl_mas.testing.check_workflow import check_workflow
    from verl_mas.testing.explorer import Explorer
    from verl_mas.workflows.program import ReferredProgram

    if not (options.task or options.truth or options.row):
        options.task, options.truth = EXAMPLE
    args = {"command": _command(options), **values(options.args, "--args NAME=VALUE")}
    load_dataclass(ReferredProgram, args, "--args").check()
    name, task = _name(options.program), task_of(options)
    folder = free(options.out or Path(f"{name}-team"), options.force, f"mas/{name}.yaml", TASKS, REWARD, MODEL)
    explorer = Explorer(args, task, options.reply, options.seconds)
    play = explorer.explore()
    if play.fault or not play.acts:
        raise _refusal(explorer, play)
    agents = {asked: _agent(asked) for each in explorer.plays for asked in each.names}
    args |= {"agents": [*dict.fromkeys(agents.values())]}
    if models := {asked.text: agent for asked, agent in agents.items() if agent != asked.text}:
        args["models"] = models
    written = _write(folder, name, options, args, play, task)
    replies = {agent: [act.answer for act in play.acts if agents[act.name] == agent] for agent in args["agents"]}
    replies = {agent: answers or [options.reply] for agent, answers in replies.items()}
    report = check_workflow(
        partial(load_dataclass, ReferredProgram, args, "--args"), replies, task, limit_s=options.seconds
    )
    notes, commands = [*_notes(agents, play, task)], _commands(folder, name)
    found = {"accepted": report.ok, "agents": args["agents"], "models": models, "problems": report.problems}
    found |= {"notes": [*notes, *report.notes], "written": written, "commands": commands}
    lines = [*_summary(agents, play), "", str(report), *(f"note: {note}" for note in notes), report.verdict, ""]
    lines += [f"wrote {', '.join(written)}", "then, in this folder:", *(f"  {command}" for command in commands)]
    show(options, found, "".join(f"{line}\n" for line in lines))
    return 0 if report.ok else 1


def _command(options: argparse.Namespace) -> list[str]:
    """The command of the program, which is the same in any folder."""
    first, *words = options.program
    words = [os.path.abspath(word) if os.path.isfile(word) else word for word in words]
    if not first.endswith(".py"):
        if options.python:
            raise UsageError(
                f"--python with {first}", rule="it runs a Python file", fix="name the file, or leave it out"
            )
        return [os.path.abspath(first) if "/" in first else first, *words]
    if not os.path.isfile(first):
        raise ConfigError(first, rule="it is the file of the program", fix="correct the path")
    python = options.python or Path(sys.executable)
    python = python / "bin" / "python" if python.is_dir() else python
    # Of an environment, the link is the interpreter, and what it leads to is not.
    return [os.path.abspath(python), os.path.abspath(first), *words]


def _name(program: list[str]) -> str:
    from verl_mas.config.hydra import group_files

    file = next((word for word in program if os.path.isfile(word)), program[0])
    name = re.sub(r"\W+", "_", Path(file).stem).strip("_").lower()
    return f"{name}_program" if name in group_files("mas") or not name[:1].isalpha() else name


def _agent(asked: Name) -> str:
    """The agent of a name. A number at its end would make it one of several instances of a role."""
    if asked.in_address or re.fullmatch(r"[A-Za-z]\w*", asked.text, re.ASCII):
        return asked.text
    words = re.sub(r"[^a-z0-9]+", "_", asked.text.lower()).strip("_")
    return re.sub(r"_(?=\d+$)|^(?=\d)", "", words if words[:1].isalpha() else f"model_{words}")


def _refusal(explorer: Explorer, play: Play) -> ConfigError:
    if play.acts:
        value = f"after {len(play.acts)} requests, to {', '.join(asked.text for asked in play.names)}: {play.fault}"
        fix = "correct the program, or give --reply with a text that it can read"
        return ConfigError(value, rule="a session of the program ends well on good replies", fix=fix)
    others = ", ".join(explorer.hosts())
    value = f"no request came{f', the program asked {others}' if others else ''}: {play.fault or 'it ended well'}"
    fix = f"take base URLs and keys of a client out of the program, so that it reads {READS}"
    if "cannot be imported" in play.fault:
        fix = "give --python, the interpreter or the environment that has its packages, or correct the program"
    return ConfigError(value, rule=RULE, fix=fix)


def _summary(agents: Mapping[Name, str], play: Play) -> Iterator[str]:
    counts = Counter(act.name for act in play.acts)
    for asked, agent in agents.items():
        kind = "address" if asked.in_address else "model"
        yield f"{kind} {asked.text}: agent {agent}, {counts[asked]} requests in a session"
    written = " and ".join(sorted(play.outcome.keys() & {"answer", "reward"}))
    yield f"the program writes its {written}" if written else f"the answer is the last reply; {REWARD} rewards it"


def _notes(agents: Mapping[Name, str], play: Play, task: Task) -> Iterator[str]:
    prompts = "\n".join(act.prompt for act in play.acts)
    if task.ground_truth is None and "reward" not in play.outcome:
        yield f"the task has no ground truth, so {REWARD} rewards no answer: give --truth, or write it anew"
    if len({*agents.values()}) == 1 and len(play.acts) > 1:
        yield (
            "all requests have one name, so the team has one agent. To train roles apart, give each a name of a model "
            "of its own, or the base URL $OPENAI_BASE_URL with /agents/NAME before /v1"
        )
    if '"ground_truth"' in prompts.replace("\\", ""):
        yield "a prompt has the ground truth, as the program takes all of its stdin for the question: parse it as JSON"
    elif task.question.strip() not in prompts:
        yield 'no prompt has the task: read it by json.load(sys.stdin)["question"], or from $VERL_MAS_TASK'


def _write(folder: Path, name: str, options: argparse.Namespace, args: JsonObject, play: Play, task: Task) -> list[str]:
    """Write the files of the team. They name each other by whole paths, as a run may start in any folder."""
    from verl_mas.testing.tiny_model import byte_tokenizer, tiny_model

    longest = max(len(act.prompt.encode()) for act in play.acts) * 3 // 2
    length = max(LEAST_PROMPT, -(-longest // ROUND) * ROUND)
    row = {
        DATA_SOURCE: name,
        "prompt": list(task.messages),
        REWARD_MODEL: {"style": "rule", GROUND_TRUTH: task.ground_truth or ""},
        EXTRA_INFO: {"index": 0},
    }
    texts = {f"mas/{name}.yaml": _settings(folder.absolute(), name, options, args, play, length)}
    texts |= {} if options.row else {TASKS: json.dumps(row) + "\n"}
    texts |= {REWARD: (PROGRAM / "adopted" / f"{REWARD}.txt").read_text()} if _answers(options, play) else {}
    with writing(folder, "a team is a folder of files"):
        for file, text in texts.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            write_whole(folder / file, text)
        tiny_model(folder / MODEL, tokenizer=byte_tokenizer(max_length=length + SPARE))
    return [str(folder / file) for file in (*texts, MODEL)]


def _answers(options: argparse.Namespace, play: Play) -> bool:
    """Whether a function scores the answer: neither the program nor verl's own function for the data does."""
    return "reward" not in play.outcome and not options.row


def _settings(folder: Path, name: str, options: argparse.Namespace, args: JsonObject, play: Play, length: int) -> str:
    """The settings that `verl-mas new` writes, with this program in them."""
    import yaml

    settings = yaml.safe_load((PROGRAM / "my_team.yaml.txt").read_text().replace("my_team", name))
    settings["mas"]["workflow"]["args"] = args
    rows = str(row_file(options.row)[0].absolute() if options.row else folder / TASKS)
    settings["data"] |= {"train_files": rows, "val_files": rows, "max_prompt_length": length}
    if not options.row:
        settings["data"]["train_batch_size"] = settings["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"] = 1
    settings["actor_rollout_ref"]["model"]["path"] = str(folder / MODEL)
    settings["trainer"]["default_local_dir"] = str(folder / "runs" / "first")
    if _answers(options, play):
        settings["reward"] = {"custom_reward_function": {"path": str(folder / REWARD)}}
    agents = args["agents"]
    apart = {"policies": {agent: {} for agent in agents}, "agents": {agent: {"policy": agent} for agent in agents}}
    lines = [
        "# @package _global_",
        f"# The team of {' '.join(options.program)}. Every value can be changed, here or on the command line.",
        f"# {rows} has a task per line. Add yours, and then",
        "# raise train_batch_size and ppo_mini_batch_size. val_files should name other tasks than train_files.",
    ]
    lines += ["# All agents share one policy. For a policy each, add to mas:"] if len(agents) > 1 else []
    lines += [f"#   {key}: {json.dumps(value)}" for key, value in apart.items() if len(agents) > 1]
    return "\n".join([*lines, "", yaml.safe_dump(settings, sort_keys=False)])


def _commands(folder: Path, name: str) -> list[str]:
    """Commands that check the run, and train two steps of the tiny model."""
    import torch

    run = f"--config-dir {shlex.quote(str(folder))} +mas={name}" + (
        "" if torch.cuda.is_available() else " +platform=cpu"
    )
    return [f"verl-mas check {run}", f"python -m verl.trainer.main_ppo {run} trainer.total_training_steps=2"]
