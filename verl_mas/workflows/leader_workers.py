"""A leader divides a task and spawns a worker for each part. It reads the reports, and delegates again or answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from verl_mas.config.values import Count, Positive
from verl_mas.environment.grading.forms import FORMS
from verl_mas.environment.retrieval.client import check_source, source
from verl_mas.environment.retrieval.index import TopK
from verl_mas.util.loops import together
from verl_mas.workflow import Codec, Malformed, Outcome, Reply, Task, Team, Workflow, register_workflow
from verl_mas.workflow.codecs import between, checked, visible
from verl_mas.workflow.task import with_instruction
from verl_mas.workflow.team import Prompt
from verl_mas.workflow.tools import Tools
from verl_mas.workflows._graded import WithVerlOrGrader
from verl_mas.workflows.search_team import listed, retrieved


@dataclass(frozen=True)
class Delegation:
    """The subtasks of one round, one per worker."""

    subtasks: tuple[str, ...]


@dataclass(frozen=True)
class FinalAnswer:
    """The answer of the team."""

    text: str


Move = Delegation | FinalAnswer


@dataclass(frozen=True)
class LeaderPlay:
    """The result of a play: the leader's last reply, the answer in it (None if it was unreadable), and the number of
    workers in each round."""

    last: Reply
    answer: str | None
    rounds: Sequence[int]

    @property
    def info(self) -> dict[str, object]:
        return {
            "rounds": len(self.rounds),
            "workers": sum(self.rounds),
            # Number of acts in sequence. The workers of a round act at the same time, so they count as one act.
            "critical_path": 1 + len(self.rounds) + sum(workers > 0 for workers in self.rounds),
        }


@dataclass(frozen=True)
class Moves:
    r"""Either `<subtask>...</subtask>`, once per worker, or an answer, such as `\boxed{...}`. A reply with both,
    with neither, or with too many subtasks is malformed."""

    at_most: int
    """Maximum number of subtasks in one reply. 0: only an answer is read."""

    form: Codec[str] = FORMS["box"]

    tag: ClassVar[str] = "subtask"

    def prompt(self) -> str:
        answer = self.form.prompt()
        if not self.at_most:
            return f"No further subtask can be delegated. {answer}"
        return (
            f"Either delegate: write {self._many}, each between <{self.tag}> and </{self.tag}>. "
            f"Each goes to a worker of its own that reads nothing else. Or answer: {answer}"
        )

    def render(self, value: Move) -> str:
        if isinstance(value, FinalAnswer):
            text = self.form.render(value.text)
        else:
            text = "\n".join(f"<{self.tag}>{subtask}</{self.tag}>" for subtask in value.subtasks)
        return checked(text, value, self.parse(text))

    def parse(self, text: str) -> Move | Malformed:
        subtasks = between(visible(text), f"<{self.tag}>", f"</{self.tag}>")
        if isinstance(subtasks, Malformed):
            return subtasks
        answer = self.form.parse(text)
        if not subtasks:
            return answer if isinstance(answer, Malformed) else FinalAnswer(answer)
        if not isinstance(answer, Malformed):
            return Malformed("subtasks and an answer")
        if not all(subtasks):
            return Malformed("an empty subtask")
        if len(subtasks) > self.at_most:
            return Malformed(f"{len(subtasks)} subtasks, not {self._many if self.at_most else 'an answer'}")
        return Delegation(tuple(subtasks))

    @property
    def _many(self) -> str:
        return "1 subtask" if self.at_most == 1 else f"1 to {self.at_most} subtasks"


class Delegating(Workflow):
    """Base of teams whose leader delegates up to `max_rounds` times, to up to `max_workers` workers each, then answers.

    The workers of a round act in parallel, each on its own prompt alone. The leader's acts are one conversation.
    Override `run`, which calls `play`, and the prompts and formats that raise NotImplementedError.
    """

    agents = ("leader", "worker")
    max_rounds: Count = 3
    """Maximum number of delegations. An unreadable delegation counts too, but reaches no worker."""

    max_workers: Count = 4
    """Maximum number of workers in one round."""

    def most_acts(self, k: int) -> int:
        return self.max_rounds * (1 + self.max_workers) + 1

    async def play(self, task: Task, team: Team) -> LeaderPlay:
        """Delegate and report until the leader answers, or has no delegations left."""
        leader = team.leader.conversation()
        prompt = self.opening(task)
        rounds: list[int] = []
        for left in reversed(range(self.max_rounds + 1)):
            reply = await leader.act(prompt)
            move = reply.parse(self.moves(task, left))
            if isinstance(move, FinalAnswer) or not left:
                break
            prompts = self.prompts(task, move) if isinstance(move, Delegation) else []
            tools = self.tools()
            replies = await together([partial(team.spawn("worker").act, each, tools=tools) for each in prompts])
            rounds.append(len(replies))
            prompt = self.following(task, move, [self.report(each) for each in replies], left - 1)
        return LeaderPlay(reply, move.text if isinstance(move, FinalAnswer) else None, rounds)

    def moves(self, task: Task, left: int) -> Codec[Move]:
        """The codec of the leader's reply, with `left` delegations left."""
        raise NotImplementedError

    def opening(self, task: Task) -> Prompt:
        """The leader's first prompt."""
        raise NotImplementedError

    def prompts(self, task: Task, delegation: Delegation) -> list[Prompt]:
        """The prompt of each worker."""
        raise NotImplementedError

    def tools(self) -> Tools:
        """The tools of a worker, in addition to those that `mas.agents.worker.tools` names."""
        return ()

    def report(self, reply: Reply) -> str:
        """The text of a worker's reply that the leader reads."""
        raise NotImplementedError

    def following(self, task: Task, move: Delegation | Malformed, reports: Sequence[str], left: int) -> Prompt:
        """The leader's prompt after a delegation, with `left` delegations left."""
        raise NotImplementedError


@register_workflow("leader_workers")
class LeaderWorkers(Delegating, WithVerlOrGrader):
    """Leader and workers are language models, so subtasks, reports and the answer are strings."""

    retriever: str | None = None
    """The source of the workers' search tool: a `/retrieve` URL, or the folder of an index, which is then searched in
    this process. null: workers have only the tools that mas.agents.worker.tools names."""

    topk: TopK = 3
    """Number of passages per search."""

    retriever_timeout_s: Positive = 30.0
    """Seconds that a search may take."""

    def check(self) -> None:
        super().check()
        if self.retriever is not None:
            check_source(self.retriever, self.topk)

    async def run(self, task: Task, team: Team) -> Outcome:
        graded = self.graded(task)
        played = await self.play(task, team)
        if graded.grader is None:
            return Outcome(answer=played.last, info=played.info)
        right = (await graded.grader(graded.truth, played.answer) or 0.0) if played.answer is not None else 0.0
        return Outcome(answer=played.answer, reward=right, info={"acc": right, **played.info})

    def moves(self, task: Task, left: int) -> Moves:
        return Moves(self.max_workers if left else 0, self.answer_form(task.data_source))

    def opening(self, task: Task) -> Prompt:
        return with_instruction(task.messages, f"{LEAD} {self.moves(task, self.max_rounds).prompt()}")

    def prompts(self, task: Task, delegation: Delegation) -> list[Prompt]:
        return [f"{WORK}\n\n{subtask}" for subtask in delegation.subtasks]

    def tools(self) -> Tools:
        if self.retriever is None:
            return ()
        passages = source(self.retriever, self.topk, self.retriever_timeout_s)

        async def search(query: str) -> str:
            """Search the corpus.

            Args:
                query: A short query for one fact.
            """
            return listed(await retrieved(passages, query))

        return [search]

    def report(self, reply: Reply) -> str:
        text = visible(reply.text).strip()
        if not text:
            reply.mark_malformed("an empty report")
        return text or "none"

    def following(self, task: Task, move: Delegation | Malformed, reports: Sequence[str], left: int) -> Prompt:
        if isinstance(move, Malformed):
            results = f"Your reply could not be read: {move.reason}."
        else:
            pairs = zip(move.subtasks, reports, strict=True)
            results = "\n\n".join(f"Subtask: {subtask}\nReport: {report}" for subtask, report in pairs)
        return f"{results}\n\n{self.moves(task, left).prompt()}"


LEAD = "You lead a team of workers. Divide the task into parts that can be worked on at the same time."
WORK = "You work on one part of a larger task. Reply with a short report of what you found."
