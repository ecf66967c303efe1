"""The teams of `kill_matrix`, and the tasks of its world."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet

TESTS = Path(__file__).parents[1] / "tests"
# Team -> its settings, including the files of its tasks.
TEAMS = {
    "pair": (
        "+mas=team",
        "mas.workflow.name=Pair",
        f"mas.workflow.path={TESTS}/trainer/teams.py",
        "mas.agents={writer:{policy:solver},copier:{policy:solver}}",
        "data.train_files={folder}/letters/train.parquet",
        "data.val_files={folder}/letters/test.parquet",
    ),
    "program": (
        "+mas=program",
        f"mas.workflow.args={{function:'{TESTS}/support/urllib_team.py:pair',agents:[writer,copier]}}",
        "mas.agents={writer:{policy:solver},copier:{policy:solver}}",
        "data.train_files={folder}/letters/train.parquet",
        "data.val_files={folder}/letters/test.parquet",
    ),
    "world": (
        "+mas=world",
        f"mas.workflow.args={{world:'{TESTS}/support/toy_worlds.py:Count/turns',options:{{steps:4}},text:compact,runs_in:process}}",
        "mas.agents={left:{policy:solver},right:{policy:solver}}",
        "data.train_files={folder}/world.parquet",
        "data.val_files={folder}/world.parquet",
    ),
}


def write_rows(file: Path) -> None:
    """Write 64 tasks for the team `world`."""
    prompt = [{"role": "user", "content": "Play."}]
    rows = [{"data_source": "count", "prompt": prompt, "extra_info": {"index": n, "world_seed": n}} for n in range(64)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
