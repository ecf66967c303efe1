"""Data files that verl or the workflow cannot read, or in which a step has too few rows."""

from __future__ import annotations

from wrong_configs.case import wrong
from wrong_configs.files import ROW, parquet, text

ONE = "data.train_files={folder}/rows.parquet data.train_batch_size=1 actor_rollout_ref.actor.ppo_mini_batch_size=1"
JSONL = "data.train_files={folder}/rows.jsonl"
MESSAGE = '{{"prompt": [{{"role": "user", "content": "{}"}}]}}'


def row(**changed: object) -> dict[str, object]:
    """A sound row with changes; None leaves a column out."""
    return {name: value for name, value in {**ROW, **changed}.items() if value is not None}


CASES = (
    wrong(ONE, "cannot be read", prepare=text("rows.parquet", "no parquet")),
    wrong(ONE, "cannot be read", prepare=text("rows.parquet", b"PAR1" + b"\0" * 100)),
    wrong(ONE, "cannot be read", prepare=text("rows.parquet", "")),
    wrong(ONE, "has no rows", prepare=parquet("rows.parquet")),
    wrong(ONE, "has no column 'prompt'", prepare=parquet("rows.parquet", row(prompt=None, prompts=ROW["prompt"]))),
    wrong(f"{ONE} data.prompt_key=question", "has no column 'question'", prepare=parquet("rows.parquet", ROW)),
    wrong(ONE, "a prompt is a list of messages", prepare=parquet("rows.parquet", row(prompt="2+2?"))),
    wrong(ONE, "a prompt is a list of messages", prepare=parquet("rows.parquet", row(prompt=["2+2?"]))),
    wrong(ONE, "a prompt is a list of messages", prepare=parquet("rows.parquet", row(prompt=[{"text": "2+2?"}]))),
    wrong(
        ONE,
        "has no column 'data_source'",
        warned=True,
        prepare=parquet("rows.parquet", row(data_source=None)),
    ),
    wrong(
        JSONL,
        "half a surrogate pair",
        prepare=text("rows.jsonl", '{"prompt": [{"role": "user", "content": "\\ud800"}]}'),
    ),
    wrong(JSONL, "a null byte", prepare=text("rows.jsonl", '{"prompt": [{"role": "user", "content": "a\\u0000b"}]}')),
    wrong(JSONL, "cannot be read", prepare=text("rows.jsonl", '{"prompt": [{"role"')),
    wrong(JSONL, "cannot be read", prepare=text("rows.jsonl", '"a text"\n')),
    wrong(JSONL, "cannot be read", prepare=text("rows.jsonl", b'{"prompt": "\xff"}')),
    wrong(JSONL, "has no rows", prepare=text("rows.jsonl", "\n")),
    wrong("data.train_batch_size=100000", "256 rows in data.train_files"),
    wrong("data.train_max_samples=4", "4 rows in data.train_files"),
    wrong("data.max_prompt_length=4", "tokens, and 4 are allowed"),
    wrong("data.max_prompt_length=4 ++mas.agents.solver.truncation=middle", "it is cut", warned=True),
    wrong("++mas.agents.solver.max_prompt_length=5", "tokens, and 5 are allowed"),
    wrong(
        "mas.workflow.name=planner_executor mas.workflow.args=null mas.agents=null algorithm.adv_estimator=at_grpo",
        "first row",
    ),
)
