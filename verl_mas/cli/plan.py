"""Estimate the memory, disk and batches of a run on GPUs that this machine need not have.

ARGUMENTS are those of `python -m verl.trainer.main_ppo`. Exits with 1 if the run does not fit, and names settings that
would make it fit. It makes two estimates: with rows of the usual length, and with rows of maximal length.
docs/train/plan.md has the formulas.

    verl-mas plan +recipe=math/shared --gpus 1x24,4x80,8x80

prints one row for each machine; the exit code is then 1 if the run fits none of them.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from verl_mas.cli._arguments import add_json, add_machines, add_settings, takes_run_arguments, values
from verl_mas.cli._output import write_json
from verl_mas.cli._parser import Parser
from verl_mas.errors import ConfigError, raise_all
from verl_mas.planning.hardware import parse_gpus

if TYPE_CHECKING:
    from verl_mas.checks.report import CheckReport
    from verl_mas.planning.plan import RunPlan


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
    from verl_mas.results.sessions.run import is_run

    for folder in (Path(word) for word in arguments if "=" not in word):
        if is_run(folder):
            rule = "a plan is made of the arguments of `python -m verl.trainer.main_ppo`"
            fix = f"give these; `verl-mas report {folder}` prints those of its starts"
            raise ConfigError(f"{folder} is the folder of a run", rule=rule, fix=fix)
    if not options.gpus:
        fix = "add --gpus 8x80 for eight GPUs of 80 GB, --gpus 2x8x80 for two such nodes"
        raise ConfigError("verl-mas plan without --gpus", rule="a plan is one for certain GPUs", fix=fix)
    machines = {gpus.strip(): parse_gpus(gpus) for gpus in options.gpus.split(",")}
    from verl_mas.checks.run import plan_command
    from verl_mas.cli._plan import show, show_all
    from verl_mas.config.values import load_dataclass
    from verl_mas.planning.step import Assumed

    assumed = load_dataclass(Assumed, values(options.assume), "--assume")
    plans = {}
    for gpus, hardware in machines.items():
        # With several machines, plan a run that uses all GPUs of each.
        size = f"trainer.nnodes={hardware.nodes}", f"trainer.n_gpus_per_node={hardware.gpus_per_node}"
        plans[gpus] = plan_command([*arguments, *(size if len(machines) > 1 else ())], hardware, assumed)
    found = {gpus: _found(plan, report) for gpus, (plan, report) in plans.items()}
    plan, report = next(iter(plans.values()))
    if options.json:
        write_json({"machines": found} if len(plans) > 1 else next(iter(found.values())))
    elif len(plans) > 1:
        show_all(plans)
    elif plan is None:
        raise_all(report.errors)
    else:
        show(plan, report)
    return 0 if any(report.accepted for _, report in plans.values()) else 1


def _found(plan: RunPlan | None, report: CheckReport) -> dict[str, object]:
    numbers = {} if plan is None else {"fits": plan.fits, **asdict(plan)}
    return numbers | report.found()
