"""Tables in shards: the data set, the team and its control, and demonstrations."""

import random
from dataclasses import replace
from itertools import islice

import pytest
from played import played

from verl_mas.config.hydra.recipe.lookup import tables as lookup
from verl_mas.config.hydra.recipe.lookup.tables import (
    CUT,
    SHARDS,
    SYMBOLS,
    LookupMoves,
    ShardedLookup,
    SingleReader,
    Table,
)
from verl_mas.errors import ConfigError, SessionFault
from verl_mas.workflow import Malformed, Task


def test_a_shard_has_the_successors_of_its_symbols_in_order():
    table = Table(("1 d a", "2 b c"))
    assert lookup.successors(" ".join(table.shards)) == {"a": "d", "b": "a", "c": "b", "d": "c"}
    assert lookup.successors(table.shards[1]) == {"c": "b", "d": "c"} and table.path("d") == "cb"


def test_a_table_is_one_cycle_and_the_steps_of_a_question_are_in_different_shards():
    rng = random.Random(0)
    for _ in range(50):
        table, asked = lookup.draw(4, 4, rng)
        assert sorted(asked + table.path(asked, 15)) == sorted(SYMBOLS[:16])
        first, answer = table.path(asked)
        assert SYMBOLS.index(asked) // 4 != SYMBOLS.index(first) // 4
        assert answer not in (asked, first)


def test_shuffled_shards_are_those_of_another_question_and_keep_the_reports():
    items = lookup.tasks(200, 4, 4, split="test")
    moved = lookup.shuffled(items)
    assert {item.source for item in moved} == {"lookup_shuffled"}
    assert [item.question for item in moved] == [item.question for item in items]
    assert sorted(item.extra[SHARDS] for item in moved) == sorted(item.extra[SHARDS] for item in items)
    assert not any(new.extra == old.extra for new, old in zip(moved, items, strict=True))
    # An answer that is read from the shuffled shards is right only by chance.
    right = sum(Table(lookup.shards_of(item.extra)).path(item.question)[-1] == item.truth for item in moved)
    assert right / len(moved) < 0.15


@pytest.mark.parametrize(("shards", "keys"), [(1, 8), (4, 1), (4, 14)])
def test_a_table_without_two_shards_or_with_too_many_symbols_is_refused(shards, keys):
    with pytest.raises(ConfigError, match="--shards 4"):
        lookup.check_size(shards, keys)


# b -> c -> a, in the first shard and then in the second.
TASK = Task([{"role": "user", "content": "b"}], ground_truth="a", extra_info={SHARDS: CUT.join(["1 d c", "2 a b"])})


def test_every_symbol_is_looked_up_by_a_worker_per_shard():
    replies = {"leader": [" b", " c", " = a"], "worker": [" c", " -", " -", " a"]}
    session, prompts = played(ShardedLookup(), TASK, replies)
    assert prompts == [" $ b", " 1 d c ! b", " 2 a b ! b", " c -", " 1 d c ! c", " 2 a b ! c", " - a"]
    assert session.team_reward == 1.0 and session.answer == "a"
    assert session.info == {"acc": 1.0, "rounds": 2, "workers": 4, "critical_path": 5}


@pytest.mark.parametrize(("most", "workers"), [(4, 4), (2, 0)])
def test_the_leader_may_look_up_as_many_symbols_at_once_as_there_are_workers_for(most, workers):
    session, _ = played(ShardedLookup(max_workers=most), TASK, {"leader": [" b d", " = a"], "worker": " -"})
    assert session.info["workers"] == workers


def test_a_report_that_cannot_be_read_is_not_read_as_nothing_found():
    session, prompts = played(ShardedLookup(), TASK, {"leader": [" b", " = c"], "worker": [" c c", " -"]})
    assert prompts[-1] == " # -" and session.replies[1].malformed and session.team_reward == 0.0


@pytest.mark.parametrize(
    ("most", "task", "says"),
    [(1, TASK, r"max_workers=2 or more"), (8, replace(TASK, extra_info={}), "verl-mas data lookup")],
)
def test_fewer_workers_than_shards_and_rows_without_shards_are_refused(most, task, says):
    with pytest.raises(SessionFault, match=says):
        played(ShardedLookup(max_workers=most), task, " b")


@pytest.mark.parametrize(
    ("window", "replies", "prompts", "answer"),
    [
        # A reader continues with the symbol that it found, and makes at most two passes. With the whole table, one act
        # writes both steps.
        ("shard", [" c", " a"], [" 1 d c ? b", " 2 a b ? b c"], "a"),
        ("shard", [" -", " -", " c", " -"], [" 1 d c ? b", " 2 a b ? b", " 1 d c ? b", " 2 a b ? b c"], ""),
        ("all", [" c a"], [" 1 d c 2 a b ? b"], "a"),
        ("all", [" a"], [" 1 d c 2 a b ? b"], ""),
    ],
)
def test_a_single_reader_needs_both_steps(window, replies, prompts, answer):
    session, read = played(SingleReader(window=window), TASK, replies)
    assert read == prompts and session.answer == answer and session.team_reward == float(answer == "a")
    assert session.info == {"acc": session.team_reward, "critical_path": len(prompts)}


@pytest.mark.parametrize("text", ["", "-", "ab", "a b c", "= ", "= a b", "a = b", "= -", "1"])
def test_what_is_neither_symbols_nor_an_answer_is_malformed(text):
    assert isinstance(LookupMoves(2).parse(text), Malformed)


@pytest.mark.parametrize(
    ("prompt", "right"),
    [
        (" 1 d c ! a", ["d"]),
        (" 1 d c ! d", []),
        (" 1 b c ! a", ["b"]),
        (" 1 d c 2 a b ? b", ["c", "a"]),
        (" 2 a b ? b c", ["a"]),
    ],
)
def test_what_there_is_to_find_is_read_from_the_prompt_alone(prompt, right):
    assert lookup.findings(prompt) == right


def wrong(noise: float, worker_noise: float, *agents: str) -> float:
    """The share of the replies of these agents that are wrong."""
    taught = islice(lookup.lessons(4, 4, noise=noise, worker_noise=worker_noise), 1200)
    of_agents = [lesson for lesson in taught if lesson.agent in agents]
    wrong = [lesson for lesson in of_agents if lesson.reply.split() != (lookup.findings(lesson.prompt) or ["-"])]
    return len(wrong) / len(of_agents)


def test_each_side_has_a_noise_of_its_own():
    assert wrong(0.4, 0.0, "worker") == wrong(0.4, 0.0, "reader") == 0
    # A random value of the shard is the right one in one case of four.
    assert 0.25 < wrong(0.0, 0.4, "worker") < 0.45
