"""What in SGLang is a process with the model: here a thread, which ends the whole process when it fails."""

from __future__ import annotations

import asyncio
import queue
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from sglang.srt.managers.io_struct import (
    AbortReq,
    FlushCacheReqInput,
    FlushCacheReqOutput,
    GenerateReqInput,
    LoadLoRAAdapterFromTensorsReqInput,
    ReleaseMemoryOccupationReqInput,
    ResumeMemoryOccupationReqInput,
    UnloadLoRAAdapterReqInput,
)
from sglang.srt.server_args import ServerArgs
from sglang.srt.utils import MultiprocessingSerializer
from transformers import AutoModelForCausalLM, AutoTokenizer

from verl_mas.config.adapters import Adapter
from verl_mas.engines.transformers.batcher import ContinuousBatcher
from verl_mas.engines.transformers.lora import Adapters
from verl_mas.engines.transformers.request import RequestSampling, Sample

Send = Callable[[Any, Any, bool], None]
TAGS = ("kv_cache", "weights", "cuda_graph")
# A forward pass takes at least so long.
STEP_S = 0.001


def sigquit() -> None:
    """In SGLang the scheduler's process sends SIGQUIT to the server's."""


@dataclass(eq=False)
class Req:
    obj: GenerateReqInput
    sample: Sample
    to_finish: bool = False


class Scheduler(threading.Thread):
    def __init__(
        self, server_args: ServerArgs, messages: queue.Queue[tuple[object, asyncio.Future[Any] | None]], send: Send
    ):
        super().__init__(daemon=True)
        self.server_args, self.messages, self.send = server_args, messages, send
        self.waiting_queue: list[GenerateReqInput] = []
        self.running: list[Req] = []
        self.last_batch: list[Req] = []
        self.offload_tags: set[str] = set()
        # The place of each adapter in memory, by id.
        self.loras: dict[str, str] = {}
        self.pending_flush: tuple[asyncio.Future[Any] | None, float] | None = None
        self._loaded = threading.Event()

    def start(self) -> None:
        """Returns when the model is loaded: transformers patches itself while it loads one, so two threads that load at
        the same time can leave it without ties between weights."""
        super().start()
        self._loaded.wait()

    def run(self) -> None:
        try:
            skip, path = self.server_args.skip_tokenizer_init, self.server_args.model_path
            self.tokenizer = None if skip else AutoTokenizer.from_pretrained(path)
            self.batcher = self._load()
            self._loaded.set()
            while True:
                self._receive()
                self._step()
        except Exception:  # noqa: BLE001  # as in SGLang
            sys.stderr.write(f"Scheduler hit an exception: {traceback.format_exc()}\n")
            sigquit()

    def _load(self) -> ContinuousBatcher:
        path = self.server_args.model_path
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        eos = model.generation_config.eos_token_id
        rank = self.server_args.max_lora_rank or 0
        places = map(str, range(self.server_args.max_loras_per_batch if self.server_args.enable_lora else 0))
        return ContinuousBatcher(
            model,
            max_length=model.config.max_position_embeddings,
            eos=eos if isinstance(eos, list) else [eos] if eos is not None else [],
            decode=self._decode,
            adapters=Adapters(model, {place: Adapter(place, rank, alpha=rank, seed=0) for place in places}),
        )

    def _decode(self, ids: list[int]) -> str:
        # None.decode is what SGLang does.
        return cast(str, self.tokenizer.decode(ids))  # type: ignore[union-attr]

    # -- requests -------------------------------------------------------------------------------------------

    def is_fully_idle(self) -> bool:
        return not (self.running or self.waiting_queue or self.last_batch)

    def _receive(self) -> None:
        while True:
            try:
                idle = self.is_fully_idle() and self.pending_flush is None
                message, answer = self.messages.get(block=idle)
            except queue.Empty:
                return
            self._handle(message, answer)

    def _handle(self, message: object, answer: asyncio.Future[Any] | None) -> None:
        if isinstance(message, GenerateReqInput):
            self.waiting_queue.append(message)
        elif isinstance(message, AbortReq):
            self._abort(message)
        elif isinstance(message, FlushCacheReqInput):
            self._flush(message, answer)
        elif isinstance(message, ReleaseMemoryOccupationReqInput):
            self._release(message.tags or TAGS)
            self.send(answer, None, True)
        elif isinstance(message, ResumeMemoryOccupationReqInput):
            for tag in message.tags or TAGS:
                self.offload_tags.remove(tag)
            self.send(answer, None, True)
        elif isinstance(message, LoadLoRAAdapterFromTensorsReqInput):
            self._load_lora(message)
            self.send(answer, None, True)
        elif isinstance(message, UnloadLoRAAdapterReqInput):
            del self.loras[str(message.lora_id)]
            self.send(answer, None, True)

    def _abort(self, message: AbortReq) -> None:
        def meant(rid: str) -> bool:
            return message.abort_all or rid.startswith(message.rid)

        for obj in [obj for obj in self.waiting_queue if meant(obj.rid)]:
            self.waiting_queue.remove(obj)
            # The tokenizer manager keeps the state of these.
            self.send(obj.rid, _output(obj, [], [], "abort"), False)
        for req in self.running:
            req.to_finish = req.to_finish or meant(req.obj.rid)

    def _step(self) -> None:
        while self.waiting_queue and self._admits(self.waiting_queue[0]):
            obj = self.waiting_queue.pop(0)
            sampling = _sampling(obj.sampling_params)
            if sampling.max_tokens == 0:
                self.send(obj.rid, _output(obj, [], [], "length"), True)
                continue
            place = self.loras[obj.lora_id] if obj.lora_id else None
            sample = self.batcher.submit(obj.input_ids, sampling, place)
            self.running.append(Req(obj, sample))
        # A request that has just finished is in one more forward pass.
        self.last_batch = list(self.running)
        if self.running:
            assert not self.offload_tags, f"a forward pass on released memory: {sorted(self.offload_tags)}"
            started = time.monotonic()
            self.batcher.step()
            self.batcher.abort([req.sample for req in self.running if req.to_finish])
            time.sleep(max(0.0, STEP_S - (time.monotonic() - started)))
            self._finish()
        self._check_pending_flush()

    def _admits(self, obj: GenerateReqInput) -> bool:
        # A batch has so many adapters, and the bare base is one of them.
        loras = {req.obj.lora_id for req in self.running} | {obj.lora_id}
        args = self.server_args
        fits = not args.enable_lora or len(loras) <= args.max_loras_per_batch
        return fits and len(self.running) < (args.max_running_requests or 256)

    def _finish(self) -> None:
        for req in [req for req in self.running if req.sample.finish_reason]:
            self.running.remove(req)
            reason = str(req.sample.finish_reason).removesuffix("ed")
            self.send(req.obj.rid, _output(req.obj, req.sample.tokens, req.sample.log_probs, reason), True)
        if not self.running:
            time.sleep(STEP_S)

    # -- memory and weights ---------------------------------------------------------------------------------

    def _flush(self, message: FlushCacheReqInput, answer: asyncio.Future[Any] | None) -> None:
        if self.is_fully_idle() or not message.timeout_s:
            self.send(answer, FlushCacheReqOutput(self.is_fully_idle()), True)
        else:
            self.pending_flush = (answer, time.monotonic() + message.timeout_s)

    def _check_pending_flush(self) -> None:
        if self.pending_flush is None:
            return
        answer, deadline = self.pending_flush
        if self.is_fully_idle() or time.monotonic() >= deadline:
            self.pending_flush = None
            self.send(answer, FlushCacheReqOutput(self.is_fully_idle()), True)

    def _release(self, tags: list[str] | tuple[str, ...]) -> None:
        assert self.is_fully_idle(), "release_memory_occupation should be called only when server is idle."
        self.offload_tags.update(tags)
        if "weights" in tags and not self.server_args.enable_weights_cpu_backup:
            for parameter in self.batcher.model.parameters():
                parameter.data.fill_(float("nan"))

    @torch.no_grad()
    def _load_lora(self, message: LoadLoRAAdapterFromTensorsReqInput) -> None:
        args, config = self.server_args, message.config_dict
        assert args.enable_lora and config["peft_type"] == "LORA"
        missing = (args.max_lora_rank or 0) - config["r"]
        assert missing >= 0, f"rank {config['r']} is above max_lora_rank={args.max_lora_rank}"
        tensors: Any = MultiprocessingSerializer.deserialize(message.serialized_named_tensors[0])
        for name, tensor in tensors.items():
            if ".lora_A." in name:
                tensors[name] = torch.nn.functional.pad(tensor, (0, 0, 0, missing))
            else:
                tensors[name] = torch.nn.functional.pad(tensor * (config["lora_alpha"] / config["r"]), (0, missing))
        free = {str(place) for place in range(args.max_loras_per_batch)} - set(self.loras.values())
        self.loras[message.lora_id] = min(free)
        self.batcher.adapters.update(min(free), tensors)


def _sampling(params: dict[str, Any]) -> RequestSampling:
    """SGLang's names, from which those of the embedded engine differ in one."""
    named = {**params, "max_tokens": max(1, params["max_new_tokens"]), "seed": random.getrandbits(32)}
    del named["max_new_tokens"]
    return RequestSampling.parse(named)


def _output(obj: GenerateReqInput, tokens: list[int], log_probs: list[float], reason: str) -> dict[str, Any]:
    meta: dict[str, Any] = {"id": obj.rid, "finish_reason": {"type": reason}, "completion_tokens": len(tokens)}
    if obj.return_logprob:
        meta["output_token_logprobs"] = [
            (log_prob, token, None) for log_prob, token in zip(log_probs, tokens, strict=True)
        ]
    return {"output_ids": tokens, "meta_info": meta}
