"""Lay out a run's metrics for TensorBoard and Weights & Biases: the ten to watch, then each agent and policy."""

from __future__ import annotations

from pathlib import Path

from verl_mas.cli._arguments import add_json, add_out, add_run, free
from verl_mas.cli._output import say_written, write_text
from verl_mas.cli._parser import Parser
from verl_mas.errors import ConfigError, DataError


def parser() -> Parser:
    made = Parser("verl-mas dashboard", __doc__)
    add_run(made)
    made.add_argument("--tensorboard", metavar="DIR", type=Path, help="write a layout into this folder of event files")
    made.add_argument("--wandb", metavar="ENTITY/PROJECT", help="write a program that creates a workspace there")
    add_out(made, "that program", default="dashboard.py")
    add_json(made)
    return made


def main(argv: list[str]) -> int:
    from verl_mas.sessions.dashboard import layout, wandb_program, write_tensorboard
    from verl_mas.sessions.run import open_run

    options = parser().parse_args(argv)
    if not (options.tensorboard or options.wandb):
        raise ConfigError(
            "no dashboard is named",
            rule="a layout is for TensorBoard or for Weights & Biases",
            fix="add --tensorboard DIR or --wandb ENTITY/PROJECT",
        )
    run = open_run(options.run)
    names = dict.fromkeys(name for step in run.steps() for name in step.values)
    if not names:
        raise DataError(
            f"{options.run} has no metrics",
            rule="the charts are those of the agents and policies that have logged something",
            fix="repeat this after the first step",
        )
    charts, written, then = layout(names), [], []
    if options.wandb:
        entity, project = _place(options.wandb)
        out = free(options.out, options.force)
        write_text(out, wandb_program(charts, entity, project, out.name))
        written.append(out)
        then.append(f"python {out} creates the workspace")
    if options.tensorboard:
        written.append(write_tensorboard(charts, options.tensorboard, options.force))
        then.append("TensorBoard shows it in its tab Custom Scalars")
    say_written(written, as_json=options.json, then="; ".join(then))
    return 0


def _place(text: str) -> tuple[str, str]:
    entity, _, project = text.partition("/")
    if not (entity and project) or "/" in project:
        raise ConfigError(f"--wandb {text}", rule="an entity and a project", fix="use --wandb my_team/my_project")
    return entity, project
