"""The team of the scale benchmarks, the tags of its rows, and the lengths of its replies."""

from __future__ import annotations

import math
import random
from pathlib import Path

from omegaconf import DictConfig

from verl_mas.config.compose import compose
from verl_mas.verl_.row import RowTags
from verl_mas.workflow import Outcome, Task, Team, Workflow
from verl_mas.workflow.agents import instances

ACTS = 3  # per session
AGENTS = instances("member", 8)


class Relay(Workflow):
    """Three of eight agents act in turn. Each agent but the first gets the previous agent's reply."""

    agents = AGENTS

    async def run(self, task: Task, team: Team) -> Outcome:
        first = task.session % len(AGENTS)
        messages = list(task.messages)
        for turn in range(ACTS):
            reply = await team[AGENTS[(first + turn) % len(AGENTS)]].act(messages)
            messages = [*task.messages, {"role": "user", "content": f"Of another: {reply.text[:200]}"}]
        return Outcome(answer=reply, reward=float(task.session % 2))


def tokens_of(act: str, median: int = 800, sigma: float = 0.8, most: int = 8192) -> int:
    """Return the number of tokens of an act's reply: log-normal, and always the same for the same act."""
    return min(most, max(1, round(median * math.exp(random.Random(act).gauss(0.0, sigma)))))


def tags_of(number: int, response: int = 1, policies: int = 8, prompt: int = 8) -> dict[str, object]:
    agent = number % len(AGENTS)
    return RowTags(
        prompt_len=prompt,
        response_len=response,
        global_steps=1,
        min_global_steps=0,
        max_global_steps=0,
        policy=f"p{agent % policies}",
        agent=AGENTS[agent],
        role="member",
        source="scale",
        instance=0,
        turn=0,
        branch=0,
        session=number // 2 % 8,
        trainable=True,
        committed=True,
        malformed=False,
        temperature=1.0,
        observation=number,
        team_reward=float(number // 2 % 2),
        local_reward=0.0,
        penalty=0.0,
    ).as_dict()


def composed(policies: int, *overrides: str) -> DictConfig:
    """Return the configuration of a run of the team on a CPU."""
    names = [f"p{number}" for number in range(policies)]
    agents = ",".join(f"{agent}:{{policy:{names[number % policies]}}}" for number, agent in enumerate(AGENTS))
    return compose(
        [
            *(
                "+platform=cpu",
                "+mas=team",
                "mas.workflow.name=Relay",
                f"mas.workflow.path={Path(__file__).absolute()}",
            ),
            *("algorithm.adv_estimator=agent_grpo", "actor_rollout_ref.rollout.prompt_length=12288"),
            *("actor_rollout_ref.rollout.response_length=8192", "actor_rollout_ref.rollout.calculate_log_probs=true"),
            "mas.policies={" + ",".join(f"{name}:{{}}" for name in names) + "}",
            "mas.agents={" + agents + "}",
            *overrides,
        ]
    )
