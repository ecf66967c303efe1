"""Lay out a run's metrics for TensorBoard and Weights & Biases: the ten to watch, then each agent and policy."""

from __future__ import annotations

import sys
from pathlib import Path

from verl_mas.cli._arguments import add_out, add_run, free
from verl_mas.cli._parser import Parser
from verl_mas.errors import ConfigError, DataError


def parser() -> Parser:
    made = Parser("verl-mas dashboard", __doc__)
    add_run(made)
    made.add_argument("--tensorboard", metavar="DIR", type=Path, help="write a layout into this folder of event files")
    made.add_argument("--wandb", metavar="ENTITY/PROJECT", help="write a program that creates a workspace there")
    add_out(made, "that program", default="dashboard.py")
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
    charts = layout(names)
    if options.wandb:
        entity, project = _place(options.wandb)
        out = free(options.out, options.force)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(wandb_program(charts, entity, project, out.name), encoding="utf-8")
        sys.stdout.write(f"{out}: python {out} creates the workspace\n")
    if options.tensorboard:
        folder = write_tensorboard(charts, options.tensorboard, options.force)
        sys.stdout.write(f"{folder}: in TensorBoard's tab Custom Scalars\n")
    return 0


def _place(text: str) -> tuple[str, str]:
    entity, _, project = text.partition("/")
    if not (entity and project) or "/" in project:
        raise ConfigError(f"--wandb {text}", rule="an entity and a project", fix="use --wandb my_team/my_project")
    return entity, project
