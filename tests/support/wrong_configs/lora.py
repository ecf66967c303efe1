"""Adapters that cannot be trained, found or served."""

from __future__ import annotations

from pathlib import Path

from wrong_configs.case import wrong

MODEL = "actor_rollout_ref.model"
MERGED = f"{MODEL}.lora_rank=4 {MODEL}.lora.merge=true"
ADAPTER = f"{MERGED} {MODEL}.lora_adapter_path="


def _empty(folder: Path) -> None:
    (folder / "adapter").mkdir()


CASES = (
    wrong(f"{MODEL}.lora_rank=4", "takes whole weights"),
    wrong("++mas.policies={main:{overrides:{model:{lora_rank:4}}}}", "takes whole weights"),
    wrong(f"{MODEL}.lora.rank=4", "FSDP reads model.lora_rank"),
    wrong(f"{MERGED} {MODEL}.target_modules=[nosuch]", "modules that the model has"),
    wrong(f"{MERGED} {MODEL}.target_modules=[q_proj,nosuch]", "the model has no module nosuch", warned=True),
    wrong(f"{MERGED} {MODEL}.target_modules=.*nosuch", "matches a module"),
    wrong(f"{MERGED} {MODEL}.target_modules='(q_proj'", "regular expression"),
    wrong(f"{ADAPTER}/nowhere", "folder of an adapter"),
    wrong(f"{ADAPTER}{{folder}}/adapter", "adapter_config.json", prepare=_empty),
    wrong(f"{MODEL}.lora_adapter_path=owner/name", "lora_rank is above 0"),
)
