"""Teams that spawn workers: more workers than a session has acts, arguments and agents that do not exist."""

from __future__ import annotations

from wrong_configs.case import Case, wrong
from wrong_configs.workflow_args import team

GROWING = "mas.workflow.name=leader_workers mas.agents=null mas.workflow.args={}"


CASES: tuple[Case, ...] = (
    wrong(f"{GROWING} ++mas.workflow.args.max_workers=100", "whose longest session has 304 acts"),
    wrong(f"{GROWING} mas.faults.max_acts=5", "set mas.faults.max_acts=16"),
    team("leader_workers", "max_workers=0", "mas.workflow.args.max_workers is a whole number, at least 1"),
    team("leader_workers", "score=maths", "did you mean 'math'?"),
    team("leader_workers", "max_worker=3", "did you mean 'max_workers'?"),
    team("sharded_lookup", "score=em", "mas.workflow.args takes the settings of ShardedLookup only"),
    team("single_reader", "window=shards", "mas.workflow.args.window is one of all, shard"),
    wrong(f"{GROWING} ++mas.agents.workers.trainable=false", "did you mean 'worker'?"),
    wrong("mas/train=all", "train"),
)
