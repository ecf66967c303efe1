"""Engines on GPUs of their own."""

from __future__ import annotations

from wrong_configs.case import wrong

MODE = "trainer.v1.trainer_mode=mas_separate_async actor_rollout_ref.rollout.checkpoint_engine.backend=ray"
POOL = "++mas.pools.serve.n_gpus_per_node=1 ++ray_kwargs.ray_init.num_gpus=2"

CASES = (
    wrong(f"++mas.policies.main.engines=serve {POOL}", "served on the GPUs that it trains on"),
    wrong(MODE, "++mas.policies.main.engines=serve ++mas.pools.serve.n_gpus_per_node=1"),
    wrong(f"{MODE} ++mas.policies.main.engines=sevre {POOL}", "did you mean 'serve'"),
)
