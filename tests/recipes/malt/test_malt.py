"""The tree of candidates, and the value of each act."""

import asyncio
import re

import pytest

pytest.importorskip("math_verify")

from scripted_sessions import APPROVE, REJECT, RIGHT, WRONG, prompts_of
from scripted_sessions import play as play_workflow

from verl_mas.config.hydra.recipe.malt.team import GenerateVerifyRefine
from verl_mas.testing.scripted_llm import ScriptedLLM


def play(replies, *, k=1, **args):
    return play_workflow(GenerateVerifyRefine(**args), replies, k=k)


def place_of(reply) -> str:
    return re.search(r"[<\[](\w+)[>\]]", reply.text)[1]


def numbered(request, branch):
    """Reply with the place in the tree. A refinement is right if the number of its proposal or its own number is 0."""
    before = re.findall(r"<(g\d(?:v\d)?)>", str(request.messages))
    path = f"{max(before, key=len, default='')}{request.agent[0]}{branch}"
    if request.agent == "generator":
        return f"<{path}> {RIGHT if branch == 1 else WRONG}"
    if request.agent == "verifier":
        return f"<{path}> {APPROVE if branch else REJECT}"
    return f"[{path}] {RIGHT if path[1] == '0' or path[-1] == '0' else WRONG}"


def test_without_branching_it_is_a_chain_of_three_and_the_refinement_is_the_answer():
    session, llm = play({"generator": WRONG, "verifier": REJECT, "refiner": RIGHT})
    assert [reply.agent for reply in session.replies] == ["generator", "verifier", "refiner"]
    assert session.answer == RIGHT and session.team_reward == 1.0
    assert {reply.team_reward for reply in session.replies} == {1.0}
    [asked] = prompts_of(llm, "refiner")
    assert f"An earlier solution:\n{WRONG}" in asked and f"wrote:\n{REJECT}" in asked
    assert session.info == {"acc": 1.0, "right_generated": 0.0, "unchecked": 0.0, "right_verdicts": 1.0}


def test_the_value_of_an_act_is_the_mean_of_its_leaves():
    session, _ = play(numbered, k=3)
    of = {place_of(reply): reply for reply in session.replies}
    assert len(of) == len(session.replies) == 3 + 9 + 27
    leaves = {path: float(reply.text.endswith(RIGHT)) for path, reply in of.items() if len(path) == 6}
    for path, reply in of.items():
        below = [value for leaf, value in leaves.items() if leaf.startswith(path)]
        assert reply.team_reward == pytest.approx(sum(below) / len(below)), path
    assert session.team_reward == pytest.approx(sum(leaves.values()) / 27) == session.info["acc"]


def test_the_siblings_of_one_prompt_are_one_group_whoever_answers_first():
    class Slow(ScriptedLLM):
        async def generate(self, request, n=1):
            await asyncio.sleep(0.02 if "<g0>" in str(request.messages) else 0.0)
            return await super().generate(request, n)

    for llm in (ScriptedLLM(numbered), Slow(numbered)):
        session, _ = play(llm, k=2)
        instances = {}
        for reply in session.replies:
            path = place_of(reply)
            assert reply.turn == 0 and reply.branch == int(path[-1])
            instances.setdefault((reply.agent, path[:-2]), set()).add(reply.instance)
        assert instances == {
            ("generator", ""): {0},
            **{("verifier", f"g{i}"): {i} for i in range(2)},
            **{("refiner", f"g{i}v{j}"): {2 * i + j} for i in range(2) for j in range(2)},
        }


@pytest.mark.parametrize(
    ("draft", "verdict", "checked", "earned"),
    [
        (RIGHT, APPROVE, (True, True), 0.3),
        (WRONG, "hm", (None, False), None),
    ],
)
def test_a_verdict_is_compared_with_the_truth_and_one_that_cannot_be_read_is_never_right(
    draft, verdict, checked, earned
):
    session, _ = play({"generator": draft, "verifier": verdict, "refiner": RIGHT}, verdict_reward=0.3)
    review = session.replies[1]
    assert session.outcome.verdicts == {"verifier": [checked]} and review.reward == earned
    assert (review.malformed is None) == (verdict != "hm") and session.team_reward == 1.0


def test_the_answer_is_at_the_end_of_the_committed_candidates():
    assert play(numbered, k=2)[0].answer.startswith("[g0v0r0]")
