"""From acts to rows, and what each row earns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from verl_mas.config.schema import RewardSpec
from verl_mas.workflow.client import Generation
from verl_mas.workflow.members import Member
from verl_mas.workflow.reply import Reply


@dataclass(frozen=True)
class RowReward:
    """What one act of a session earned: the team's reward, its own, and its penalty (0 or more)."""

    agent: str
    team: float = 0.0
    local: float = 0.0
    penalty: float = 0.0


def row_scores(acts: Sequence[RowReward], spec: RewardSpec) -> list[float]:
    """The score of each act of one session. A penalty that lands on several rows is the sum of their penalties."""
    landed: dict[object, float] = defaultdict(float)
    scope = [_scope(number, act, spec.penalty_on) for number, act in enumerate(acts)]
    if spec.penalty_on != "none":
        for where, act in zip(scope, acts, strict=True):
            landed[where] += act.penalty
    team, local = spec.team or 0.0, spec.local or 0.0
    return [team * act.team + local * act.local - landed[where] for where, act in zip(scope, acts, strict=True)]


def _scope(number: int, act: RowReward, penalty_on: str | None) -> object:
    return {"act": number, "agent": act.agent}.get(penalty_on or "", "session")


@dataclass(frozen=True)
class Row:
    """One act, or the acts of one conversation. `score` is the weighted parts less every penalty that landed here."""

    replies: Sequence[Reply]
    reward: RowReward
    score: float

    @property
    def first(self) -> Reply:
        return self.replies[0]

    @property
    def generation(self) -> Generation:
        """The last act's, which carries the whole row's tokens."""
        return self.replies[-1].generation

    @property
    def malformed(self) -> bool:
        return any(reply.malformed for reply in self.replies)


def rows_of(
    replies: Iterable[Reply], team_reward: float, members: Mapping[str, Member], weights: RewardSpec
) -> list[Row]:
    """The session's rows, in the order in which they began."""
    by_row: dict[int, list[Reply]] = {}
    for reply in replies:
        by_row.setdefault(reply.row, []).append(reply)
    rewards = [_earned(acts, team_reward, members) for acts in by_row.values()]
    scores = row_scores(rewards, weights)
    return [Row(*row) for row in zip(by_row.values(), rewards, scores, strict=True)]


def candidate_score(reply: Reply, members: Mapping[str, Member], weights: RewardSpec) -> float:
    """What a candidate is worth before the session has ended."""
    return row_scores([_earned([reply], 0.0, members)], weights)[0]


def _earned(acts: Sequence[Reply], team_reward: float, members: Mapping[str, Member]) -> RowReward:
    own = [reply.team_reward for reply in acts if reply.team_reward is not None]
    penalty = members[acts[0].agent].spec.format_penalty
    return RowReward(
        agent=acts[0].agent,
        team=own[-1] if own else team_reward,
        local=sum(reply.reward or 0.0 for reply in acts),
        penalty=penalty if any(reply.malformed for reply in acts) else 0.0,
    )
