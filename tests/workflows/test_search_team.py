"""Search teams: a loop of verifier and searcher, and the chain of rewriter, reranker and answerer with its forks."""

from dataclasses import replace

import httpx
import pytest

pytest.importorskip("tantivy")

from scripted_sessions import acts_of, prompts_of
from scripted_sessions import play as play_workflow

import verl_mas.workflows.search_team as search_team
from verl_mas.config.hydra.recipe.search.chain import SearchChain
from verl_mas.environment.retrieval.client import Breaker, RetrieverClient
from verl_mas.errors import ConfigError, SessionFault
from verl_mas.rollout.truncation import fit
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow import Task
from verl_mas.workflows.search_team import SearchTeam

TASK = Task([{"role": "user", "content": "What is the birthplace of the founder of Brel?"}], ground_truth=["Tazor"])
YES, NO = "<verify>yes</verify>", "<verify>no</verify>"


def play(index: str, verifier, searcher, answerer="<answer>Tazor</answer>", task=TASK, **args):
    replies = {"verifier": verifier, "searcher": searcher, "answerer": answerer}
    return play_workflow(SearchTeam(retriever=index, **args), replies, task)


def length(messages) -> int:
    return sum(len(message["content"]) for message in messages)


def joined(messages) -> str:
    return "".join(message["content"] for message in messages)


def agents(session) -> list[str]:
    return [reply.agent for reply in session.replies]


def test_the_verifier_sends_the_question_to_the_searcher_until_it_has_enough(index):
    session, llm = play(index, [NO, NO, YES], ["<search>founder of Brel</search>", "<search>Aiko born</search>"])
    assert agents(session) == ["verifier", "searcher", "verifier", "searcher", "verifier", "answerer"]
    assert session.team_reward == 1.0
    repeated = {"repeated_queries": 0, "repeated_query_share": 0.0}
    assert session.info == {"em": 1.0, "f1": 1.0, "searches": 2, **repeated}
    seen = joined(llm.requests[-1].messages)
    assert "Brel was founded by Aiko." in seen and "Aiko was born in Tazor." in seen
    assert seen.index("founder of Brel</search>") < seen.index("Aiko born</search>")


def test_with_enough_evidence_at_once_the_answer_follows(index):
    assert agents(play(index, YES, "")[0]) == ["verifier", "answerer"]


def test_the_last_turn_always_answers(index):
    session, _ = play(index, NO, "<search>Brel</search>", max_turns=3)
    assert agents(session) == ["verifier", "searcher"] * 2 + ["answerer"]
    assert session.info["repeated_queries"] == 1 and session.info["repeated_query_share"] == 0.5


@pytest.mark.parametrize("verdict", ["", "yes", "<verify>maybe</verify>", "<verify>yes</verify><verify>no</verify>"])
def test_an_unreadable_verdict_does_not_mean_enough(index, verdict):
    session, _ = play(index, verdict, "<search>Brel</search>", max_turns=2)
    assert agents(session) == ["verifier", "searcher", "answerer"]
    assert session.replies[0].malformed


def test_an_unreadable_query_starts_no_search(index):
    session, llm = play(index, NO, "Brel", max_turns=2)
    assert session.info["searches"] == 0 and session.replies[1].malformed
    assert "<information>" not in str(llm.requests[-1].messages)


def test_an_unreadable_answer_has_reward_0(index):
    session, _ = play(index, YES, "", answerer="Tazor")
    assert session.info["repeated_query_share"] == 0.0
    assert session.team_reward == 0.0 and session.replies[-1].malformed and session.answer == ""


def test_the_score_may_be_f1(index):
    session, _ = play(index, YES, "", answerer="<answer>city of Tazor</answer>", score="f1")
    assert session.team_reward == pytest.approx(0.5) and session.info["em"] == 0.0


def test_truncation_keeps_the_question_and_the_newest_evidence(index):
    _, llm = play(index, NO, [f"<search>{w}</search>" for w in ("Brel", "Aiko", "Tazor")], max_turns=4)
    messages = llm.requests[-1].messages
    text = joined(fit(messages, length(messages) - 10, "drop_oldest", length))
    assert TASK.question in text and "<search>Tazor</search>" in text and search_team.REPLY in text
    assert "<search>Brel</search>" not in text and "<search>Aiko</search>" in text
    assert text.count("<search>") == text.count("<information>") == 2


def test_a_failing_retriever_fails_the_session(monkeypatch):
    down = httpx.MockTransport(lambda request: httpx.Response(503))

    def unreachable(where, topk, timeout_s):
        return RetrieverClient(where, transport=down, retries=0, breaker=Breaker(threshold=1))

    monkeypatch.setattr(search_team, "source", unreachable)
    llm = ScriptedLLM({"verifier": NO, "searcher": "<search>Brel</search>"})
    with pytest.raises(SessionFault, match=r"retriever: http://r/retrieve: HTTP 503"):
        play_workflow(SearchTeam(retriever="http://r/retrieve"), llm, TASK)
    assert [request.agent for request in llm.requests] == ["verifier", "searcher"]


def test_an_unreachable_retriever_and_a_missing_index_are_refused_at_start(tmp_path):
    with pytest.raises(ConfigError, match=r"http://127\.0\.0\.1:9/retrieve"):
        SearchTeam(retriever="http://127.0.0.1:9/retrieve").check()
    with pytest.raises(ConfigError, match="retriever build"):
        SearchTeam(retriever=str(tmp_path / "none")).check()


REWRITES = "<search>founder of Brel\nAiko born</search>"


def chain(
    index, *, rewriter=REWRITES, reranker="<keep>2 1</keep>", answerer="<answer>Tazor</answer>", k=1, task=TASK, **args
):
    replies = {"rewriter": rewriter, "reranker": reranker, "answerer": answerer}
    return play_workflow(SearchChain(retriever=index, topk=2, **args), replies, task, k=k, commit="first")


def test_each_agent_acts_once_on_what_the_one_before_it_found(index):
    session, llm = chain(index)
    assert [reply.agent for reply in session.replies] == ["rewriter", "reranker", "answerer"]
    _, listed, kept = prompts_of(llm)
    assert "(1) Brel: Brel was founded by Aiko." in listed and "Aiko was born in Tazor." in listed
    # The passages have the order of the reranker and new numbers.
    assert kept.index("(1) ") < kept.index("(2) Brel") and "(3)" not in kept
    assert session.team_reward == 1.0 and session.info == {"em": 1.0, "f1": 1.0}


@pytest.mark.parametrize("reply", ["", "<keep>all</keep>", "<keep>0 9</keep>"])
def test_a_selection_that_cannot_be_read_selects_nothing(index, reply):
    _, llm = chain(index, reranker=reply)
    assert "Nothing was found." in prompts_of(llm)[-1]


def test_a_chain_without_an_answer_has_no_reward(index):
    session, _ = chain(index, rewriter="", answerer="Tazor")
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
        session, _ = chain(index, rewriter=rewrites, reranker=keeps, answerer=by_fork, k=3, task=task, fork=fork)
        counts = tuple(len(acts_of(session, name)) for name in SearchChain.agents)
        shapes.add(counts)
        last = acts_of(session, "answerer")
        assert sorted(reply.branch for reply in last) == [0, 1, 2] and session.team_reward == 1.0
        assert all(reply.team_reward == float("Tazor" in reply.text) for reply in last)
    assert shapes == ({(3, 3, 3)} if fork == "first" else {(3, 3, 3), (1, 3, 3), (1, 1, 3)})
