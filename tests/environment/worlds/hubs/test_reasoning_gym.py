"""Tasks of reasoning-gym as worlds, compared with the library itself."""

from dataclasses import replace

import pytest
from played import played, task_of

from verl_mas.data.reasoning_gym import rows
from verl_mas.errors import ConfigError
from verl_mas.workflow import Task
from verl_mas.workflows.world import WorldTeam

gym = pytest.importorskip("reasoning_gym")


def world(task, **options):
    return WorldTeam(world=f"reasoning_gym/{task}", options=options)


def seeded(seed):
    return replace(Task.of("play"), extra_info={"world_seed": seed})


@pytest.mark.parametrize(
    ("task", "options"),
    [("chain_sum", {"max_terms": 3}), ("maze", {}), ("letter_counting", {"max_words": 8}), ("countdown", {})],
)
def test_rewards_and_questions_are_the_librarys_own(task, options):
    team = world(task, **options)
    assert team.agents == ("solver",) and team.branches
    own = gym.create_dataset(task, seed=0, size=64, **options)
    for seed in range(25):
        for answer in (own[seed]["answer"], own[(seed + 1) % 64]["answer"], "12"):
            session, prompts = played(team, seeded(seed), f"So \\boxed{{{answer}}}")
            assert session.team_reward == own.score_answer(answer, own[seed])
            assert prompts[0].startswith(own[seed]["question"].strip())


def test_a_row_of_the_data_set_is_the_same_question_for_every_workflow():
    (row,) = rows("chain_sum", 1, "train", 3, {"max_terms": 3})
    session, prompts = played(world("maze"), task_of(row), f"\\boxed{{{row['reward_model']['ground_truth']}}}")
    assert prompts == [row["prompt"][0]["content"]] and session.team_reward == 1.0
    assert (session.info["acc"], session.info["illegal_solver"]) == (1.0, 0.0)


def test_a_reply_without_a_box_is_illegal_and_one_on_which_the_verifier_raises_is_unchecked():
    session, _ = played(world("chain_sum"), seeded(0), "12")
    assert (session.team_reward, session.info["illegal_solver"], session.info["malformed"]) == (0.0, 1.0, 1.0)
    session, _ = played(world("prime_factorization"), seeded(0), "\\boxed{nonsense}")
    assert (session.team_reward, session.info["illegal_solver"], session.info["unchecked"]) == (0.0, 0.0, 1.0)


def test_candidates_are_scored_each_and_a_tiny_model_needs_no_box():
    team = WorldTeam(world="reasoning_gym/letter_counting", text="compact")
    answer = int(gym.create_dataset("letter_counting", seed=0, size=64)[5]["answer"])
    session, prompts = played(team, seeded(5), lambda request, branch: str(answer + branch), k=3)
    assert [reply.team_reward == 1.0 for reply in session.replies] == [True, False, False]
    assert prompts[0].endswith("?")


def test_an_invalid_setting_is_refused_before_the_run():
    with pytest.raises(ConfigError, match="MazeConfig"):
        world("maze", min_dist=-1).check()
