"""Writes every training batch to a file, and kills the trainer's process while it waits for a batch.

verl loads this file in every process.
"""

import json
import os
import signal
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from wrapt import register_post_import_hook

TAGS = ("global_steps", "policy", "min_global_steps", "max_global_steps", "response_len")


def _record(module: ModuleType) -> None:
    for kind in (module.ReplayBuffer, module.ReplayBufferAsync):
        kind.sample = _recorded(kind.sample)


def _recorded(sample: Any) -> Any:
    def recorded(self: Any, global_steps: int, partition_id: str, batch_size: int) -> Any:
        import transfer_queue as tq

        if partition_id == "train" and str(global_steps) == os.environ.get("DIE_AT"):
            # By now, sessions of the step have started.
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        batch, metrics = sample(self, global_steps, partition_id, batch_size)
        if partition_id == "train":
            wanted = ["responses", "extra_fields", "extra_info"]
            data = tq.kv_batch_get(keys=batch.keys, partition_id=partition_id, select_fields=wanted)
            plain, info = ([getattr(value, "data", value) for value in data[name]] for name in wanted[1:])
            rows = [
                {
                    "key": key,
                    **{name: batch.tags[i][name] for name in TAGS},
                    "versions": plain[i].get("versions"),
                    "index": info[i]["index"],
                    "responses": data["responses"][i].tolist(),
                }
                for i, key in enumerate(batch.keys)
            ]
            with Path(os.environ["BATCHES"]).open("a") as file:
                file.write(json.dumps({"step": global_steps, "rows": rows}) + "\n")
        return batch, metrics

    return recorded


register_post_import_hook(_record, "verl.trainer.ppo.v1.replay_buffer")
