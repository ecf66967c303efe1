"""Make a team of a program that asks models of OpenAI or Anthropic: play it, learn its agents, write its settings.

verl-mas adopt my_graph.py --python .venv-graph
verl-mas adopt --task "2 + 3 = ?" --truth 5 -- node team.mjs
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING

from verl_mas.cli._arguments import add_json, add_out, add_settings, free, values, whole
from verl_mas.cli._output import show
from verl_mas.cli._parser import Parser, UsageError
from verl_mas.cli.new import TEXTS
from verl_mas.cli.try_ import add_task, row_file, task_of
from verl_mas.errors import ConfigError
from verl_mas.run_folder.disk import write_whole, writing
from verl_mas.workflow.codecs import JsonObject

if TYPE_CHECKING:
    from verl_mas.testing.explorer import Explorer, Name, Play

RULE = "a program asks its models at the address, and with the key, that its environment has in each session"
READS = "OPENAI_BASE_URL and OPENAI_API_KEY, or ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY"
EXAMPLE = ("2 + 2 = ?", "4")
TASKS, REWARD, MODEL = "tasks.jsonl", "reward.py", "model"
LEAST_PROMPT, ROUND, SPARE = 4000, 1000, 96  # tokens of the tiny model, of which each is a byte


def parser() -> Parser:
    command = Parser("verl-mas adopt", __doc__)
    program = "a Python file and its arguments or, after --, any command"
    command.add_argument("program", metavar="PROGRAM", nargs="+", help=program)
    python = "the interpreter of a Python file, or its environment; without it this one"
    command.add_argument("--python", type=Path, metavar="ENV", help=python)
    add_settings(
        command, "--args", "further mas.workflow.args: pass_env=[TAVILY_API_KEY], agents=[judge] that no play reaches"
    )
    add_task(command)
    reply = "the reply of a model that calls no tool; give one that the program can read"
    command.add_argument("--reply", default="fine", metavar="TEXT", help=reply)
    limit = "how long a session may take, once before and once from its first request"
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
    make = partial(load_dataclass, ReferredProgram, path="--args")
    args: JsonObject = {"command": _command(options), **values(options.args, "--args NAME=VALUE")}
    make(values=args).check()
    name, task = _name(options.program), task_of(options)
    folder = free(options.out or Path(f"{name}-team"), options.force, f"mas/{name}.yaml", TASKS, REWARD, MODEL)
    explorer = Explorer(args, task, options.reply, options.seconds)
    play = explorer.explore()
    if play.fault or not play.acts:
        raise _refusal(explorer, play)
    models: dict[str, str] = args.get("models", {})
    names = {asked: models.get(asked.text, agent_named(asked)) for each in explorer.plays for asked in each.counts}
    agents = [*dict.fromkeys([*args.get("agents", ()), *names.values()])]
    models |= {asked.text: agent for asked, agent in names.items() if agent != asked.text}
    args |= {"agents": agents, "models": models}
    seen = {"name": name, "names": names, "agents": agents, "play": play, "task": task, "folder": folder.absolute()}
    written = _write(folder, options, args, seen)
    replies = {agent: [act.answer for act in play.acts if names[act.name] == agent] for agent in agents}
    good = {agent: answers or options.reply for agent, answers in replies.items()}
    report = check_workflow(partial(make, values=args), good, task, limit_s=options.seconds)
    text = TEXTS.get_template("adopted/report.txt").render(seen, report=report, written=written)
    found = {"accepted": report.ok, "agents": agents, "models": models, "problems": report.problems}
    found["notes"] = [*re.findall("^note: (.*)", text, re.MULTILINE)]
    show(options, found | {"written": written, "commands": seen["commands"]}, text)
    return 0 if report.ok else 1


def _write(folder: Path, options: argparse.Namespace, args: JsonObject, seen: JsonObject) -> list[str]:
    """Write the files of the team, and add to `seen` what is in them."""
    import torch
    import yaml

    from verl_mas.testing.tiny_model import byte_tokenizer, tiny_model

    longest = max(len(act.prompt.encode()) for act in seen["play"].acts) * 3 // 2
    run = f"--config-dir {shlex.quote(str(folder))} +mas={seen['name']}"
    run += "" if torch.cuda.is_available() else " +platform=cpu"
    seen |= {
        "args": indent(yaml.safe_dump(args, sort_keys=False, default_flow_style=None), " " * 6).rstrip(),
        "commands": [f"verl-mas check {run}", f"python -m verl.trainer.main_ppo {run} trainer.total_training_steps=2"],
        "length": max(LEAST_PROMPT, -(-longest // ROUND) * ROUND),
        "program": shlex.join(options.program),
        "prompts": "\n".join(act.prompt for act in seen["play"].acts),
        "rows": row_file(options.row)[0].absolute() if options.row else folder.absolute() / TASKS,
        "own_rows": bool(options.row),
        "scored": not seen["play"].rewarded and not options.row,
    }
    files = {f"mas/{seen['name']}.yaml": "my_team.yaml", TASKS: f"adopted/{TASKS}", REWARD: f"adopted/{REWARD}"}
    texts = {file: TEXTS.get_template(f"{template}.txt").render(seen) for file, template in files.items()}
    texts = {file: text for file, text in texts.items() if text.strip()}
    with writing(folder, "a team is a folder of files"):
        for file, text in texts.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            write_whole(folder / file, text)
        tiny_model(folder / MODEL, tokenizer=byte_tokenizer(max_length=seen["length"] + SPARE))
    return [str(folder / file) for file in (*texts, MODEL)]


def _command(options: argparse.Namespace) -> list[str]:
    """The command of the program, which is the same in any folder."""
    first, *words = options.program
    words = [os.path.abspath(word) if os.path.isfile(word) else word for word in words]
    if not first.endswith(".py"):
        if options.python:
            raise UsageError(f"--python with {first}", rule="it runs a Python file", fix="leave it out")
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


def agent_named(asked: Name) -> str:
    """The agent of a name. A number at its end would make it one of several instances of a role."""
    if asked.in_address or re.fullmatch(r"[A-Za-z]\w*", asked.text, re.ASCII):
        return asked.text
    words = re.sub(r"[^a-z0-9]+", "_", asked.text.lower()).strip("_")
    return re.sub(r"_(?=\d+$)", "", words if words[:1].isalpha() else f"model_{words}")


def _refusal(explorer: Explorer, play: Play) -> ConfigError:
    from verl_mas.testing.explorer import refusing_proxy

    if play.acts:
        value = f"after {len(play.acts)} requests, to {', '.join(asked.text for asked in play.counts)}: {play.fault}"
        fix = "correct the program, or give --reply with a text that it can read"
        return ConfigError(value, rule="a session of the program ends well on good replies", fix=fix)
    with refusing_proxy() as (proxy, hosts):
        explorer.play(proxy)
    others = ", ".join(hosts)
    value = f"no request came{f', the program asked {others}' if others else ''}: {play.fault or 'it ended well'}"
    fix = f"take base URLs and keys of a client out of the program, so that it reads {READS}"
    if "cannot be imported" in play.fault:
        fix = "give --python, the interpreter or the environment that has its packages, or correct the program"
    return ConfigError(value, rule=RULE, fix=fix)
