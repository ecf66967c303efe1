"""Teams on puzzles that continue their candidates, to score them or as forks."""

import itertools
import random

import pytest
from played import task_of

from verl_mas.config.schema import BranchSpec
from verl_mas.errors import ConfigError, SessionFault
from verl_mas.gym.puzzles.game import Play
from verl_mas.gym.puzzles.puzzle import board, row
from verl_mas.gym.puzzles.teams import PlannerExecutor, SinglePlayer
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.util.splits import TRAIN
from verl_mas.workflow.run import run

SIZE = {"size": 4, "min_distance": 3}
COMPACT = {"moves": 1, "text": "compact"}
UNIFORM = BranchSpec(k=4, commit="uniform")


def task(slip=0.0, seed=0, min_distance=3, **changes):
    return task_of(row("plan_path", seed, TRAIN, SIZE | {"slip": slip, "min_distance": min_distance}), **changes)


def puzzle_of(slip=0.0, seed=0, min_distance=3):
    return board("plan_path", seed, TRAIN, SIZE | {"slip": slip, "min_distance": min_distance})


def moves(seed=0):
    """Candidates 1 to 3 move down, left and right. Candidate 0, which may be the only candidate, moves at random."""
    rng = random.Random(seed)

    def say(request, branch):
        return rng.choice("UDLR") if branch == 0 else "UDLR"[branch]

    return ScriptedLLM(say)


def told(replies):
    return [(one.agent, one.turn, one.branch, one.committed, one.messages) for one in replies]


@pytest.mark.parametrize("kind", [PlannerExecutor, SinglePlayer])
@pytest.mark.parametrize("slip", [0.0, 0.4])
def test_acts_and_boards_of_the_session_are_the_same_with_and_without_continuations(kind, slip):
    def say(request, branch):
        return "UDLR"[(branch + request.turn) % 4]

    arguments = {**COMPACT, "max_turns": 3, "reward": "sparse"}
    plain = run(kind(**arguments), task(slip), ScriptedLLM(say), branch=UNIFORM)
    probed = run(kind(**arguments, continuations=2), task(slip), ScriptedLLM(say), branch=UNIFORM)
    assert told(one for one in probed.replies if not one.probe) == told(plain.replies)
    assert (plain.answer, plain.info) == (probed.answer, probed.info)
    assert len(probed.replies) > len(plain.replies)


def test_the_sketch_of_a_planner_is_played_on_by_the_executor_who_reads_it():
    workflow = PlannerExecutor(**COMPACT, max_turns=2, continuations=1)
    session = run(workflow, task(), moves(), branch=BranchSpec(k=4, commit="first"))
    sketches = [one for one in session.replies if one.agent == "planner" and one.turn == 0]
    readers = [one for one in session.replies if one.probe and one.agent == "executor" and one.turn == 0]
    assert [one.messages[-1]["content"].split()[-2] for one in readers] == [one.text for one in sketches]
    # After the executor's move, the planner of the next turn acts, and sees the new board.
    after = [one for one in session.replies if one.probe and one.agent == "planner"]
    assert {one.turn for one in after} == {1}


@pytest.mark.parametrize("continuations", [0, 1])
def test_a_score_knows_nothing_of_the_slips_of_the_session(continuations):
    """If scores used the session's slips, a greedy commit would choose a move that is not going to slip."""
    kept = promised = 0
    n = 80
    seed = next(seed for seed in range(99) if len(puzzle_of(0.4, seed).best_actions()) == 1)
    puzzle = puzzle_of(0.4, seed)
    [best] = puzzle.best_actions()
    for session in range(n):
        workflow = SinglePlayer(**COMPACT, max_turns=1, continuations=continuations)
        done = run(workflow, task(0.4, seed, session=session), ScriptedLLM(best), branch=BranchSpec(k=8))
        [one] = [one for one in done.replies if one.committed]
        promised += one.team_reward == pytest.approx(1 / puzzle.initial_distance)
        kept += done.team_reward == pytest.approx(1 / puzzle.initial_distance)
    # The best of eight candidates did not slip; the move of the session slips as often as any other move.
    assert promised / n > 0.95 and kept / n == pytest.approx(0.6, abs=0.2)


def test_a_fork_on_the_first_act_trains_every_course_to_its_end():
    session = run(PlannerExecutor(**COMPACT, max_turns=3, fork="first"), task(0.4), moves(), branch=UNIFORM)
    assert {(one.agent, one.turn, one.branch) for one in session.replies} >= {
        (agent, turn, branch) for agent in ("planner", "executor") for turn in (0, 1) for branch in range(4)
    }
    rewards = {branch: {one.team_reward for one in session.replies if one.branch == branch} for branch in range(4)}
    assert all(len(found) == 1 for found in rewards.values())
    [kept] = {one.branch for one in session.replies if one.committed}
    assert rewards[kept] == {session.team_reward} and not any(one.probe for one in session.replies)


def test_a_round_robin_forks_at_the_first_act_of_either_agent_and_shares_what_came_before():
    forking = set()
    for number in range(12):
        workflow = PlannerExecutor(**COMPACT, max_turns=2, fork="round_robin")
        session = run(workflow, task(session=number), moves(), branch=UNIFORM)
        first = [one for one in session.replies if one.agent == "planner" and one.turn == 0]
        forking.add("planner" if len(first) == 4 else "executor")
        if len(first) == 1:
            ends = {one.branch: one.team_reward for one in session.replies if one.agent == "executor"}
            assert first[0].team_reward == pytest.approx(sum(ends.values()) / 4)
        assert len([one for one in session.replies if one.agent == "executor" and one.turn == 0]) == 4
    assert forking == {"planner", "executor"}


def test_a_turn_that_asks_other_agents_when_it_is_called_again_is_refused():
    asked = itertools.cycle("ba")

    class Fickle(Play):
        agents = ("a", "b")

        async def turn(self, puzzle, choose):
            await choose(next(asked), puzzle, "x")
            return (await choose("a", puzzle, "x")).after

    with pytest.raises(SessionFault, match="act 0 of a turn was by a, and by b when"):
        run(Fickle(moves=1, max_turns=1, continuations=1), task(), moves(), branch=UNIFORM)


def test_forks_and_continuations_exclude_each_other():
    with pytest.raises(ConfigError, match="fork=first with mas"):
        SinglePlayer(fork="first", continuations=1)
