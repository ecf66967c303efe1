"""Writes down what the engines of a separate run have, and what they do while policies are trained.

verl loads this file in every process, through VERL_USE_EXTERNAL_MODULES.
"""

import hashlib
import json
import os
import time
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import ray
import torch
from wrapt import register_post_import_hook


def _count_tokens(module: ModuleType) -> None:
    step = module.ContinuousBatcher.step

    def counted(self: Any) -> Any:
        finished = step(self)
        # Each running row has sampled one token in this step.
        self.sampled = getattr(self, "sampled", 0) + len(finished) + len(self._running)
        return finished

    module.ContinuousBatcher.step = counted


def _record_updates(module: ModuleType) -> None:
    each = module.TeamTrainer._run_by_host  # noqa: SLF001

    def watched(self: Any, names: Any, work: Any) -> None:
        engines = {name: policy.servers for name, policy in self.policies.items()}
        before, start = _asked(engines, _sampled), time.time()
        each(self, names, work)
        after = _asked(engines, _sampled)
        _write(kind="train", seconds=time.time() - start, sampled={name: after[name] - before[name] for name in after})

    module.TeamTrainer._run_by_host = watched  # noqa: SLF001


def _record_syncs(module: ModuleType) -> None:
    wake = module.SeparatePolicy.wake

    def watched(self: Any, step: int) -> None:
        wake(self, step)
        [server] = self.servers
        _write(kind="sync", policy=self.name, step=step, weights=ray.get(server.__ray_call__.remote(_weights)))

    module.SeparatePolicy.wake = watched


def _asked(engines: Mapping[str, Any], question: Any) -> dict[str, Any]:
    return {name: ray.get(servers[0].__ray_call__.remote(question)) for name, servers in engines.items()}


def _sampled(server: Any) -> int:
    return getattr(server.batcher, "sampled", 0)


def _weights(server: Any) -> dict[str, str]:
    return fingerprints(server.batcher.model.state_dict())


def fingerprints(weights: Mapping[str, torch.Tensor]) -> dict[str, str]:
    return {name: hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest() for name, tensor in weights.items()}


def _write(**record: Any) -> None:
    with open(os.environ["WATCHED_FILE"], "a") as file:
        print(json.dumps(record), file=file)


if "WATCHED_FILE" in os.environ:
    register_post_import_hook(_count_tokens, "verl_mas.engines.transformers.batcher")
    register_post_import_hook(_record_updates, "verl_mas.trainer.trainer")
    register_post_import_hook(_record_syncs, "verl_mas.trainer.policies.separate")
