"""The options that a test sets or looks at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ServerArgs:
    model_path: str
    skip_tokenizer_init: bool = False
    max_running_requests: int | None = None
    enable_weights_cpu_backup: bool = False
    enable_lora: bool = False
    max_lora_rank: int | None = None
    lora_target_modules: list[str] | None = None
    max_loras_per_batch: int = 8
