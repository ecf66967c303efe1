"""One agent looks up two steps in a table of shards: the control for a team on the same tables."""

from __future__ import annotations

from typing import Literal

from verl_mas.gym.lookup import HOPS, shards_of
from verl_mas.gym.teams.sharded_lookup import READER, Symbols
from verl_mas.workflow import Malformed, Outcome, Task, Team, Workflow, register_workflow


@register_workflow("single_reader")
class SingleReader(Workflow):
    """`window=all`: one act that reads the whole table and writes both steps. `window=shard`: acts that read one shard
    after the other, with what was found so far, each at most twice."""

    agents = ("reader",)
    window: Literal["all", "shard"] = "shard"
    """What a prompt holds: one shard, as that of a worker, or the whole table."""

    async def run(self, task: Task, team: Team) -> Outcome:
        shards = shards_of(task.extra_info)
        windows = [" ".join(shards)] if self.window == "all" else list(shards) * HOPS
        notes = [task.question]
        acts = 0
        for window in windows:
            reply = await team.reader.act(f" {window} {READER} {' '.join(notes)}")
            acts += 1
            found = reply.parse(Symbols(HOPS + 1 - len(notes)))
            notes += [] if isinstance(found, Malformed) else found
            if len(notes) > HOPS:
                break
        answer = notes[-1] if len(notes) > HOPS else ""
        right = float(answer == task.ground_truth)
        return Outcome(answer=answer, reward=right, info={"acc": right, "critical_path": acts})
