"""Teams on puzzles: their prompts, the scores of candidates, and which candidate is executed."""

import pytest
from in_process_programs import NAME
from played import played, task_of

from verl_mas.config.hydra.recipe.at_grpo.team import ToolUserPlanner
from verl_mas.environment.execution.executor import Execution
from verl_mas.gym.puzzles.puzzle import board, row
from verl_mas.gym.puzzles.teams import PlannerExecutor, SinglePlayer
from verl_mas.util.splits import TRAIN

SIZE = {"size": 5, "min_distance": 4}
KINDS = {"plan_path": SIZE, "sokoban": SIZE, "sudoku": {"size": 4, "blanks": 4}}


def play(workflow, replies, k=1, name="plan_path", seed=0):
    return played(workflow, task_of(row(name, seed, TRAIN, KINDS[name])), replies, k)


def puzzle_of(name: str = "plan_path", seed: int = 0):
    return board(name, seed, TRAIN, KINDS[name])


def best(name: str, workflow):
    """Make replies that track the board: each act gets the best action."""
    puzzle = puzzle_of(name)
    stepping, actions = workflow.agents[-1], []

    def say(request, branch):
        if branch == 0:
            actions.append(puzzle.best_actions()[0])
            if request.agent == stepping:
                puzzle.step(actions[-1])
        return workflow.codec(puzzle).render([actions[-1]])

    return say


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("kind", [PlannerExecutor, SinglePlayer])
@pytest.mark.parametrize("text", ["words", "compact"])
def test_a_team_with_the_best_actions_solves_the_board_in_the_fewest_turns(name, kind, text):
    workflow = kind(moves=1, max_turns=30, text=text)
    session, _ = play(workflow, best(name, workflow), name=name)
    length = puzzle_of(name).initial_distance
    assert session.info == {"acc": 1.0, "turns": length} and session.team_reward == 1.0
    assert len(session.replies) == length * len(workflow.agents)


def test_the_executor_sees_the_committed_sketch_and_every_prompt_shows_the_current_state():
    workflow = PlannerExecutor(moves=1, max_turns=3)
    _, prompts = play(workflow, best("plan_path", workflow), k=2)
    twin = puzzle_of()
    for plan, execute in zip(prompts[::2], prompts[1::2], strict=True):
        action = twin.best_actions()[0]
        assert twin.render() in plan and twin.render() in execute and f"proposes: {action}" in execute
        twin.step(action)


def candidates(request, branch):
    """Candidate 0 does not move, 1 takes the best action, 2 is malformed."""
    puzzle = puzzle_of()
    wall = next(move for move in "UDLR" if move not in puzzle.legal_actions())
    return [wall, puzzle.best_actions()[0], "hm"][branch]


def test_every_candidate_is_scored_on_its_own_copy_and_the_best_alone_is_stepped():
    session, _ = play(PlannerExecutor(moves=1, max_turns=1, text="compact"), candidates, k=3)
    length = puzzle_of().initial_distance
    for agent in ("planner", "executor"):
        wall, good, noise = [reply for reply in session.replies if reply.agent == agent]
        assert [wall.reward, good.reward, noise.reward] == pytest.approx([-0.1, 0.8, -0.2])
        assert [wall.team_reward, good.team_reward, noise.team_reward] == pytest.approx([0, 1 / length, 0])
        assert [reply.committed for reply in (wall, good, noise)] == [False, True, False]
        assert noise.malformed and not wall.malformed
    moved = puzzle_of()
    assert moved.step(moved.best_actions()[0]) and session.answer == moved.render()


def test_without_branching_the_session_and_not_the_act_has_the_team_reward():
    workflow = PlannerExecutor(moves=1, max_turns=2)
    session, _ = play(workflow, best("plan_path", workflow))
    assert all(reply.team_reward is None for reply in session.replies)
    assert session.team_reward == pytest.approx(2 / puzzle_of().initial_distance) and session.info["acc"] == 0.0


def test_sparse_reward_is_zero_until_the_goal():
    workflow = PlannerExecutor(moves=1, max_turns=2, reward="sparse")
    session, _ = play(workflow, best("plan_path", workflow), k=2)
    assert {(r.reward, r.team_reward) for r in session.replies} == {(0.0, 0.0)} and session.team_reward == 0.0
    solved = PlannerExecutor(moves=1, max_turns=30, reward="sparse")
    assert play(solved, best("plan_path", solved), k=2)[0].team_reward == 1.0


def test_a_lost_game_ends_the_session():
    seed, move = next((seed, move) for seed in range(200) for move in dead_first_moves(puzzle_of("sokoban", seed)))
    session, _ = play(SinglePlayer(moves=1, text="compact"), move, name="sokoban", seed=seed)
    assert session.info == {"acc": 0.0, "turns": 1} and session.team_reward == 0.0


def dead_first_moves(puzzle):
    for move in puzzle.legal_actions():
        after = puzzle.copy()
        after.step(move)
        if after.distance() is None:
            yield move


def test_the_planner_decides_on_what_the_program_printed():
    good = puzzle_of().best_actions()[0]
    programs = "print(1 // 0)", f"print('<actions>{good}</actions>')"
    replies = *(f"```python\n{program}\n```" for program in programs), "no code"
    of_team = {"tool_user": lambda request, branch: replies[branch], "planner": f"<actions>{good}</actions>"}
    workflow = ToolUserPlanner(moves=1, max_turns=1, execution=Execution(executor=NAME))
    session, prompts = play(workflow, of_team, k=3)
    failed, printed, no_code = session.replies[:3]
    assert [failed.reward, printed.reward, no_code.reward] == pytest.approx([-0.1, 0.8, -0.2])
    assert no_code.malformed and not failed.malformed
    assert f"printed: {good}" in prompts[-1]
    assert session.team_reward == pytest.approx(1 / puzzle_of().initial_distance)
