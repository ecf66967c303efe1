"""What cases prepare in a folder: files of any kind, model folders and checkpoints, whole but for one thing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save

from verl_mas.run_folder.checkpoints import FILES, RUN_FILE

MESSAGES = [{"role": "user", "content": "Repeat a."}]
ROW = {"data_source": "letters", "prompt": MESSAGES, "reward_model": {"ground_truth": "a"}}


def files(folder: Path, contents: Mapping[str, Any], encoding: str = "utf-8") -> None:
    """Names that end in `/` are folders. A .parquet has these rows, or this row eight times; a mapping is JSON."""
    for name, content in contents.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            file.mkdir()
        elif isinstance(content, str | bytes):
            file.write_bytes(content.encode(encoding) if isinstance(content, str) else content)
        elif file.suffix == ".parquet":
            rows = [{**content, "number": number} for number in range(8)] if isinstance(content, dict) else content
            pq.write_table(pa.Table.from_pylist(rows), file)
        else:
            file.write_text(json.dumps(content), encoding=encoding)


# The smallest Qwen2: one layer of width 2.
ONES = "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size"
KIND = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True}
CONFIG: Mapping[str, Any] = {**KIND, **dict.fromkeys(ONES, 1), "hidden_size": 2, "intermediate_size": 2}
MODEL: Mapping[str, Any] = {
    "tokenizer.json": {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}},
    "tokenizer_config.json": {"chat_template": "{{ messages[0].content }}"},
}


@cache
def shapes() -> Mapping[str, Sequence[int]]:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return {name: tensor.shape for name, tensor in Qwen2ForCausalLM(Qwen2Config(**CONFIG)).named_parameters()}


def model(folder: Path, changed: Mapping[str, Any]) -> None:
    """A model folder with these files in place of its own; `config` and `shapes` change theirs, a null leaves out; all
    weights are `filled`."""
    config, others = {**CONFIG, **changed.get("config", {})}, {**shapes(), **changed.get("shapes", {})}
    weights = save(
        {name: np.full(shape, changed.get("filled", 1), np.float32) for name, shape in others.items() if shape}
    )
    given = {name: content for name, content in changed.items() if "." in name}
    files(folder, {**MODEL, "config.json": config, "model.safetensors": weights, **given})


NOTHING = "PK\5\6" + "\0" * 18  # An archive without files


def checkpoint(
    folder: Path,
    step: int,
    *,
    pointer: str | None = None,
    run: str = "{}",
    policy: str | None = "main",
) -> None:
    """A `run` that can be read lists its files, as a saved one."""
    parts = {"data.pt": NOTHING, **({f"{policy}/model.pt": NOTHING} if policy else {})}
    with suppress(ValueError, TypeError):
        run = json.dumps({FILES: {name: len(content) for name, content in parts.items()}, **json.loads(run)})
    files(folder / f"global_step_{step}", {RUN_FILE: run, **parts})
    if pointer is not None:
        files(folder, {"latest_checkpointed_iteration.txt": pointer})


def checkpoints(folder: Path, saved: Sequence[Mapping[str, Any]]) -> None:
    for settings in saved:
        checkpoint(folder / "checkpoints", **settings)


PREPARE: Mapping[str, Callable[[Path, Any], None]] = {
    "files": files,
    "pipe": lambda folder, name: os.mkfifo(folder / name),
    "latin_1": lambda folder, contents: files(folder, contents, "latin-1"),
    "model": lambda folder, changed: model(folder / "model", changed),
    "checkpoints": checkpoints,
}
