"""Whether an estimator of the user's own gives advantages: it is tried on rows like those of a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from verl_mas.advantage import AdvantageInput, RunningScores
from verl_mas.advantage.estimator import Estimator, options_for
from verl_mas.checks.verl.refusals import Problem, as_refusal, user_code
from verl_mas.config.schema import MasConfig
from verl_mas.errors import ConfigError, ConfigWarning, MasError
from verl_mas.workflow.members import Member


def check_estimator(
    mas: MasConfig, estimator: Estimator, members: Mapping[str, Member], sessions: int, candidates: int
) -> Iterator[Problem]:
    if estimator.function.__module__.startswith("verl_mas."):
        return
    acting = [name for name, member in members.items() if member.trainable]
    batch = rows(acting, {name: members[name].role for name in acting}, max(2, sessions), candidates)
    value, scores = f"algorithm.adv_estimator={estimator.name}, on rows as those of a step", batch.scores.clone()
    try:
        with user_code(mas.workflow.check_timeout_s):
            found = estimator(batch, options_for(estimator.name, mas.advantage), RunningScores()).advantages
    except MasError as error:
        yield ConfigError(
            f"{value}: {as_refusal(error).value}", rule="it takes the rows of every step", fix="correct it"
        )
        return
    if not batch.scores.equal(scores):
        yield ConfigError(f"{value}: it changes scores", rule="metrics are of the same tensor", fix="write into a copy")
    elif tuple(found.shape) != (len(batch),) or not bool(found.isfinite().all()):
        value += f": {found.tolist()!r:.80}"
        yield ConfigError(value, rule="it gives each row one finite number", fix="correct it, also for a score of 0")
    elif not bool(found.any()):
        reason = "all advantages are 0, though the scores of rows of one task and agent differ, so nothing is learned"
        yield ConfigWarning(value, reason, "compare rows that can differ, such as those of a task and an agent")


def rows(agents: Sequence[str], roles: Mapping[str, str], sessions: int, candidates: int) -> AdvantageInput:
    """Of two tasks, an act of each agent in each session, with scores of 0, 0.5 and 1 in turn."""
    import torch

    places = list(product(("task 0", "task 1"), range(sessions), agents, range(candidates)))
    tasks, numbers, names, branches = zip(*places, strict=True)
    scores = torch.tensor([(number + branch) % 3 / 2 for _, number, _, branch in places])
    prompts = [f"{task} {name}" for task, _, name, _ in places]
    zeros = [0] * len(places)
    return AdvantageInput(
        scores,
        task=tasks,
        session=numbers,
        agent=names,
        role=[roles[name] for name in names],
        source=["source"] * len(places),
        instance=zeros,
        turn=zeros,
        branch=branches,
        observation=prompts,
        prompt=prompts,
        committed=[branch == 0 for branch in branches],
        team_reward=scores,
        local_reward=torch.zeros(len(places)),
        penalty=torch.zeros(len(places)),
        tokens=torch.full((len(places),), 10),
        agents=agents,
    )
