"""Chats and preference pairs for training, and the counts of skipped acts."""

from collections import Counter

import pytest
from view_runs import act, session

from verl_mas.errors import DataError
from verl_mas.results.formats.tables import chats, preferences, write_table


def scored(score, **more):
    return act(**more) | {"reward": {"score": score}}


def test_chats_leave_out_what_a_model_should_not_learn_and_count_it():
    image = [{"role": "user", "content": [{"type": "image", "file": "images/a.png"}, {"type": "text", "text": "?"}]}]
    acts = [scored(1.0), scored(0.0), act(probe=True), act(text="ab... (9 characters)"), act(messages=image)]
    counts, dropped = Counter(), session(status="dropped", acts=[act()])
    (row,) = chats([session(acts=acts), dropped], counts, min_reward=0.5)
    assert [message["role"] for message in row["messages"]] == ["system", "user", "assistant"]
    assert (row["reward"], row["session"], row["task"], row["step"]) == (1.0, "1-0_0", "1-0", 1)
    assert set(counts.values()) == {1} and len(counts) == 5


def test_pairs_are_the_best_and_the_worst_of_one_prompt_within_a_task():
    sessions = [session(number=n, acts=[scored(n / 2, text=f"{n}"), scored(1.0, agent="checker")]) for n in range(3)]
    counts = Counter()
    (pair,) = preferences([*sessions, session(uid="1-1", acts=[scored(0.0)])], counts)
    assert (pair["chosen"][0]["content"], pair["rejected"][0]["content"], pair["agent"]) == ("2", "0", "solver")
    assert (pair["reward_chosen"], pair["reward_rejected"], sorted(counts.values())) == (1.0, 0.0, [1, 4])


def test_a_table_without_rows_says_why(tmp_path):
    with pytest.raises(DataError, match="'acts left out': 3"):
        write_table([], tmp_path / "sft.parquet", Counter({"acts left out": 3}))
    assert not (tmp_path / "sft.parquet").exists()
