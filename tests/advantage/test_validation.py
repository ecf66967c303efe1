from __future__ import annotations

import pickle

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


def refused(name, rows, options=None):
    with pytest.raises(DataError) as caught:
        compute_advantages(name, rows, options)
    return str(caught.value)


def test_a_sound_batch_passes():
    compute_advantages("at_grpo", batch(), AdvantageOptions(group_size=2))


def test_candidates_of_different_prompts_are_refused_by_their_groups_name():
    message = refused("at_grpo", batch(prompt=[11, 11, 12, 13]))
    assert "task 'maze 7', session 1, agent 'planner', turn 0" in message
    assert "different prompts" in message


def test_a_group_of_the_wrong_size_is_refused_by_its_name():
    message = refused("at_grpo", batch(), AdvantageOptions(group_size=3))
    assert "task 'maze 7', session 0, agent 'planner', turn 0 has 2 candidates, not 3" in message


def test_a_lone_candidate_of_an_agent_that_should_branch_is_refused():
    padding = torch.tensor([False, False, False, True])
    assert "has 1 candidates, not 2" in refused("at_grpo", batch(padding=padding), AdvantageOptions(group_size=2))


def test_an_unknown_agent_is_refused_by_name_with_the_likely_agent():
    rows = batch(agent=["planner", "planner", "planer", "planner"], agents=["planner", "tool"])
    message = refused("agent_grpo", rows)
    assert "agent 'planer'" in message
    assert "did you mean 'planner'" in message


@pytest.mark.parametrize("name", ["agent_grpo", "team_grpo", "at_grpo", "agent_rloo"])
def test_a_copied_row_is_refused_by_its_acts_name(name):
    message = refused(name, batch(branch=[0, 1, 1, 1]))
    assert "task 'maze 7', session 1, agent 'planner', turn 0, branch 1 is in the batch more than once" in message


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_score_that_is_no_number_is_refused_by_its_acts_name(value):
    message = refused("agent_grpo", batch(scores=torch.tensor([1.0, 0.0, value, 0.0])))
    assert "session 1" in message and str(value) in message


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_missing_label_is_refused_and_never_a_group_of_its_own(missing):
    assert "row 2 has no agent" in refused("agent_grpo", batch(agent=["planner", "planner", missing, "planner"]))


def test_a_missing_column_is_refused_with_the_fix():
    assert "the rows have no observation" in refused("agent_gigpo", batch())
    assert "weighting=per_act" in refused("agent_reinforce_pp", batch())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"turn": [0, 0]}, "turn has 2 rows"),
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


def test_labels_may_be_lists_arrays_or_integer_tensors():
    plain = compute_advantages("at_grpo", batch()).advantages
    tensors = batch(session=torch.tensor([5, 5, 9, 9]), branch=torch.tensor([0, 1, 0, 1]).numpy())
    assert torch.equal(compute_advantages("at_grpo", tensors).advantages, plain)


def test_a_prompt_may_be_named_by_its_token_ids():
    rows = batch(prompt=[(1, 2), (1, 2), (3, 4), (3, 4)])
    compute_advantages("at_grpo", rows)
    refused("at_grpo", batch(prompt=[(1, 2), (1, 9), (3, 4), (3, 4)]))


def test_a_batch_of_padding_only_has_no_groups():
    output = compute_advantages("agent_grpo", batch(padding=torch.ones(4, dtype=torch.bool)))
    assert output.advantages.tolist() == [0.0] * 4
    assert output.metrics == {}


def test_groups_by_role_need_the_rows_roles():
    message = refused("agent_grpo", batch(), AdvantageOptions(by="role"))
    assert "the rows have no role" in message and "mas.advantage.by=agent" in message


def test_invocations_are_counted_only_where_rows_name_their_instance():
    assert "the rows have no instance" in refused("agent_grpo", batch(), AdvantageOptions(weighting="per_invocation"))


def test_a_main_agent_that_is_not_of_the_team_is_refused():
    rows = batch(instance=[0] * 4, agents=["planner", "tool"])
    message = refused("hierarchical_grpo", rows, AdvantageOptions(main="planer"))
    assert "the main agent planer" in message and "did you mean 'planner'" in message
