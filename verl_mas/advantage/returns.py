"""Credits an act with rewards of later acts.

The steps of an agent, or of one of its instances, are its acts in a session, ordered by turn. Acts of other agents
belong to its environment, so their rewards do not count.
"""

from __future__ import annotations

from verl_mas.advantage.kernel import Partition
from verl_mas.advantage.record import AdvantageInput
from verl_mas.util.later import Tensor, torch


def actors(batch: AdvantageInput) -> Partition:
    one = ("task", "session", "agent")
    return batch.partition(*one) if batch.instance is None else batch.partition(*one, "instance")


def later_rewards(batch: AdvantageInput, gamma: float | None) -> Tensor:
    """Compute the discounted later rewards [N]; all are 0 if gamma is None. A row at turn t gets the sum over k > t of
    gamma ** (k - t) * r_k, where r_k is the own reward of its actor's act at turn k. All candidates of an act share the
    rewards after the committed candidate, just as they share the team's reward."""
    later = torch.zeros_like(batch.scores, dtype=torch.float64)
    if gamma is None:
        return later
    own, committed, actor = batch.given("local_reward").to(later), batch.numbers("committed"), actors(batch)
    turn, ahead = batch.numbers("turn"), later.new_zeros(actor.count)
    for rows in reversed(turn.argsort().split(torch.bincount(turn).tolist())):
        who = actor.ids[rows]
        later[rows] = ahead[who]
        ahead = gamma * ahead.index_add(0, who, own[rows] * committed[rows])
    return later
