"""A replay buffer that saves a copy of every row that the trainer gets. verl loads it in its own process."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import transfer_queue as tq
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

if TYPE_CHECKING:
    from verl_mas.verl_.data_plane import Rows


class RowRecorder(ReplayBuffer):
    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Rows, dict[str, float]]:
        # verl's two seconds would be most of a step.
        self.poll_interval = 0.1
        batch: Rows
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        data = tq.kv_batch_get(keys=batch.keys, partition_id=partition_id)
        rows = []
        for place, (key, tags) in enumerate(zip(batch.keys, batch.tags, strict=True)):
            fields = {name: _plain(data[name][place]) for name in data.keys()}  # noqa: SIM118
            rows.append({"key": key, "tags": dict(tags), "fields": fields})
        path = Path(os.environ["ROWS_DIR"]) / f"{partition_id}-{global_steps}.pickle"
        path.write_bytes(pickle.dumps(rows))
        return batch, metrics


def _plain(value: object) -> object:
    value = getattr(value, "data", value) if not hasattr(value, "tolist") else value
    return value.tolist() if hasattr(value, "tolist") else value
