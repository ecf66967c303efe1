from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import DictConfig

from verl_mas.checks.examined import ExaminedRun
from verl_mas.config.run import load


@pytest.fixture
def on_rows(make: Callable[..., DictConfig], letters: Path, tmp_path: Path) -> Callable[..., ExaminedRun]:
    """Makes a run of a tiny model that trains and validates on these rows. With `mas=None` it has no team."""

    def run(rows: Sequence[Mapping[str, object]], **settings: object) -> ExaminedRun:
        pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), tmp_path / "rows.parquet")
        files = {f"data__{name}_files": str(tmp_path / "rows.parquet") for name in ("train", "val")}
        config = make(**{**files, "actor_rollout_ref__model__path": str(letters / "model"), **settings})
        return ExaminedRun(config, load(None)) if config.mas is None else ExaminedRun.of(config)

    return run


@pytest.fixture
def workflow_file(tmp_path: Path) -> Callable[[str], dict[str, object]]:
    """The settings of a team whose workflow `Mine` is in a file with this text."""

    def write(text: str) -> dict[str, object]:
        file = tmp_path / "mine.py"
        file.write_text(text)
        workflow = {"name": "Mine", "path": str(file), "args": None}
        return {"mas__workflow": workflow, "mas__agents": None, "mas__policies": None}

    return write
