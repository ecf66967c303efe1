"""An agent that answers, or delegates parts of its task to copies of itself, which may delegate in turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Annotated

from verl_mas.config.values import Count, NotNegative, Range, Share
from verl_mas.errors import FaultKind, SessionFault
from verl_mas.util.loops import together
from verl_mas.workflow import Codec, Malformed, Outcome, Reply, Task, Team, instances, register_workflow
from verl_mas.workflow.codecs import visible
from verl_mas.workflow.task import with_instruction
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
    """None if the copy gave no readable answer."""

    success: float = 0.0
    delegates: bool = False
    """Whether the copy's budget and depth let the copy delegate."""

    @property
    def depth(self) -> int:
        return self.parent.depth + 1 if self.parent else 0

    def tree(self) -> Iterator[Node]:
        """Yield the node and all copies below it."""
        yield self
        for round_ in self.rounds:
            for child in round_:
                yield from child.tree()

    @property
    def critical_path(self) -> int:
        """The number of acts in sequence. The copies of a round act at the same time, so only the longest path among
        them counts."""
        return len(self.acts) + sum(max(child.critical_path for child in round_) for round_ in self.rounds)

    def repeats(self, part: str) -> bool:
        """Whether the part is the task of this copy, or of a copy above it."""
        same = " ".join(part.split()).casefold() == " ".join(self.part.split()).casefold()
        return same or bool(self.parent and self.parent.repeats(part))

    def reward(self, bonus: float, parallel: float) -> float:
        """Return RAO's reward: the copy's success, plus `bonus` times the mean success of the copies just below it.
        `parallel` is the weight of PARL's term within the copy's success."""
        at_once = any(len(round_) > 1 for round_ in self.rounds)
        own = (1 - parallel) * self.success + parallel * at_once if self.delegates else self.success
        below = [child.success for round_ in self.rounds for child in round_]
        return own + bonus * fmean(below) if below else own


@register_workflow("recursive")
class Recursive(WithGrader):
    """Parts and answers are strings; for other types override `whole`, `moves`, `opening`, `following` and `success`.

    The copies at depth d are the agent `solver_d`, and a copy's acts are one conversation. A copy has a budget of acts:
    one to delegate, one to answer, and the rest in equal parts for the copies of a round.
    """

    max_depth: Annotated[int, Range(0)] = 2
    """Levels below the first copy. 0: one agent that answers."""

    max_parts: Count = 4
    """Maximum number of copies in one round."""

    max_acts: Count = 24
    """Maximum number of acts of a session, which is the budget of the first copy."""

    max_tokens: Count | None = None
    """Maximum number of tokens that all copies of a session may generate. More tokens are a fault. null: no limit."""

    bonus: NotNegative = 0.4
    """Weight, in a copy's reward, of the mean success of the copies that it delegated to (RAO's lambda)."""

    parallel: Share = 0.0
    """Weight p of PARL's term at the first training step: a copy's success is replaced by (1 - p) * success + p * term,
    where the term is 1 if the copy delegated to two or more copies at once, else 0. p falls to 0 at the last step. Kimi
    K2.5 uses 0.1."""

    @property
    def agents(self) -> Sequence[str]:
        return instances(ROLE, self.max_depth + 1)

    def most_acts(self, k: int) -> int:
        return self.max_acts

    async def run(self, task: Task, team: Team) -> Outcome:
        self.graded(task)  # refuses a task without a ground truth before the first act
        root = Node(self.whole(task))
        await self._solve(task, team, root, self.max_acts)
        nodes = list(root.tree())
        for node in nodes:
            node.success = await self.success(task, node, root)
        parallel = 0.0 if task.progress is None else self.parallel * (1 - task.progress)
        for node in nodes:
            for reply in node.acts:
                reply.team_reward = node.reward(self.bonus, parallel)
        info = {"copies": len(nodes), "depth": max(node.depth for node in nodes), "critical_path": root.critical_path}
        return Outcome(answer=root.answer, reward=root.success, info={"acc": root.success, **info})

    def whole(self, task: Task) -> str:
        """The part of the first copy, which is the whole task."""
        return task.question

    def moves(self, task: Task, node: Node, at_most: int) -> Codec[Move]:
        """Return the codec for the replies of a copy that may delegate to `at_most` other copies."""
        return Moves(at_most, self.answer_form(task.data_source))

    def opening(self, task: Task, node: Node, at_most: int) -> Prompt:
        """The first prompt of a copy."""
        instruction = self.moves(task, node, at_most).prompt()
        return f"{node.part}\n\n{instruction}" if node.parent else with_instruction(task.messages, instruction)

    def following(self, task: Task, node: Node, move: Delegation | Malformed, at_most: int) -> Prompt:
        """Return a copy's prompt after a delegation. The copies that it delegated to are the last of `node.rounds`."""
        if isinstance(move, Malformed):
            reports = f"Your reply could not be read: {move.reason}."
        else:
            last = [(child.part, visible(child.acts[-1].text).strip() or "none") for child in node.rounds[-1]]
            reports = "\n\n".join(f"Subtask: {part}\nReport: {report}" for part, report in last)
        return f"{reports}\n\n{self.moves(task, node, at_most).prompt()}"

    async def success(self, task: Task, node: Node, root: Node) -> float:
        """Score how well a copy solved its part. Only the part of the first copy, `root`, has a ground truth. So the
        other copies get the success of `root`, which is scored before them."""
        if node is not root or node.answer is None:
            return root.success
        graded = self.graded(task)
        return await graded.grader(graded.truth, node.answer) or 0.0 if graded.grader else 0.0

    async def _solve(self, task: Task, team: Team, node: Node, budget: int) -> None:
        agent = team[f"{ROLE}_{node.depth}"].conversation()
        at_most = self._at_most(node, budget)
        node.delegates = at_most > 0
        prompt = self.opening(task, node, at_most)
        while True:
            node.acts.append(await agent.act(prompt))
            move = self._read(task, team, node, at_most)
            if isinstance(move, FinalAnswer):
                node.answer = move.text
                return
            if not at_most:
                return
            budget -= 1
            if isinstance(move, Delegation):
                copies = [Node(part, node) for part in move.subtasks]
                node.rounds.append(copies)
                share = (budget - 1) // len(copies)
                await together([partial(self._solve, task, team, copy, share) for copy in copies])
                budget -= sum(len(below.acts) for copy in copies for below in copy.tree())
            # After an unreadable reply, only an answer is accepted.
            at_most = self._at_most(node, budget) if isinstance(move, Delegation) else 0
            prompt = self.following(task, node, move, at_most)

    def _at_most(self, node: Node, budget: int) -> int:
        """Return the number of copies to which a copy may delegate. Each of these copies needs at least one act, and
        the copy itself needs two acts: one to delegate and one to answer."""
        return max(0, min(self.max_parts, budget - 2)) if node.depth < self.max_depth else 0

    def _read(self, task: Task, team: Team, node: Node, at_most: int) -> Move | Malformed:
        """Read the move in the last reply. A recursion beyond its limits is a fault, because `moves` should have
        refused it."""
        reply = node.acts[-1]
        move = reply.parse(self.moves(task, node, at_most))
        parts = move.subtasks if isinstance(move, Delegation) else ()
        tokens = sum(one.generation.sampled for one in team.replies)
        exceeded = {
            "max_tokens": tokens > (self.max_tokens or tokens),
            "max_depth": bool(parts) and node.depth >= self.max_depth,
            "max_parts": len(parts) > self.max_parts,
            "max_acts": len(parts) > at_most,
        }
        for limit in (limit for limit, is_exceeded in exceeded.items() if is_exceeded):
            cause = f"a copy at depth {node.depth} needs more than mas.workflow.args.{limit}={getattr(self, limit)}; "
            cause += "rule: a recursion ends within its limits; fix: raise it, or let `moves` refuse the delegation"
            raise SessionFault(FaultKind.LIMIT, cause)
        if isinstance(move, Delegation) and (not parts or any(map(node.repeats, parts))):
            move = Malformed("a subtask that is the task itself" if parts else "no subtask")
            reply.mark_malformed(move.reason)
        return move
