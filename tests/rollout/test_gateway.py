"""Programs over verl's own tokens: a chat template, its builders, and an engine that sees every prompt."""

import random

import pytest
from gateway_sessions import AGENTS, opened, user

ROOM = {"prompt_length": 4000, "response_length": 2000}
EDITS = ("extend", "edit", "drop", "repeat", "swap")


def changed(history: list[dict[str, object]], edit: str, at: int) -> list[dict[str, object]]:
    """Change a history in a way that programs do."""
    at %= max(len(history), 1)
    if edit == "edit":
        return [*history[:at], {**history[at], "content": "edited"}, *history[at + 1 :]]
    if edit == "drop":
        return [*history[:at], *history[at + 1 :]]
    if edit == "repeat":
        return history[: at + 1]
    if edit == "swap":
        return [*history[:at], *reversed(history[at : at + 2]), *history[at + 2 :]]
    return history


def whole(generation) -> list[int]:
    return [*generation.prompt_ids, *generation.response_ids]


@pytest.mark.parametrize("seed", range(3))
async def test_every_token_of_a_row_was_seen_or_sampled_by_the_engine(policy, tokenizer, seed):
    rng = random.Random(seed)
    made, server = policy(lambda prompt, number: f"r{number % 3}", **ROOM)
    async with opened(made) as team:
        histories = {agent: [user("q")] for agent in AGENTS}
        for number in range(40):
            agent = rng.choice(AGENTS)
            sent = changed(histories[agent], rng.choice(EDITS), rng.randrange(8)) or [user("q")]
            served = await team.ask(*sent, model=agent)
            histories[agent] = [*sent, served.message, user(f"u{number % 2}")][-8:]
        replies = team.session.replies
        for reply, call in zip(replies, server.calls, strict=True):
            generation = reply.generation
            assert whole(generation)[: -generation.sampled] == call["prompt_ids"]
            assert len(generation.response_mask) == len(generation.log_probs) == len(generation.response_ids)
        rows = team.session.rows()
        assert sum(sum(row.generation.response_mask) for row in rows) == sum(
            reply.generation.sampled for reply in replies
        )
        for row in rows:
            probs = zip(row.generation.response_mask, row.generation.log_probs, strict=True)
            assert all(p == (-0.25 if sampled else 0.0) for sampled, p in probs)
        assert {reply.origin.partition(" ")[0].rstrip(":") for reply in replies} == {"new", "continued", "branched"}
