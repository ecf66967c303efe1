"""The workflow `world` in a toy world: who acts, what each act is rewarded with, copies, opponents."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from played import played
from toy_worlds import TOY

from verl_mas.config.user_code import load_module
from verl_mas.environment.worlds import Observation
from verl_mas.errors import ConfigError, SessionFault
from verl_mas.workflow import Task
from verl_mas.workflows.world import WorldTeam


def task(**fields):
    return replace(Task.of("play"), **fields)


def digits(request, branch):
    """Candidate b takes b. Candidate 0, which may be the only candidate of an act, takes 2."""
    return f"<action>{branch or 2}</action>"


def test_an_act_gets_the_rewards_of_its_player_to_the_end():
    session, prompts = played(WorldTeam(world=f"{TOY}/turns"), task(), digits)
    rewards = [(reply.agent, reply.team_reward) for reply in session.replies]
    assert rewards == [("left", 4.0), ("right", 4.0), ("left", 2.0), ("right", 2.0)]
    assert session.team_reward == 4.0 and session.answer == f"{TOY}/turns: left +4, right +4"
    assert session.info["reward_left"] == 4.0 and session.info["steps"] == 4 and session.info["turns"] == 4
    assert prompts[0] == (
        "turn 0 of left\n\nLegal actions: 0, 1, 2, 3, 4, 5\n\nPut your answer between <action> and </action>."
    )


def test_the_world_decides_what_an_illegal_action_costs():
    replies = {"left": ["no tags", "<action>9</action>"], "right": "<action>1</action>"}
    session, _ = played(WorldTeam(world=f"{TOY}/turns"), task(), replies)
    assert session.info["illegal_left"] == 2 and session.info["illegal_right"] == 0
    assert session.info["reward_left"] == -2 and session.info["reward_right"] == 2


def test_case_counts_where_it_distinguishes_actions():
    seen = Observation("a board of chess", legal=["bxc3", "Bxc3", "Kd2"])
    read = WorldTeam(world=f"{TOY}/turns", text="compact").read
    actions = [read(SimpleNamespace(text=text), seen) for text in ("bxc3", "Bxc3", " kd2 ", "no")]
    assert actions == ["bxc3", "Bxc3", "Kd2", "no"]


def test_a_conversation_is_one_row_with_new_observations():
    workflow = WorldTeam(world=f"{TOY}/turns", memory="conversation")
    session, prompts = played(workflow, task(), digits)
    assert [reply.row for reply in session.replies] == [0, 1, 0, 1]
    beginnings = [prompt.partition("\n")[0] for prompt in prompts]
    assert beginnings == ["turn 0 of left", "turn 1 of right", "right 2", "left 2"]
    assert not workflow.branches and "conversation" in workflow.fixed


def test_candidates_are_steps_of_copies_and_one_is_committed():
    workflow = WorldTeam(world=f"{TOY}/turns", options={"steps": 2})
    session, _ = played(workflow, task(), lambda request, branch: f"<action>{branch}</action>", k=3)
    assert [(reply.agent, reply.team_reward, reply.committed) for reply in session.replies] == [
        *(("left", float(number), number == 2) for number in range(3)),
        *(("right", float(number), number == 2) for number in range(3)),
    ]
    assert session.info["reward_left"] == 2.0


def test_a_continued_candidate_gets_the_return_of_its_player():
    workflow = WorldTeam(world=f"{TOY}/turns", options={"steps": 3}, continuations=2)
    session, _ = played(workflow, task(), lambda request, branch: f"<action>{branch + 1}</action>", k=2)
    first = [reply for reply in session.replies if reply.turn == 0 and reply.agent == "left" and not reply.probe]
    # One more act of `left` follows, in which the only candidate takes 1.
    assert [reply.team_reward for reply in first] == [2.0, 3.0]
    assert session.info["reward_left"] == 4.0


def test_the_chance_of_all_candidates_is_the_same_and_not_that_of_the_original():
    workflow = WorldTeam(world=f"{TOY}/chance", options={"steps": 1})

    def luck(seed, k):
        session, _ = played(workflow, task(extra_info={"world_seed": seed}), "<action>0</action>", k=k)
        return {reply.team_reward for reply in session.replies}

    copied = [luck(seed, k=4) for seed in range(6)]
    assert {len(rewards) for rewards in copied} == {1} and copied != [luck(seed, k=1) for seed in range(6)]


def test_a_world_without_copies_says_so(monkeypatch):
    workflow = WorldTeam(world=f"{TOY}/once")
    assert not workflow.branches and workflow.fixed == "once has no copies"
    with pytest.raises(ConfigError, match="once has no copies"):
        WorldTeam(world=f"{TOY}/once", continuations=1)
    workflow = WorldTeam(world=f"{TOY}/turns")
    assert workflow.branches
    monkeypatch.delattr(workflow.kind, "copy")
    assert not workflow.branches and "does not write `copy`" in workflow.fixed


@pytest.mark.parametrize(("number", "learner"), [(0, "left"), (1, "right")])
def test_the_learner_changes_players_and_the_reward_is_its_own(number, learner):
    workflow = WorldTeam(world=f"{TOY}/turns", opponent="past")
    replies = {"opponent": "<action>0</action>", learner: "<action>5</action>"}
    session, _ = played(workflow, task(session=number), replies)
    assert {reply.agent for reply in session.replies} == {learner, "opponent"} and session.team_reward == 10
    assert workflow.agents == ("left", "right", "opponent")


def test_a_player_without_an_llm_is_drawn_by_the_world_and_repeats_its_draws_in_validation():
    workflow = WorldTeam(world=f"{TOY}/turns", opponent="random", validation_opponent="random")
    sessions = [played(workflow, task(validate=True, uid=uid), "<action>1</action>")[0] for uid in "ab"]
    assert {reply.agent for session in sessions for reply in session.replies} == {"left"}
    assert sessions[0].answer == sessions[1].answer
    drawn = {played(workflow, task(uid=uid), "<action>1</action>")[0].answer for uid in "abcdef"}
    assert len(drawn) > 1


def test_a_row_names_its_seed_and_options_and_players_that_act_at_once_take_one_step():
    row = {"world_seed": 3, "world": "both", "world_options": '{"steps": 2}'}
    session, _ = played(WorldTeam(world=f"{TOY}/turns"), task(extra_info=row), digits)
    assert [reply.agent for reply in session.replies] == ["left", "right"] * 2 and session.info["steps"] == 2
    with pytest.raises(SessionFault, match="a row with index"):
        played(WorldTeam(world=f"{TOY}/turns"), task(extra_info={"index": 3}), digits)


@pytest.mark.parametrize("runs_in", ["thread", "process"])
def test_a_world_is_a_class_of_a_file_or_one_that_it_registers(tmp_path, runs_in):
    file = tmp_path / "mine.py"
    file.write_text(f"""
import sys
sys.path.append({str(Path(TOY).parent)!r})
from verl_mas.environment.worlds import register_world
from toy_worlds import Count

@register_world("mine_{runs_in}")
class Mine(Count):
    pass
""")
    load_module(str(file), "mas.plugins")
    for world in (f"{file}:Mine/both", f"mine_{runs_in}/both"):
        workflow = WorldTeam(world=world, options={"steps": 1}, runs_in=runs_in)
        session, _ = played(workflow, task(), digits)
        assert [reply.agent for reply in session.replies] == ["left", "right"]
    with pytest.raises(ConfigError, match="name a class of"):
        WorldTeam(world=f"{file}:sys")


@pytest.mark.parametrize(
    ("returns", "says"),
    [("self.nothing", "no attribute 'nothing'"), ("View({}, {})", "has no rewards of the players .'me'.")],
)
def test_a_check_plays_an_episode_of_legal_actions(tmp_path, returns, says):
    (tmp_path / "my_world.py").write_text(
        "from verl_mas import Observation, View, World\n"
        "class Mine(World):\n"
        "    @classmethod\n"
        "    def players(cls, setup): return ['me']\n"
        "    def start(self): return View({'me': Observation('?', ['go'])}, {'me': 0.0})\n"
        f"    def step(self, actions): return {returns}\n"
    )
    with pytest.raises((AttributeError, ValueError), match=says):
        WorldTeam(world=f"{tmp_path / 'my_world.py'}:Mine").check()
