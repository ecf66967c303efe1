"""An agent that answers, or delegates parts of its task to copies of itself, which may do the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Annotated, Generic, TypeVar

from verl_mas.config.values import Count, NotNegative, Range, Share
from verl_mas.errors import FaultKind, SessionFault
from verl_mas.workflow import Codec, Malformed, Outcome, Reply, Task, Team, Workflow, instances, register_workflow
from verl_mas.workflow.codecs import visible
from verl_mas.workflow.task import with_instruction
from verl_mas.workflow.tasks import together
from verl_mas.workflow.team import Prompt
from verl_mas.workflows._graded import WithGrader
from verl_mas.workflows.leader_workers import Delegation, FinalAnswer, Move, Moves

ROLE = "solver"


@dataclass
class Node:
    """A copy of the agent: its part of the task, its acts, and the copies that it delegated to, by round."""

    part: str
    parent: Node | None = None
    acts: list[Reply] = field(default_factory=list)
    rounds: list[list[Node]] = field(default_factory=list)
    answer: str | None = None
    """None: it gave none that could be read."""

    success: float = 0.0
    delegates: bool = False
    """Whether its budget and depth let it delegate."""

    @property
    def depth(self) -> int:
        return 0 if self.parent is None else self.parent.depth + 1

    @property
    def children(self) -> list[Node]:
        return [child for round_ in self.rounds for child in round_]

    def tree(self) -> Iterator[Node]:
        yield self
        for child in self.children:
            yield from child.tree()

    @property
    def critical_path(self) -> int:
        """Acts that wait for each other: those of a round act at the same time."""
        return len(self.acts) + sum(max(child.critical_path for child in round_) for round_ in self.rounds)

    def repeats(self, part: str) -> bool:
        """Whether the part is its own task, or that of a node above it."""
        same = " ".join(part.split()).casefold() == " ".join(self.part.split()).casefold()
        return same or (self.parent is not None and self.parent.repeats(part))


M = TypeVar("M", bound=Move)


@dataclass(frozen=True)
class Smaller(Generic[M]):
    """The moves of a node, of which a delegation of a task that it has, or a node above it, is malformed."""

    moves: Codec[M]
    node: Node

    def prompt(self) -> str:
        return self.moves.prompt()

    def render(self, value: M) -> str:
        return self.moves.render(value)

    def parse(self, text: str) -> M | Malformed:
        move = self.moves.parse(text)
        if isinstance(move, Delegation) and any(map(self.node.repeats, move.subtasks)):
            return Malformed("a subtask that is the task itself")
        return move


class Recursing(Workflow):
    """Base of recursive teams. The copies at depth d are the agent `solver_d`, and one copy's acts are a conversation.

    A copy has a budget of acts: one to delegate, one to answer, and the rest is divided equally among the copies of a
    round. Override `run`, which calls `play`, and the methods that raise NotImplementedError.
    """

    max_depth: Annotated[int, Range(0)] = 2
    """Levels below the first copy. 0: one agent that answers."""

    max_parts: Count = 4
    """Copies of one round at most."""

    max_acts: Count = 24
    """Acts of a session at most: the budget of the first copy."""

    max_tokens: Count | None = None
    """Tokens that all copies of a session may generate. More end the session with a fault. null: any number."""

    bonus: NotNegative = 0.4
    """What the mean success of the copies that a copy delegated to adds to its reward (RAO's lambda)."""

    parallel: Share = 0.0
    """PARL's weight of delegating to two or more copies at once, in place of success, at the first training step. It
    falls to 0 linearly. Kimi K2.5 has 0.1."""

    @property
    def agents(self) -> Sequence[str]:
        return instances(ROLE, self.max_depth + 1)

    def most_acts(self, k: int) -> int:
        return self.max_acts

    async def play(self, task: Task, team: Team) -> Node:
        """Grow the tree, and reward the acts of each copy. The reward of the session is `success` of the first one."""
        root = Node(self.whole(task))
        await self._solve(task, team, root, self.max_acts)
        nodes = list(root.tree())
        for node in nodes:
            node.success = await self.success(task, node, root)
        weight = 0.0 if task.progress is None else self.parallel * (1 - task.progress)
        for node in nodes:
            share = weight if node.delegates else 0.0
            reward = (1 - share) * node.success + share * any(len(round_) > 1 for round_ in node.rounds)
            reward += self.bonus * fmean(child.success for child in node.children) if node.children else 0.0
            for reply in node.acts:
                reply.team_reward = reward
        return root

    def info(self, root: Node) -> dict[str, object]:
        nodes = list(root.tree())
        depth = max(node.depth for node in nodes)
        return {"acc": root.success, "copies": len(nodes), "depth": depth, "critical_path": root.critical_path}

    def whole(self, task: Task) -> str:
        """The part of the first copy."""
        return task.question

    def moves(self, task: Task, node: Node, at_most: int) -> Codec[Move]:
        """What a copy may reply that may delegate to so many others."""
        raise NotImplementedError

    def opening(self, task: Task, node: Node, at_most: int) -> Prompt:
        """The first prompt of a copy."""
        raise NotImplementedError

    def following(self, task: Task, node: Node, move: Delegation | Malformed, at_most: int) -> Prompt:
        """What a copy reads after a delegation, whose copies are the last of `node.rounds`."""
        raise NotImplementedError

    async def success(self, task: Task, node: Node, root: Node) -> float:
        """How well a copy solved its part. It is called for the first copy, `root`, before all others."""
        raise NotImplementedError

    async def _solve(self, task: Task, team: Team, node: Node, budget: int) -> None:
        agent = team[f"{ROLE}_{node.depth}"].conversation()
        at_most = self._at_most(node, budget)
        node.delegates = at_most > 0
        prompt = self.opening(task, node, at_most)
        while True:
            reply = await agent.act(prompt)
            node.acts.append(reply)
            self._count_tokens(team)
            move = reply.parse(Smaller(self.moves(task, node, at_most), node))
            if isinstance(move, FinalAnswer):
                node.answer = move.text
                return
            if isinstance(move, Delegation):
                self._check(node, move, at_most)
                budget -= await self._delegate(task, team, node, move, budget)
            elif not at_most:
                return
            budget -= 1
            at_most = self._at_most(node, budget)
            prompt = self.following(task, node, move, at_most)

    async def _delegate(self, task: Task, team: Team, node: Node, move: Delegation, budget: int) -> int:
        """Play the copies of a round. Returns how many acts they took."""
        children = [Node(part, node) for part in move.subtasks]
        node.rounds.append(children)
        share = (budget - 2) // len(children)
        await together([partial(self._solve, task, team, child, share) for child in children])
        return sum(len(below.acts) for child in children for below in child.tree())

    def _at_most(self, node: Node, budget: int) -> int:
        """Copies that a node may delegate to: an act each, one to delegate, and one to answer."""
        return max(0, min(self.max_parts, budget - 2)) if node.depth < self.max_depth else 0

    def _check(self, node: Node, move: Delegation, at_most: int) -> None:
        """Refuses a delegation that `moves` should not have read."""
        if len(move.subtasks) > at_most:
            limit = "max_acts" if node.depth < self.max_depth else "max_depth"
            limit = "max_parts" if len(move.subtasks) > self.max_parts else limit
            _exceeded(limit, getattr(self, limit), f"{len(move.subtasks)} copies at depth {node.depth + 1}")

    def _count_tokens(self, team: Team) -> None:
        tokens = sum(reply.generation.sampled for reply in team.replies)
        if self.max_tokens is not None and tokens > self.max_tokens:
            _exceeded("max_tokens", self.max_tokens, f"{tokens} generated tokens")


def _exceeded(limit: str, most: int, what: str) -> None:
    raise SessionFault(
        FaultKind.LIMIT,
        f"{what}; rule: a recursion has at most mas.workflow.args.{limit}={most}; fix: raise it, or train the agent to "
        "delegate less",
    )


@register_workflow("recursive")
class Recursive(Recursing, WithGrader):
    """For language models: parts and answers are texts. A copy reads its part alone.

    Only the first copy's answer can be compared with a ground truth: its success is that of every copy, too.
    """

    async def run(self, task: Task, team: Team) -> Outcome:
        self.graded(task)
        root = await self.play(task, team)
        return Outcome(answer=root.answer, reward=root.success, info=self.info(root))

    def moves(self, task: Task, node: Node, at_most: int) -> Moves:
        return Moves(at_most, self.answer_form(task.data_source))

    def opening(self, task: Task, node: Node, at_most: int) -> Prompt:
        instruction = self.moves(task, node, at_most).prompt()
        return f"{node.part}\n\n{instruction}" if node.parent else with_instruction(task.messages, instruction)

    def following(self, task: Task, node: Node, move: Delegation | Malformed, at_most: int) -> Prompt:
        if isinstance(move, Malformed):
            reports = f"Your reply could not be read: {move.reason}."
        else:
            reports = "\n\n".join(f"Subtask: {child.part}\nReport: {_report(child)}" for child in node.rounds[-1])
        return f"{reports}\n\n{self.moves(task, node, at_most).prompt()}"

    async def success(self, task: Task, node: Node, root: Node) -> float:
        if node is not root:
            return root.success
        graded = self.graded(task)
        assert graded.grader is not None
        return await graded.grader(graded.truth, node.answer) or 0.0 if node.answer is not None else 0.0


def _report(node: Node) -> str:
    """The last reply of a copy, without its thinking."""
    return visible(node.acts[-1].text).strip() or "none"
