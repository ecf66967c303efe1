"""Candidates that are played on to the end: continuations, forks, and moves that slip."""

from __future__ import annotations

from pathlib import Path

from verl_mas.gym.puzzles.base import write_boards
from wrong_configs.case import Case, wrong


def puzzle(arguments: str, says: str, **more: object) -> Case:
    team = "mas.workflow.name=planner_executor mas.agents=null mas.workflow.args={}"
    return wrong(f"{team} {arguments}", says, **more)


def boards(folder: Path) -> None:
    write_boards(folder / "train.parquet", "plan_path", {"size": 4}, "train", 8)


CASES = (
    puzzle(
        "++mas.workflow.args.continuations=-1", "mas.workflow.args.continuations is a whole number, between 0 and 64"
    ),
    puzzle("++mas.workflow.args.continuation=1", "did you mean 'continuations'?"),
    puzzle("++mas.workflow.args.fork=firstt", "mas.workflow.args.fork is one of none, first, round_robin"),
    puzzle(
        "++mas.workflow.args.fork=first ++mas.workflow.args.continuations=1",
        "the candidates of a fork are all played on by acts that are trained on",
    ),
    puzzle(
        "++mas.workflow.args.continuations=2 data.train_files={folder}/train.parquet "
        "data.val_files={folder}/train.parquet",
        "so nothing is played on",
        warned=True,
        prepare=boards,
    ),
    puzzle(
        "++mas.workflow.args.fork=round_robin mas.branch.k=4 algorithm.adv_estimator=at_grpo",
        "the forks of a session read different prompts",
    ),
    puzzle(
        "++mas.workflow.args.fork=first mas.branch.k=4 algorithm.adv_estimator=agent_gigpo",
        "each of its forks has acts of its own",
    ),
    puzzle(
        "++mas.workflow.args.fork=first mas.branch.k=4 algorithm.adv_estimator=hierarchical_grpo "
        "++mas.advantage.main=planner",
        "its forks number them alike",
    ),
    puzzle(
        "mas.branch.k=4 algorithm.adv_estimator=mhgpo ++mas.advantage.baseline=leave_one_out "
        "data.train_files={folder}/train.parquet data.val_files={folder}/train.parquet",
        "would count as one rollout",
        warned=True,
        prepare=boards,
    ),
    wrong("mas.faults.max_probe_acts=0", "mas.faults.max_probe_acts is a whole number, at least 1"),
)
