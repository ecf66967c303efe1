"""Teams for tests, which only pass letters on. Agent-loop workers load this file by its path, too."""

import asyncio
import random

from verl_mas.testing import letters
from verl_mas.workflow import Outcome, Task, Team, Workflow


class Pair(Workflow):
    """A writer, then a copier who has read it; the copy is the answer."""

    agents = ("writer", "copier")

    async def run(self, task: Task, team: Team) -> Outcome:
        draft = await team.writer.act(task.messages)
        known = {} if task.progress is None else {"progress": task.progress}
        return Outcome(answer=await team.copier.act(f"{task.question} {draft}"), info=known)


class Rehearsed(Workflow):
    """A writer, then an earlier writer, then a copier who has read both; the copy is the answer."""

    agents = ("writer", "earlier", "copier")

    async def run(self, task: Task, team: Team) -> Outcome:
        draft = await team.writer.act(task.messages)
        other = await team.earlier.act(task.messages)
        return Outcome(answer=await team.copier.act(f"{task.question} {draft} {other}"))


class Trio(Workflow):
    """Three agents act in turn. Some tasks end after the first act, so that policies see different numbers of rows."""

    agents = ("first", "second", "third")

    async def run(self, task: Task, team: Team) -> Outcome:
        reply = await team.first.act(task.messages)
        if task.ground_truth == "a":
            return Outcome(answer=reply)
        reply = await team.second.act(f"{task.question} {reply}")
        return Outcome(answer=await team.third.act(f"{task.question} {reply}"))


class Hasty(Workflow):
    """Each agent acts once, and starts acts that are cancelled before or after they reach the engine.

    The session ends after the cancelled acts, so the engines go to sleep soon afterwards.
    """

    agents = ("writer", "copier")

    async def run(self, task: Task, team: Team) -> Outcome:
        draft = await team.writer.act(task.messages)
        answer = await team.copier.act(f"{task.question} {draft}")
        for agent in (team.writer, team.copier):
            for seconds in (0.0, 0.05, 0.1):
                try:
                    await asyncio.wait_for(agent.act(task.messages, ignore_eos=True), seconds)
                except asyncio.TimeoutError:
                    continue
                raise AssertionError("an act that had to be slow was not")
        return Outcome(answer=answer)


class Late(Workflow):
    """Writes drafts of random lengths, waits for a random time as for a tool, reads, and writes several copies.

    Tasks of odd steps take longer, so they still act when the tasks of the previous step have ended.
    """

    agents = ("writer", "reader", "copier")
    branches = True

    async def run(self, task: Task, team: Team) -> Outcome:
        draws = random.Random(f"{task.uid}/{task.session}")
        for _ in range(6 if task.step % 2 else 1):
            draft = await team.writer.act(task.messages, ignore_eos=True, max_tokens=draws.randrange(1, 48))
        await asyncio.sleep(draws.uniform(0, 0.1))
        read = await team.reader.act(f"{task.question} {draft.text[:16]}", max_tokens=8)
        copies = await team.copier.branch(f"{task.question} {read.text}")
        for copy in copies:
            copy.reward = letters.score("letters", copy.text, task.ground_truth)
        answer = team.commit(copies)
        return Outcome(answer=answer)


class Seer(Workflow):
    """A seer sees the picture of a task, a reader of the same policy reads its reply, and a copier of another policy
    copies."""

    agents = ("seer", "reader", "copier")

    async def run(self, task: Task, team: Team) -> Outcome:
        seen = await team.seer.act(task.messages)
        read = await team.reader.act(f"Which letter? {seen}")
        return Outcome(answer=await team.copier.act(f"Copy: {read}"))
