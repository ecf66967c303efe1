"""The tokens and rows of a team that spawns workers, by verl's own client class."""

from __future__ import annotations

from verl_mas.config.hydra.recipe.lookup.tables import CUT, SHARDS, ShardedLookup
from verl_mas.gym.warmup import BARE_TEMPLATE
from verl_mas.workflow import Task

TASK = Task([{"role": "user", "content": "b"}], ground_truth="a", extra_info={SHARDS: CUT.join(["1 d c", "2 a b"])})
# By prompt. Those of the leader are the prompts of its lessons.
REPLIES = {
    " $ b": " b",
    " 1 d c ! b": " c",
    " 2 a b ! b": " -",
    " $ b b<|im_end|>\n c -": " c",
    " 1 d c ! c": " -",
    " 2 a b ! c": " a",
    " $ b b<|im_end|>\n c - c<|im_end|>\n - a": " = a",
}


def test_the_leader_reads_the_tokens_of_its_lessons_and_is_one_row_beside_one_per_worker(
    policy, play, tokenizer, monkeypatch
):
    monkeypatch.setattr(tokenizer, "chat_template", BARE_TEMPLATE)
    client, server = policy(lambda prompt, number: REPLIES[prompt])
    done = play(ShardedLookup, client, task=TASK)
    assert not done.faults, done.faults[0]
    session = done.session
    assert session.team_reward == 1.0
    assert {tokenizer.decode(call["prompt_ids"]) for call in server.calls} == set(REPLIES)
    rows = session.rows()
    # Workers of a round may end in any order.
    assert sorted((row.first.agent, row.first.instance, len(row.replies)) for row in rows) == [
        ("leader", 1, 3),
        *[("worker", instance, 1) for instance in (1, 2, 3, 4)],
    ]
    of_leader = rows[0].generation
    sampled = [i for i, mask in zip(of_leader.response_ids, of_leader.response_mask, strict=True) if mask]
    assert tokenizer.decode(sampled) == " b<|im_end|> c<|im_end|> = a<|im_end|>"
