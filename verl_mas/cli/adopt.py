"""Make a team from a program that calls OpenAI or Anthropic models: run it, find its agents and write its settings.

    verl-mas adopt my_graph.py --python .venv-graph
    verl-mas adopt --task "2 + 3 = ?" --truth 5 -- node team.mjs

The exit code is 1 if the program would lose sessions in a training run. The team is written even then.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from verl_mas.cli._arguments import add_json, add_out, add_settings, free, values, whole
from verl_mas.cli._output import show
from verl_mas.cli._parser import Parser
from verl_mas.cli.new import TEXTS, write_team
from verl_mas.cli.try_ import add_task, row_file, task_of
from verl_mas.errors import ConfigError
from verl_mas.workflow.codecs import JsonObject

if TYPE_CHECKING:
    from verl_mas.testing.explorer import Play

RULE = "a program asks its models at $OPENAI_BASE_URL or $ANTHROPIC_BASE_URL, with the key in its environment"
TASKS, REWARD, MODEL = "tasks.jsonl", "reward.py", "model"
LEAST_PROMPT, SPARE = 4000, 96  # lengths in tokens; each token of the tiny model is a byte


def parser() -> Parser:
    command = Parser("verl-mas adopt", __doc__)
    command.add_argument("program", metavar="PROGRAM", nargs="+", help="FILE.py ARGUMENTS or, after --, any command")
    command.add_argument("--python", type=Path, metavar="ENV", help="interpreter or environment of FILE.py (else this)")
    add_settings(command, "--args", "mas.workflow.args: pass_env=[TAVILY_API_KEY], agents=[judge] that no play reaches")
    add_task(command)
    command.add_argument("--reply", default="fine", metavar="TEXT", help="a reply that the program can read")
    command.add_argument("--seconds", type=whole(1), default=60, metavar="N", help="how long a session may take")
    add_out(command, "the folder to write; without it adopted_NAME, here")
    add_json(command)
    return command


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    from verl_mas.config.values import load_dataclass
    from verl_mas.testing.check_workflow import check_workflow
    from verl_mas.testing.explorer import Explorer
    from verl_mas.workflows.program import ReferredProgram

    make = partial(load_dataclass, ReferredProgram, path="--args")
    args: JsonObject = {"command": _command(options), **values(options.args, "--args NAME=VALUE")}
    make(values=args).check()
    file = next(filter(os.path.isfile, options.program), options.program[0])
    # The prefix distinguishes the name from the teams of verl-mas, which `+mas=NAME` finds, too.
    name, task = "adopted_" + re.sub(r"\W", "_", Path(file).stem), task_of(options)
    folder = free(options.out or Path(name), options.force, f"mas/{name}.yaml", TASKS, REWARD, MODEL)
    explorer = Explorer(args, task, options.reply, options.seconds)
    play = explorer.explore()
    if play.fault or not play.acts:
        raise _refusal(play)
    models: dict[str, str] = args.get("models", {})
    names = {act.asked: models.get(act.asked, agent_named(act.asked)) for each in explorer.plays for act in each.acts}
    agents = [*dict.fromkeys([*args.get("agents", ()), *names.values()])]
    models |= {asked: agent for asked, agent in names.items() if agent != asked}
    args |= {"agents": agents, "models": models}
    seen = {"name": name, "names": names, "agents": agents, "play": play, "task": task, "folder": folder.absolute()}
    seen |= _settings(options, args, folder, name, play)
    written = _write(folder, seen)
    good = {agent: [act.answer for act in play.acts if names[act.asked] == agent] or options.reply for agent in agents}
    report = check_workflow(partial(make, values=args), good, task, limit_s=options.seconds)
    text = TEXTS.get_template("adopted/report.txt").render(seen, report=report, written=written)
    found = {"accepted": report.ok, "agents": agents, "models": models, "problems": report.problems}
    found |= {"notes": re.findall("^note: (.*)", text, re.MULTILINE), "written": written}
    show(options, found | {"commands": seen["commands"]}, text)
    return 0 if report.ok else 1


def _command(options: argparse.Namespace) -> list[str]:
    """Return the command of the program with absolute paths, so that it works in any folder."""
    words = [os.path.abspath(word) if os.path.isfile(word) else word for word in options.program]
    if not (options.python or words[0].endswith(".py")):
        return words
    python = options.python or Path(sys.executable)
    # Do not resolve links: the interpreter of an environment is a link to a file outside the environment.
    return [os.path.abspath(python / "bin" / "python" if python.is_dir() else python), *words]


def _settings(options: argparse.Namespace, args: JsonObject, folder: Path, name: str, play: Play) -> JsonObject:
    """Return the values that the templates of the files and of the report need in addition to the team's names."""
    import torch

    run = f"--config-dir {shlex.quote(str(folder))} +mas={name}{'' if torch.cuda.is_available() else ' +platform=cpu'}"
    return {
        "args": args,
        "commands": [f"verl-mas check {run}", f"python -m verl.trainer.main_ppo {run} trainer.total_training_steps=2"],
        "length": max(LEAST_PROMPT, *(2 * len(act.prompt.encode()) for act in play.acts)),
        "program": shlex.join(options.program),
        "own_rows": row_file(options.row)[0].absolute() if options.row else None,
        "scored": not play.rewarded and not options.row,
    }


def _write(folder: Path, seen: JsonObject) -> list[str]:
    from verl_mas.testing.tiny_model import byte_tokenizer, tiny_model

    templates = {f"mas/{seen['name']}.yaml": "my_team.yaml", TASKS: f"adopted/{TASKS}", REWARD: f"adopted/{REWARD}"}
    texts = {file: TEXTS.get_template(f"{template}.txt").render(seen) for file, template in templates.items()}
    written = write_team(folder, texts)
    tiny_model(folder / MODEL, tokenizer=byte_tokenizer(max_length=seen["length"] + SPARE))
    return [*written, str(folder / MODEL)]


def agent_named(model: str) -> str:
    """Return a model's name if an agent can have it, else a name made from it. The made name does not end with `_` and
    a number, because `role_2` is the name of one of several instances of a role."""
    words = re.sub(r"\W+", "_", model, flags=re.ASCII).strip("_")
    return model if words == model else re.sub(r"_(?=\d+$)", "", words)


def _refusal(play: Play) -> ConfigError:
    if asked := {act.asked: None for act in play.acts}:
        value = f"after {len(play.acts)} requests, to {', '.join(asked)}: {play.fault}"
        fix = "correct the program, or give --reply with a text that it can read"
        return ConfigError(value, rule="a session of the program ends well on good replies", fix=fix)
    fix = "take base URLs and keys of a client out of the program, so that it reads those of its environment"
    if "cannot be imported" in play.fault:
        fix = "give --python, the interpreter or the environment that has its packages, or correct the program"
    return ConfigError(f"no request came: {play.fault or 'it ended well'}", rule=RULE, fix=fix)
