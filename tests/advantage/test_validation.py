import pickle
from dataclasses import replace

import pytest
import torch

from verl_mas.advantage import AdvantageInput, AdvantageOptions, compute_advantages
from verl_mas.errors import DataError


def batch(**changes):
    """Two sessions of one task in which a planner has two candidates."""
    columns = {
        "scores": torch.tensor([1.0, 0.0, 0.5, 0.0]),
        "task": ["maze 7"] * 4,
        "session": [0, 0, 1, 1],
        "agent": ["planner"] * 4,
        "turn": [0] * 4,
        "branch": [0, 1, 0, 1],
        "prompt": [11, 11, 12, 12],
    }
    return AdvantageInput(**{**columns, **changes})


NAN = float("nan")
SECOND = "task 'maze 7', session 1, agent 'planner', turn 0"


@pytest.mark.parametrize(
    ("name", "changes", "options", "says"),
    [
        ("at_grpo", {"prompt": [11, 11, 12, 13]}, {}, [SECOND, "different prompts"]),
        ("at_grpo", {"prompt": [(1, 2), (1, 9), (3, 4), (3, 4)]}, {}, ["different prompts"]),
        ("at_grpo", {}, {"group_size": 3}, [f"{SECOND} has 2 candidates, not 3".replace("session 1", "session 0")]),
        # A lone candidate of an agent that should branch.
        ("at_grpo", {"padding": torch.arange(4) == 3}, {"group_size": 2}, ["has 1 candidates, not 2"]),
        (
            "agent_grpo",
            {"agent": ["planner", "planner", "planer", "planner"], "agents": ["planner", "tool"]},
            {},
            ["agent 'planer'", "did you mean 'planner'"],
        ),
        *(
            (name, {"branch": [0, 1, 1, 1]}, {}, [f"{SECOND}, branch 1 is in the batch more than once"])
            for name in ("agent_grpo", "team_grpo", "at_grpo", "agent_rloo")
        ),
        ("agent_grpo", {"scores": torch.tensor([1.0, 0.0, NAN, 0.0])}, {}, ["session 1", "nan"]),
        ("agent_grpo", {"scores": torch.tensor([1.0, 0.0, float("inf"), 0.0])}, {}, ["session 1", "inf"]),
        # A missing label is never a group of its own.
        ("agent_grpo", {"agent": ["planner", "planner", None, "planner"]}, {}, ["row 2 has no agent"]),
        ("agent_grpo", {"agent": ["planner", "planner", NAN, "planner"]}, {}, ["row 2 has no agent"]),
        ("agent_gigpo", {}, {}, ["the rows have no observation"]),
        ("agent_gdpo", {}, {}, ["the rows have no team_reward"]),
        ("at_grpo", {"branch": None, "turn": [0, 1, 0, 1]}, {}, ["the rows have no branch"]),
        ("agent_grpo", {}, {"gamma": 0.9}, ["the rows have no local_reward"]),
        ("agent_grpo", {"local_reward": torch.ones(4)}, {"gamma": 0.9}, ["the rows have no committed"]),
        ("agent_reinforce_pp", {}, {}, ["weighting=per_act"]),
        ("agent_grpo", {}, {"by": "role"}, ["the rows have no role", "mas.advantage.by=agent"]),
        ("agent_grpo", {}, {"weighting": "per_invocation"}, ["the rows have no instance"]),
    ],
)
def test_rows_that_cannot_be_compared_are_refused_by_the_name_of_their_group(name, changes, options, says):
    with pytest.raises(DataError) as refused:
        compute_advantages(name, batch(**changes), AdvantageOptions(**options))
    assert all(words in str(refused.value) for words in says)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"turn": [0, 0]}, "turn has 2 rows"),
        ({"penalty": torch.zeros(3)}, "penalty has 3 rows"),
        ({"padding": torch.zeros(3, dtype=torch.bool)}, "padding has 3 rows"),
        ({"padding": torch.zeros(4)}, "padding is torch.float32"),
        ({"scores": torch.zeros(4, 2)}, "one real score per row"),
        ({"scores": torch.zeros(4, dtype=torch.long)}, "one real score per row"),
    ],
)
def test_a_malformed_record_is_refused_when_it_is_made(changes, message):
    with pytest.raises(DataError, match=message):
        batch(**changes)


def test_an_error_is_pickled_whole():
    with pytest.raises(DataError) as caught:
        compute_advantages("at_grpo", batch(prompt=[1, 2, 3, 4]))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    "labels",
    [
        {"session": torch.tensor([5, 5, 9, 9]), "branch": torch.tensor([0, 1, 0, 1]).numpy()},
        {"prompt": [(1, 2), (1, 2), (3, 4), (3, 4)]},
    ],
)
def test_labels_may_be_lists_arrays_integer_tensors_or_token_ids(labels):
    plain = compute_advantages("at_grpo", batch(), AdvantageOptions(group_size=2)).advantages
    assert torch.equal(compute_advantages("at_grpo", batch(**labels)).advantages, plain)


def test_a_batch_of_padding_only_has_no_groups():
    output = compute_advantages("agent_grpo", batch(padding=torch.ones(4, dtype=torch.bool)))
    assert output.advantages.tolist() == [0.0] * 4
    assert output.metrics == {}


def test_the_main_agent_of_rao_is_one_of_the_team():
    rows = AdvantageInput(torch.ones(2), task=["t"] * 2, session=[0, 1], agent=["solver_0"] * 2, instance=[1, 1])
    with pytest.raises(DataError, match=r"main=solver(?s:.*)did you mean 'solver_0'"):
        compute_advantages("rao", rows, AdvantageOptions(main="solver"))
    # If all acts of the main agent failed, the step has none of its rows, so nothing can be compared.
    failed = replace(rows, agents=["solver_0", "solver_1"], agent=["solver_1"] * 2)
    assert compute_advantages("rao", failed, AdvantageOptions(main="solver_0")).advantages.tolist() == [0, 0]
