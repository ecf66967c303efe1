"""Computes the rows of a session and their rewards."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from verl_mas.config.schema import RewardSpec
from verl_mas.verl_.row import RowKey
from verl_mas.workflow.agents import ResolvedAgent
from verl_mas.workflow.client import Generation
from verl_mas.workflow.reply import Outcome, Reply, check_reward
from verl_mas.workflow.task import Task


@dataclass(frozen=True)
class Score:
    """The result of verl's reward function for the answer of a session."""

    reward: float
    info: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_reward("the score of the reward function", self.reward)
        check_reward("acc in the result of the reward function", self.info.get("acc"))


def needs_score(outcome: Outcome | None, replies: Iterable[Reply]) -> bool:
    """Whether verl's reward function must score the answer. True if the outcome has no reward, and either no act
    (except probes) has a reward or `score_answer` is set."""
    if outcome is None or outcome.reward is not None:
        return False
    played = [reply for reply in replies if not reply.probe]
    acts_scored = any(reply.reward is not None or reply.team_reward is not None for reply in played)
    return outcome.score_answer or not acts_scored


@dataclass(frozen=True)
class RowReward:
    """The reward of a row. `score` is the weighted sum of `team` and `local`, minus `penalty`. If rows share their
    penalties, `penalty` is the sum over all these rows."""

    team: float
    local: float
    penalty: float
    score: float


def row_rewards(
    rows: Sequence[Sequence[Reply]], team_reward: float, agents: Mapping[str, ResolvedAgent], weights: RewardSpec
) -> list[RowReward]:
    """Compute the reward of each row of a session. `rows` has the acts of each row. If rows share their penalties
    (`penalty_on`), each row gets the sum of these penalties."""
    scopes = ({"act": number, "agent": acts[0].agent} for number, acts in enumerate(rows))
    shared: list[object] = [scope.get(weights.penalty_on or "", "session") for scope in scopes]
    penalties: dict[object, float] = defaultdict(float)
    for key, acts in zip(shared, rows, strict=True):
        # A probe has no penalty, because its penalty could be added to other rows.
        if weights.penalty_on != "none" and not acts[0].probe and any(reply.malformed for reply in acts):
            penalties[key] += agents[acts[0].agent].spec.format_penalty
    rewards = []
    for key, acts in zip(shared, rows, strict=True):
        own_team = [reply.team_reward for reply in acts if reply.team_reward is not None]
        team, local = own_team[-1] if own_team else team_reward, sum(reply.local_reward for reply in acts)
        score = (weights.team or 0.0) * team + (weights.local or 0.0) * local - penalties[key]
        rewards.append(RowReward(team, local, penalties[key], score))
    return rewards


@dataclass(frozen=True)
class Row:
    """A row: one act, or the acts of one conversation. `key` is None for rows that are not stored. These are probes,
    and acts without tokens, such as acts of a remote policy."""

    replies: Sequence[Reply]
    reward: RowReward
    key: RowKey | None

    @property
    def first(self) -> Reply:
        return self.replies[0]

    @property
    def generation(self) -> Generation:
        """The generation of the last act, which has the tokens of the whole row."""
        return self.replies[-1].generation

    @property
    def malformed(self) -> bool:
        return any(reply.malformed for reply in self.replies)


def rows_of(
    task: Task, replies: Iterable[Reply], team_reward: float, agents: Mapping[str, ResolvedAgent], weights: RewardSpec
) -> list[Row]:
    """List the rows of the session, in the order of their first acts."""
    by_row: dict[int, list[Reply]] = {}
    for reply in replies:
        by_row.setdefault(reply.row, []).append(reply)
    rows, stored = [], 0
    rewards = row_rewards([*by_row.values()], team_reward, agents, weights)
    for acts, reward in zip(by_row.values(), rewards, strict=True):
        storable = acts[-1].generation.has_tokens and not acts[0].probe
        rows.append(Row(acts, reward, RowKey(task.uid, task.session, stored) if storable else None))
        stored += storable
    return rows
