"""A scout and a judge, two adapters on SmolLM2. One of them pays for its tokens, and the other agent is rated.

A rule with errors gives the ratings, instead of an LLM, so they have a known accuracy and cost no tokens.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from verl_mas.config.hydra.recipe.smollm2.words import Secret, graded, judging, telling
from verl_mas.config.values import Share
from verl_mas.workflow import Message, Outcome, Reply, Task, Team, Workflow

# A reply of the maximum length costs as much as the reward of a right answer, as with verl's penalty for long replies
# (DAPO, penalty_factor 1). The first `FREE` tokens, a word and the end of the turn, cost nothing.
LIMIT, FREE = 10, 2
Prompts = tuple[Callable[[Secret], list[Message]], Callable[[Secret, str], list[Message]]]


class UnequalRoles(Workflow):
    """Both agents get the F1 score of the judge's answer. The agent `pays` also pays for its tokens.

    The other agent, or each agent with `rated="both"`, also gets a rating: 1 if it did its own part, else 0.
    """

    agents = ("scout", "judge")

    pays: Literal["scout", "judge"] = "scout"
    rated: Literal["other", "both"] = "other"
    errs: Share = 0.2
    """Share of replies whose rating is inverted."""
    rollout: bool = False
    """Use one score per session: both agents get the sum of all rewards, and no act has its own reward."""
    alone: bool = False
    """Let the judge act alone. It then reads the scout's secret itself."""

    async def run(self, task: Task, team: Team) -> Outcome:
        secret = Secret(**{name: task.extra_info[name] for name in ("kind", "known", "own", "answer")})
        tell, judge = PROMPTS[secret.kind]
        note = secret.known if self.alone else (await team.scout.act(tell(secret))).text
        answer = await team.judge.act(judge(secret, note))
        score, right = graded(answer.text, secret.answer)
        deserved = sum(self.own_reward(reply, secret, errs=0.0) for reply in team.replies)
        info = {"acc": right, "whole": score + deserved, "length": float(tokens(team.replies[0]))}
        if not task.validate:
            score = self.reward(score, team.replies, secret)
        return Outcome(answer, reward=score, info=info)

    def reward(self, score: float, replies: Sequence[Reply], secret: Secret) -> float:
        """Set each reply's own reward and return the team's. With `rollout`, only return the sum of all rewards."""
        rewards = [self.own_reward(reply, secret, self.errs) for reply in replies]
        if self.rollout:
            return score + sum(rewards)
        for reply, reward in zip(replies, rewards, strict=True):
            reply.reward = reward
        return score

    def own_reward(self, reply: Reply, secret: Secret, errs: float) -> float:
        pays = reply.agent == self.pays
        cost = max(0, tokens(reply) - FREE) / (LIMIT - FREE) if pays else 0.0
        return (rating(reply, secret, errs) if not pays or self.rated == "both" else 0.0) - cost


def tokens(reply: Reply) -> int:
    return len(reply.generation.response_ids)


def rating(reply: Reply, secret: Secret, errs: float) -> float:
    """Rate a reply. The same reply to the same task gets the same rating, as from a model without sampling."""
    errs_here = random.Random(f"{secret}/{reply.agent}/{reply.text}").random() < errs
    return float(did_its_part(reply, secret) is not errs_here)


def did_its_part(reply: Reply, secret: Secret) -> bool:
    """Return whether a scout names its secret, or whether a judge answers in the required form, right or wrong."""
    words = reply.text.lower().replace(".", " ").split()
    if reply.agent == "scout":
        return secret.known.split()[-1].rstrip(".") in words
    if secret.kind == "pair":
        return len(words) == 2 and words[1] == secret.own.split()[-1]
    return " ".join(words) in secret.own.removeprefix("Offers: ").split(", ")


def _telling_half(secret: Secret) -> list[Message]:
    return telling(secret, question="")


def _telling_wish(secret: Secret) -> list[Message]:
    role = "You tell a seller in one short sentence which colour the customer likes."
    return [{"role": "system", "content": role}, {"role": "user", "content": secret.known}]


def _choosing(secret: Secret, note: str) -> list[Message]:
    texts = (
        ("system", "Read the message and answer with the one offer that has the customer's colour."),
        ("user", "Offers: blue chair, red clock, green shirt\nMessage: The customer likes red."),
        ("assistant", "red clock"),
        ("user", f"{secret.own}\nMessage: {note}"),
    )
    return [{"role": role, "content": text} for role, text in texts]


PROMPTS: Mapping[str, Prompts] = {"pair": (_telling_half, judging), "offers": (_telling_wish, _choosing)}
