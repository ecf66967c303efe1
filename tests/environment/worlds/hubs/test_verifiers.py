"""Environments of verifiers 0.4.0, written as in its documentation: which agents act, what is rewarded and refused."""

import asyncio
import json
import os
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import toy_worlds

from verl_mas.cli.data.verifiers import numbered
from verl_mas.config.schema import FaultSpec
from verl_mas.data.dataset import Prepared
from verl_mas.data.verifiers import compute_score
from verl_mas.errors import ConfigError, DataError, SessionFault
from verl_mas.gateway.host import host_of
from verl_mas.testing.scripted_llm import ScriptedLLM, calls
from verl_mas.workflow import Task
from verl_mas.workflow.run import run
from verl_mas.workflows.verifiers import NUMBER, Verifiers

vf = pytest.importorskip("verifiers.v1")
FOLDER = str(Path(toy_worlds.__file__).with_name("verifiers_tasks"))
LETTERS = "abcdefgh"


def team(taskset, **settings):
    return Verifiers(taskset=taskset, folder=FOLDER, **settings)


def played(workflow, replies, number=0):
    llm = ScriptedLLM(replies)
    session = run(workflow, replace(Task.of("played by the environment"), extra_info={NUMBER: number}), llm)
    return session, [[(each["role"], each["content"]) for each in request.messages] for request in llm.requests]


def earned(session):
    return [(reply.agent, reply.text, reply.team_reward) for reply in session.replies]


@pytest.fixture(scope="module")
def program():
    """The program that plays, in this process."""
    from verl_mas.environment.worlds import verifiers_program

    return verifiers_program


def own_score(program, workflow, number, text):
    """Return the reward that verifiers gives a reply to a task, without a rollout."""
    task = program.environment(json.dumps(workflow.settings({}), sort_keys=True)).tasks[number]
    about = vf.TraceTask(type=type(task).__name__, data=task.data)
    trace = vf.Trace(task=about, agent=vf.AgentInfo(config=vf.AgentConfig()), root_reply=text)
    asyncio.run(task.score(trace))
    return trace.reward


def test_episodes_of_one_turn_are_scored_as_verifiers_scores_them(program):
    workflow, chance = team("reverse_word", options={"words": False}), random.Random(0)
    word = program.environment(json.dumps(workflow.settings({}), sort_keys=True)).tasks[5].data.word
    random_ones = [(chance.randrange(64), "".join(chance.choices(LETTERS, k=chance.randrange(6)))) for _ in range(100)]
    for number, text in [*random_ones, (5, word[::-1])]:
        session, asked = played(workflow, text, number)
        assert session.team_reward == own_score(program, workflow, number, text) == session.replies[0].team_reward
    assert asked == [[("user", word)]] and session.team_reward == pytest.approx(1.0)
    assert session.info["right_letters"] == session.info["exact"] == 1.0 and session.info["length"] == 3.0


def test_turns_of_an_environment_are_one_row():
    session, asked = played(team("higher_lower", agents=["player"]), ["5", "not a number", "3", "9"], 3)
    assert [reply.row for reply in session.replies] == [0, 0, 0]
    assert [content for role, content in asked[-1] if role == "user"][1:] == ["Lower.", "Not a number."]
    assert session.info["guesses"] == 3.0 and session.info["illegal"] == 1.0 and session.team_reward == 0.5


def test_a_context_that_is_full_ends_a_rollout_which_is_scored():
    workflow = team("higher_lower", agents=["player"], tolerate=["limit"])
    task, limited = replace(Task.of(""), extra_info={NUMBER: 3}), FaultSpec(max_acts=2, retries=0)
    session = run(workflow, task, ScriptedLLM(["5", "x"]), faults=limited)
    assert [reply.team_reward for reply in session.replies] == [0.0, 0.0] and session.info["illegal"] == 1.0
    with pytest.raises(SessionFault, match="2 acts"):
        run(team("higher_lower", agents=["player"]), task, ScriptedLLM("x"), faults=limited)


@pytest.fixture
def uv(tmp_path, monkeypatch):
    """Replace `uv`, with which verifiers prepares its programs, by a script that returns this Python environment."""
    program = tmp_path / "uv"
    program.write_text(f'#!/bin/sh\n[ "$1" = sync ] || echo {sys.executable}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    host_of(sys.executable).end()
    yield
    host_of(sys.executable).end()


@pytest.mark.timeout(300)
def test_tools_are_called_where_verifiers_runs_them_as_by_its_own_program(uv):
    called = [calls(("stock_count", given)) for given in ({"thing": "pears"}, "[1", "[1]")]
    replies = [*called, calls(("sell", {})), "7"]
    session, asked = played(team("stock_room"), replies, 1)
    results = [content for role, content in asked[-1] if role == "tool"]
    assert asked[0] == [("system", "Use the tool."), ("user", "How many pears?")] and results[0] == "7"
    assert session.team_reward == 1.0 and {reply.row for reply in session.replies} == {0}
    own = {"agent": {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}}
    same, also_asked = played(team("stock_room", environment=own), replies, 1)
    assert also_asked == asked and same.team_reward == 1.0 and {reply.row for reply in same.replies} == {0}


def test_each_seat_has_the_reward_of_its_rollout():
    seats = team("split_coins", agents=["giver", "taker"])
    session, asked = played(seats, {"giver": "4", "taker": "yes"}, 2)
    assert earned(session) == [("giver", "4", 6.0), ("taker", "yes", 4.0)] and session.team_reward == 5.0
    assert asked[1] == [("user", "You get 4 of 10 coins: yes or no?")] and session.info["reward_taker"] == 4.0
    refused, _ = played(seats, {"giver": "eleven", "taker": "yes"}, 2)
    assert refused.info["illegal"] == 1.0 and refused.team_reward == 0.0


def test_attempts_of_a_seat_have_their_own_rewards_and_a_seat_that_is_not_trained_has_none(program):
    attempts = team("reverse_word", environment={"id": "best-of-n", "n": 2})
    word = program.environment(json.dumps(attempts.settings({}), sort_keys=True)).tasks[0].data.word
    session, _ = played(attempts, ["", word[::-1]])
    assert [reward for _, _, reward in earned(session)] == [0.0, 1.0] and session.info["pass_at_n"] == 1.0
    users = team("reverse_word", agents=["user", "assistant"], environment={"id": "user-sim"})
    session, _ = played(users, {"user": ["Reverse it.", "###DONE###"], "assistant": word[::-1]})
    assert [reply.trainable for reply in session.replies] == [False, True, False] and session.team_reward == 1.0


@pytest.mark.parametrize(
    ("taskset", "settings", "says"),
    [
        ("no_such_taskset", {}, "taskset 'no_such_taskset' not found"),
        ("reverse_word", {"options": {"lenght": 3}}, "taskset.lenght; Extra inputs are not permitted"),
        ("reverse_word", {"environment": {"id": "no-such"}}, "environment 'no-such' not found"),
        ("split_coins", {}, r"no seats \['agent'\]; the seats are giver, taker"),
        ("split_coins", {"agents": ["giver"]}, r"the seats \['taker'\] are no agents"),
        ("reverse_word", {"environment": {"max_concurrent_agents": 2}}, "set 1, so that acts have an order"),
        ("reverse_word", {"python": "/no/such/python"}, "python=/no/such/python"),
    ],
)
def test_a_taskset_that_cannot_be_played_is_refused_before_a_run(taskset, settings, says):
    with pytest.raises(ConfigError, match=says):
        team(taskset, **settings).check()


def test_a_row_names_a_task_that_there_is():
    with pytest.raises(SessionFault, match="there is no task 64: the taskset has 64"):
        played(team("reverse_word"), "x", 64)
    with pytest.raises(SessionFault, match="verl-mas data verifiers reverse_word"):
        run(team("reverse_word"), Task.of("x"), ScriptedLLM("x"))


def test_an_environment_that_raises_is_a_fault_with_its_words():
    with pytest.raises(SessionFault, match=r"SplitEnv.run\(\) exceeded its 1e-06s deadline"):
        played(team("split_coins", agents=["giver", "taker"], environment={"timeout": {"episode": 1e-6}}), "4")


def test_rows_of_a_taskset_are_apart_and_one_without_an_end_is_not_read_to_its_end(tmp_path):
    prompts = team("higher_lower", agents=["player"]).prompts(5)
    rows = numbered("higher_lower", prompts, '{"most": 9}')
    Prepared(rows[2:], rows[:2], rows[:2]).write(tmp_path)
    assert len({row.key for row in rows}) == 5 and rows[3].row(1, "train")["extra_info"][NUMBER] == 3


async def test_the_answer_of_any_team_is_scored_without_a_rollout(program):
    workflow = team("reverse_word", options={"words": False})
    row = numbered("reverse_word", ["hat"] * 8, '{"words": false}')[7].row(0, "test")
    for text in ("", "a", "".join(LETTERS)):
        given = compute_score(row["data_source"], text, "", row["extra_info"], folder=FOLDER)
        assert (await given)["score"] == await asyncio.to_thread(own_score, program, workflow, 7, text)
    with pytest.raises(DataError, match="verl-mas data verifiers TASKSET"):
        await compute_score("gsm8k", "x", "", {})


@pytest.mark.e2e
def test_an_environment_of_two_seats_trains_two_policies(main_ppo, tmp_path):
    workflow = team("split_coins", agents=["giver", "taker"])
    rows = numbered("split_coins", workflow.prompts(12), "{}")
    Prepared(rows[4:], rows[:4], rows[:4]).write(tmp_path)
    run = (
        "algorithm.adv_estimator=agent_grpo data.train_batch_size=4 data.max_prompt_length=256 "
        "data.val_max_samples=4 actor_rollout_ref.actor.ppo_mini_batch_size=4 actor_rollout_ref.rollout.n=4 "
        "trainer.test_freq=-1 trainer.total_training_steps=3 mas.updates_per_step=1 +mas=verifiers "
        "mas.policies={main:{},other:{}} mas.agents={taker:{policy:other}} mas.workflow.check_timeout_s=300 "
        f"mas.workflow.args={{taskset:split_coins,folder:'{FOLDER}',agents:[giver,taker]}} "
        f"data.train_files={tmp_path}/train.parquet data.val_files={tmp_path}/test.parquet"
    )
    done = main_ppo(tmp_path / "run", *run.split())
    assert done.exit_code == 0 and len(done.steps) == 3, done.output[-6000:]
    for metrics in done.steps.values():
        assert metrics["session/dropped"] == metrics["session/retried"] == 0
        assert metrics["policy/main/rows/real"] == metrics["policy/other/rows/real"] == 16
        assert all(value < 1e-6 for name, value in metrics.items() if name.endswith("rollout_probs_diff_max"))
