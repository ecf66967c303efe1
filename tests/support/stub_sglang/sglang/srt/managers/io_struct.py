"""Messages between verl, the tokenizer manager and the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4


@dataclass
class GenerateReqInput:
    rid: str
    input_ids: list[int]
    sampling_params: dict[str, Any]
    return_logprob: bool = False
    image_data: object = None
    video_data: object = None
    lora_path: str | None = None
    lora_id: str | None = None
    logprob_start_len: int = -1
    top_logprobs_num: int = 0


@dataclass
class AbortReq:
    rid: str = ""
    abort_all: bool = False


@dataclass
class FlushCacheReqInput:
    timeout_s: float | None = None


@dataclass
class FlushCacheReqOutput:
    success: bool


@dataclass
class ReleaseMemoryOccupationReqInput:
    tags: list[str] | None = None


@dataclass
class ResumeMemoryOccupationReqInput:
    tags: list[str] | None = None


# As in 0.5.17: in 0.5.12 it has a text, `serialized_tensors`, and verl sends a list.
@dataclass
class LoadLoRAAdapterFromTensorsReqInput:
    lora_name: str
    config_dict: dict[str, Any]
    serialized_named_tensors: list[Any] = field(default_factory=list)
    lora_id: str = field(default_factory=lambda: uuid4().hex)


@dataclass
class UnloadLoRAAdapterReqInput:
    lora_name: str
    lora_id: str | None = None


ContinueGenerationReqInput = PauseGenerationReqInput = UpdateWeightsFromTensorReqInput = None  # verl imports them
