"""Packages that a run on GPUs needs and that are not installed here."""

from __future__ import annotations

from wrong_configs.case import wrong

MODEL = "actor_rollout_ref.model"

CASES = (
    wrong("+recipe=math/shared actor_rollout_ref.rollout.name=sglang", "--override versions/overrides-", alone=True),
    wrong(
        f"+recipe=search/shared {MODEL}.override_config.attn_implementation=flash_attention_2",
        f"set ++{MODEL}.override_config.attn_implementation=sdpa, or install flash-attn",
        alone=True,
    ),
)
