"""Explain a setting of a run, or a name that `verl-mas list` lists: what it means, takes, and where it is set.

    verl-mas explain mas.branch.k
    verl-mas explain actor_rollout_ref.actor.ppo_mini_batch_size
    verl-mas explain agent_grpo

Settings are those of verl-mas and of verl; `mas.` may be left out.
"""

from __future__ import annotations

from verl_mas.cli._arguments import add_json
from verl_mas.cli._output import show
from verl_mas.cli._parser import Parser


def parser() -> Parser:
    command = Parser("verl-mas explain", __doc__)
    command.add_argument("name", metavar="NAME", help="a setting, or a team, recipe, workflow, estimator, ...")
    add_json(command)
    return command


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    from verl_mas.cli._explained import explained

    found = explained(options.name)
    show(options, {"found": [entry.as_json() for entry in found]}, "\n\n".join(map(str, found)) + "\n")
    return 0
