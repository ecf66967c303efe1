"""Estimate the memory, disk and batches of a run on GPUs that this machine need not have.

ARGUMENTS are those of `python -m verl.trainer.main_ppo`. Exits with 1 if the run does not fit, and names settings that
would make it fit. Two estimates: of rows of the usual length, and of the longest ones. docs/plan.md has the formulas.
"""

from __future__ import annotations

from dataclasses import asdict

from verl_mas.cli._arguments import add_json, add_machines, add_settings, hardware_of, takes_run_arguments, values
from verl_mas.cli._output import write_json
from verl_mas.cli._parser import Parser
from verl_mas.errors import ConfigError, raise_all


def parser() -> Parser:
    command = Parser("verl-mas plan", __doc__)
    add_machines(command)
    assumed = "what the plan assumes, such as response=300 (tokens of a reply), acts, prompt, steps, mfu; repeatable"
    add_settings(command, "--assume", assumed)
    add_json(command)
    takes_run_arguments(command)
    return command


def main(argv: list[str]) -> int:
    options, arguments = parser().parse_known_args(argv)
    hardware = hardware_of(options)
    if hardware is None:
        fix = "add --gpus 8x80 for eight GPUs of 80 GB, --gpus 2x8x80 for two such nodes"
        raise ConfigError("verl-mas plan without --gpus", rule="a plan is one for certain GPUs", fix=fix)
    from verl_mas.checks.run import plan_command
    from verl_mas.cli._plan import show
    from verl_mas.config.values import load_dataclass
    from verl_mas.planning.step import Assumed

    assumed = load_dataclass(Assumed, values(options.assume), "--assume")
    plan, report = plan_command(arguments, hardware, assumed)
    if options.json:
        numbers = {} if plan is None else {"fits": plan.fits, **asdict(plan)}
        write_json(numbers | report.found())
    elif plan is None:
        raise_all(report.errors)
    else:
        show(plan, report)
    return 0 if report.accepted else 1
