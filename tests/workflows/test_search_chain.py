"""The chain of rewriter, reranker and answerer, and its forks."""

from dataclasses import replace

import pytest
from scripted_sessions import acts_of, prompts_of
from scripted_sessions import play as play_workflow

from verl_mas.config.hydra.recipe.search.chain import SearchChain
from verl_mas.workflow import Task

TASK = Task([{"role": "user", "content": "Where was the founder of Brel born?"}], ground_truth=["Tazor"])
REWRITES = "<search>founder of Brel\nAiko born</search>"


def play(
    index, *, rewriter=REWRITES, reranker="<keep>2 1</keep>", answerer="<answer>Tazor</answer>", k=1, task=TASK, **args
):
    replies = {"rewriter": rewriter, "reranker": reranker, "answerer": answerer}
    return play_workflow(SearchChain(retriever=index, topk=2, **args), replies, task, k=k, commit="first")


def test_each_agent_acts_once_on_what_the_one_before_it_found(index):
    session, llm = play(index)
    assert [reply.agent for reply in session.replies] == ["rewriter", "reranker", "answerer"]
    _, listed, kept = prompts_of(llm)
    assert "(1) Brel: Brel was founded by Aiko." in listed and "Aiko was born in Tazor." in listed
    # The passages have the order of the reranker and new numbers.
    assert kept.index("(1) ") < kept.index("(2) Brel") and "(3)" not in kept
    assert session.team_reward == 1.0 and session.info == {"em": 1.0, "f1": 1.0}


@pytest.mark.parametrize("reply", ["", "<keep>all</keep>", "<keep>0 9</keep>"])
def test_a_selection_that_cannot_be_read_selects_nothing(index, reply):
    _, llm = play(index, reranker=reply)
    assert "Nothing was found." in prompts_of(llm)[-1]


def test_without_an_answer_there_is_no_reward(index):
    session, _ = play(index, rewriter="", answerer="Tazor")
    assert session.team_reward == 0.0 and [bool(reply.malformed) for reply in session.replies] == [True, False, True]


def by_fork(request, branch):
    """Answer rightly only if the answerer read both passages."""
    return "<answer>Tazor</answer>" if "(2)" in request.messages[-1]["content"] else "<answer>Brel</answer>"


@pytest.mark.parametrize("fork", ["first", "round_robin"])
def test_the_candidates_of_one_agent_are_played_on_to_an_answer_each(index, fork):
    shapes = set()
    for number in range(9 if fork == "round_robin" else 1):
        rewrites = lambda request, branch: "<search>Brel</search>" if branch else REWRITES  # noqa: E731
        keeps = lambda request, branch: "<keep>1</keep>" if branch else "<keep>1 2</keep>"  # noqa: E731
        task = replace(TASK, session=number)
        session, _ = play(index, rewriter=rewrites, reranker=keeps, answerer=by_fork, k=3, task=task, fork=fork)
        counts = tuple(len(acts_of(session, name)) for name in SearchChain.agents)
        shapes.add(counts)
        last = acts_of(session, "answerer")
        assert sorted(reply.branch for reply in last) == [0, 1, 2] and session.team_reward == 1.0
        assert all(reply.team_reward == float("Tazor" in reply.text) for reply in last)
    assert shapes == ({(3, 3, 3)} if fork == "first" else {(3, 3, 3), (1, 3, 3), (1, 1, 3)})
