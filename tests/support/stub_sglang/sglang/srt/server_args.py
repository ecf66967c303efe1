"""The options that verl sets, or that a test looks at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ServerArgs:
    model_path: str
    host: str = "127.0.0.1"
    port: int = 30000
    dtype: str = "auto"
    load_format: str = "auto"
    log_level: str = "info"
    api_key: str | None = None
    trust_remote_code: bool = False
    skip_tokenizer_init: bool = False
    skip_server_warmup: bool = False
    mem_fraction_static: float | None = None
    max_running_requests: int | None = None
    disable_cuda_graph: bool = False
    enable_memory_saver: bool = False
    enable_weights_cpu_backup: bool = False
    enable_metrics: bool = False
    enable_nccl_nvls: bool = False
    sleep_on_idle: bool = False
    attention_backend: str | None = None
    mm_attention_backend: str | None = None
    quantization: str | None = None
    json_model_override_args: str = "{}"
    custom_weight_loader: list[str] | None = None
    base_gpu_id: int = 0
    gpu_id_step: int = 1
    tp_size: int = 1
    dp_size: int = 1
    ep_size: int = 1
    nnodes: int = 1
    node_rank: int = 0
    enable_lora: bool = False
    max_lora_rank: int | None = None
    lora_target_modules: list[str] | None = None
    max_loras_per_batch: int = 8

    def __post_init__(self) -> None:
        if not 1 <= self.port + 10000 <= 65535:
            raise ValueError(f"SGLANG_GRPC_PORT ({self.port + 10000}) must be between 1 and 65535")
