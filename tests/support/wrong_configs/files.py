"""Files that cases prepare: data, model folders and checkpoints, whole but for one thing."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from verl_mas.run_folder.checkpoints import FILES, RUN_FILE

Prepare = Callable[[Path], object]
MESSAGES = [{"role": "user", "content": "Repeat a."}]
ROW = {"data_source": "letters", "prompt": MESSAGES, "reward_model": {"ground_truth": "a"}}


def parquet(name: str, *rows: Mapping[str, object]) -> Prepare:
    def write(folder: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), folder / name)

    return write


def text(name: str, content: str | bytes) -> Prepare:
    def write(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return write


def all_of(*steps: Prepare) -> Prepare:
    def write(folder: Path) -> None:
        for step in steps:
            step(folder)

    return write


def safetensors(size: int = 4) -> bytes:
    """One tensor of four bytes, of which `size` are there."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return struct.pack("<Q", len(header)) + header + b"\0" * size


MODEL: Mapping[str, str | bytes] = {
    "config.json": '{"model_type": "qwen2"}',
    "tokenizer.json": "{}",
    "tokenizer_config.json": json.dumps({"chat_template": "{{ messages[0].content }}"}),
    "model.safetensors": safetensors(),
}


def model(name: str = "model", /, **changed: str | bytes | None) -> Prepare:
    """A model folder. A file is named with `_` for its dot, and None leaves it out."""
    files = {**MODEL, **{_file(key): content for key, content in changed.items()}}
    return all_of(*[text(f"{name}/{file}", content) for file, content in files.items() if content is not None])


def _file(key: str) -> str:
    known = {file.replace(".", "_"): file for file in (*MODEL, "model.safetensors.index.json", "chat_template.jinja")}
    return known[key]


def checkpoint(step: int, *, pointer: str | None = None, run: str = "{}", policy: str | None = "main") -> Prepare:
    """In the run's folder of a case, {folder}/checkpoints. A `run` that can be read lists its files, as a saved one."""
    folder = f"checkpoints/global_step_{step}"
    files = {"data.pt": "loader", **({f"{policy}/model.pt": "weights"} if policy else {})}
    with suppress(ValueError, TypeError):
        run = json.dumps({FILES: {name: len(content) for name, content in files.items()}, **json.loads(run)})
    steps = [text(f"{folder}/{name}", content) for name, content in {RUN_FILE: run, **files}.items()]
    if pointer is not None:
        steps.append(text("checkpoints/latest_checkpointed_iteration.txt", pointer))
    return all_of(*steps)
