"""A verifier decides whether the evidence is enough, and sends the question to a searcher or to an answerer."""

from collections.abc import Sequence
from typing import Literal

from verl_mas.config.values import Count, Positive
from verl_mas.environment.grading.qa import exact_match, f1, golden_answers, normalise
from verl_mas.environment.retrieval.client import PassageSource, check_source, source
from verl_mas.environment.retrieval.corpus import Passage
from verl_mas.environment.retrieval.index import TopK
from verl_mas.errors import FaultKind, SessionFault
from verl_mas.workflow import Choice, Malformed, Message, Outcome, Tag, Task, Team, register_workflow, with_instruction
from verl_mas.workflows._graded import WithGrader

QUERY, ANSWER = Tag("search"), Tag("answer")


class Enough(Choice, tag="verify"):
    YES = "yes"
    NO = "no"


class Searching(WithGrader):
    """Base of search teams: their source of passages and the score of their answer."""

    retriever: str = "http://127.0.0.1:8000/retrieve"
    """A `/retrieve` URL, or the folder of an index, which is then searched in this process."""

    topk: TopK = 3
    """Number of passages per search."""

    form: Literal["tag"] = "tag"
    """Form of the answer in a reply."""

    score: str = "em"
    """The grader whose score is the reward: em (exact match), f1 (overlap of words), or a grader of your own."""

    retriever_timeout_s: Positive = 30.0
    """Seconds that a search may take."""

    def check(self) -> None:
        check_source(self.retriever, self.topk)
        super().check()

    def source(self) -> PassageSource:
        """The source of passages for the searcher's queries."""
        return source(self.retriever, self.topk, self.retriever_timeout_s)

    def require_truth(self, task: Task) -> None:
        """Raise an error for a row without a ground truth, before an agent acts."""
        self.grader().read(task.ground_truth)
        golden_answers(task.ground_truth)

    async def scored(self, task: Task, answer: str, **info: float) -> Outcome:
        """Score an answer. Without an answer all scores are 0."""
        reward = em = overlap = 0.0
        if answer:
            grader, golden = self.grader(), golden_answers(task.ground_truth)
            reward = await grader(grader.read(task.ground_truth), answer) or 0.0
            em, overlap = exact_match(answer, golden), f1(answer, golden)
        return Outcome(answer=answer, reward=reward, info={"em": em, "f1": overlap, **info})


@register_workflow("search_team")
class SearchTeam(Searching):
    """A search team with at most `max_turns` turns. The last turn answers, so every session ends with an answer."""

    agents = ("verifier", "searcher", "answerer")
    max_turns: Count = 4
    """Maximum number of turns, including the answer."""

    async def run(self, task: Task, team: Team) -> Outcome:
        self.require_truth(task)
        passages = self.source()
        evidence: list[Message] = []
        queries: list[str] = []
        for _ in range(self.max_turns - 1):
            verdict = await team.verifier.act(with_evidence(task, evidence, ENOUGH))
            if verdict.parse(Enough) is Enough.YES:
                break
            search = await team.searcher.act(with_evidence(task, evidence, SEARCH))
            query = search.parse(QUERY)
            if isinstance(query, Malformed):
                continue
            queries.append(query)
            text = information(await retrieved(passages, query))
            evidence += [{"role": "assistant", "content": QUERY.render(query)}, {"role": "user", "content": text}]
        answer = (await team.answerer.act(with_evidence(task, evidence, REPLY))).parse(ANSWER)
        repeated = len(queries) - len({normalise(query) for query in queries})
        return await self.scored(
            task,
            "" if isinstance(answer, Malformed) else answer,
            searches=len(queries),
            repeated_queries=repeated,
            repeated_query_share=repeated / len(queries) if queries else 0.0,
        )


ENOUGH = (
    "Do not answer the question. Judge whether the information so far is enough to answer it, and say what is missing. "
    f"Without information it is never enough. {Enough.prompt()}"
)
SEARCH = (
    "Do not answer the question. Write one short search query for the next fact that is needed, "
    f"not one that has been searched for. {QUERY.prompt()}"
)
REPLY = (
    "Answer the question from the information so far, in as few words as will do: a name, a date, a number. "
    f"{ANSWER.prompt()}"
)


def with_evidence(task: Task, evidence: Sequence[Message], instruction: str) -> list[Message]:
    """Make messages from the question, all searches with their passages (oldest first), and the instruction.

    Each search is a separate turn, so `truncation: drop_oldest` drops whole searches, the oldest first, and keeps the
    question and the newest search.
    """
    return with_instruction([*task.messages, *evidence], instruction)


def information(passages: Sequence[Passage]) -> str:
    return f"<information>\n{listed(passages) or 'Nothing was found.'}\n</information>"


def listed(passages: Sequence[Passage]) -> str:
    return "\n".join(f"({number}) {p.title}: {p.text}" for number, p in enumerate(passages, 1))


async def retrieved(passages: PassageSource, query: str) -> Sequence[Passage]:
    result = await passages.search(query)
    if result.error is not None:
        # The team is not to blame for missing evidence, so the session fails with this cause and is not trained on.
        raise SessionFault(FaultKind.REFUSED, f"retriever: {result.error}")
    return result.passages
