"""verl's SGLang engine, for several policies on one cluster."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Generator, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, cast

from verl_mas.config.adapters import Adapter, read_table
from verl_mas.engines import stock
from verl_mas.engines.adapters import AdapterServer, by_policy, current_adapter
from verl_mas.engines.facts import ENGINES, Contract, EngineFacts, EngineMemory, require_head_size
from verl_mas.engines.sampling import installed_names
from verl_mas.errors import EngineLost, RequestError
from verl_mas.verl_.row import GLOBAL_STEPS
from verl_mas.verl_.types import Actor, Fields, Passed, Untyped

if TYPE_CHECKING:
    import torch
    from sglang.srt.managers.io_struct import GenerateReqInput
    from verl.workers.rollout.replica import TokenOutput
    from verl.workers.rollout.sglang_rollout.async_sglang_server import SGLangHttpServer
    from verl.workers.rollout.sglang_rollout.sglang_rollout import ServerAdapter
else:
    SGLangHttpServer = ServerAdapter = object

logger = logging.getLogger(__name__)

ENGINE = "sglang"
# A class of SGLang, which is not installed where types are checked.
Manager: TypeAlias = Untyped


class TeamManager:
    """SGLang's tokenizer manager, with two changes: a request uses the adapter that its caller named, and a prompt with
    images keeps the tokens that were sent."""

    def __init__(self, manager: Manager, table: Mapping[str, Adapter], processor: Passed):
        self._manager, self._table, self._processor = manager, table, processor

    def __getattr__(self, name: str) -> Manager:
        return getattr(self._manager, name)

    async def generate_request(self, obj: GenerateReqInput, request: object = None) -> AsyncIterator[Fields]:
        if self._table:
            policy = current_adapter.get()
            # Replace the adapter name, because verl sends the same name with every request.
            obj.lora_path = None if policy is None else self._table[policy].name
        sent = len(obj.input_ids)
        if obj.image_data:
            from verl.workers.rollout.utils import qwen2_5_vl_dedup_image_tokens

            # If an image has several tokens, SGLang fails, never answers or changes the tokens (patch:
            # sglang-image-tokens). So send one token per image.
            obj.input_ids = qwen2_5_vl_dedup_image_tokens(obj.input_ids, self._processor)
        async for reply in self._manager.generate_request(obj, request):
            # A request that is aborted early has no `prompt_tokens`.
            if obj.image_data and (read := reply["meta_info"].get("prompt_tokens", sent)) != sent:
                value = f"a prompt of {sent} tokens with images, of which SGLang makes {read}"
                rule = "SGLang tokenizes such a prompt again, and must get the tokens that the trainer has"
                raise RequestError(value, rule=rule, fix="use rollout.name=vllm, or SGLang 0.5.18")
            yield reply


class AdapterSender(ServerAdapter):
    """Mixin for verl's `ServerAdapter` in training workers, placed before it in the bases. It changes nothing for a
    policy without LoRA adapters."""

    server_actor: Actor

    async def update_weights(  # type: ignore[override]  # verl's own adapter narrows its base class
        self,
        weights: Generator[tuple[str, torch.Tensor], None, None],
        global_steps: Passed = None,
        wire_format: str = "named_tensors",
        **kwargs: Passed,
    ) -> None:
        table = read_table(self.config.custom)
        if not table:
            await super().update_weights(weights, global_steps, wire_format, **kwargs)
            return
        configs = cast("dict[str, Fields]", kwargs["peft_config"])
        await self._init_server_adapter()
        # Every worker must read the stream, because reading it gathers each tensor from all workers.
        tensors = by_policy(weights, table)
        if self._engine is None or not self._is_server_tp_leader():
            return
        loaded = {model["id"] for model in (await self._engine.available_models())["data"]}
        for policy, adapter in table.items():
            if adapter.name in loaded:
                await self._engine.unload_lora_adapter(adapter.name)
            await self._load(adapter.name, configs[policy], tensors[policy])
        await self._engine.flush_cache()
        if global_steps is not None:
            await self.server_actor.set_global_steps.remote(global_steps)

    async def _load(self, name: str, config: Fields, tensors: dict[str, torch.Tensor]) -> None:
        from sglang.srt.managers.io_struct import LoadLoRAAdapterFromTensorsReqInput

        config, serialized = self.wrap_lora_params(config, (item for item in tensors.items()))
        request = LoadLoRAAdapterFromTensorsReqInput(
            lora_name=name, config_dict=config, serialized_named_tensors=serialized
        )
        await self._engine.load_lora_adapter_from_tensor(request)


# A command for a clone of verl-mas. pip would fail, because verl and SGLang pin different versions of some packages.
# The overrides file says which versions uv installs.
INSTALL = 'uv pip install --override versions/overrides-sglang.txt ".[sglang]"'
# Adapters that are not merged need 0.5.17: older versions accept only one string in `serialized_tensors`, but verl
# sends a list. From 0.5.20 on, ServerArgs is not a dataclass, which verl needs.
CONTRACT = Contract(
    "sglang",
    tested=("0.5.12", "0.5.19"),
    needs={"adapters": "0.5.17"},
    dataclasses=("sglang.srt.server_args:ServerArgs",),
)
# Sampling settings of SGLang 0.5.12, which verl 0.9.1 requires.
SAMPLING = frozenset(
    "custom_params ebnf frequency_penalty ignore_eos json_schema logit_bias max_tokens min_new_tokens "
    "min_p n no_stop_trim presence_penalty regex repetition_penalty sampling_seed skip_special_tokens "
    "spaces_between_special_tokens stop stop_regex stop_token_ids stream_interval structural_tag temperature top_k "
    "top_p".split()
)
# Sizes of attention heads that flashinfer 0.6.11 supports (`DISPATCH_HEAD_DIM` in its utils.cuh). SGLang 0.5.12
# requires this version.
HEAD_SIZES = (64, 128, 256, 512)
IMAGES_MB = "SGLANG_VLM_CACHE_SIZE_MB"
# An abort of a request is repeated at this interval, because SGLang ignores an abort if its scheduler has not received
# the request yet.
ABORT_AGAIN_S = 0.2
DRAIN_S = 30.0  # time that running requests have to finish before the engine sleeps


class TeamSglang(AdapterServer, SGLangHttpServer):
    """A server with several adapters. It ends the requests of cancelled callers, and sleeps only when no request runs.

    SGLang 0.5.12 to 0.5.19 does neither. The request of a cancelled caller continues. If the scheduler must release
    memory or load weights while a request runs, an assertion fails and the server ends. SGLang's own abort holds back
    later requests, and a sleep would wait for these requests. So this server rejects later requests.
    """

    tokenizer_manager: Manager
    _requests: set[asyncio.Task[TokenOutput]]
    _rejecting = False

    def __init__(self, *args: Passed, **kwargs: Passed):
        self._requests = set()
        super().__init__(*args, **kwargs)

    async def launch_server(self, *args: Passed, **kwargs: Passed) -> None:
        # Turn off the cache of the vision tower's outputs, since SGLang keeps it after new weights (patch:
        # sglang-vision-cache).
        os.environ.setdefault(IMAGES_MB, "0")
        if table := self.adapters:
            # Add one, because SGLang counts the base without an adapter as an adapter of the batch.
            options = {"max_loras_per_batch": len(table) + 1, **(self.config.engine_kwargs.get(ENGINE) or {})}
            self.config.engine_kwargs[ENGINE] = options
        await super().launch_server(*args, **kwargs)
        if self.node_rank == 0:
            self.tokenizer_manager = TeamManager(self.tokenizer_manager, table, self.model_config.processor)

    async def generate(  # type: ignore[override]  # verl always passes `request_id` by name
        self, *args: Passed, request_id: str, adapter: str | None = None, **kwargs: Passed
    ) -> TokenOutput:
        if self._rejecting:
            from verl.workers.rollout.replica import TokenOutput

            steps = {GLOBAL_STEPS: self.global_steps}
            return TokenOutput(token_ids=[], log_probs=[], stop_reason="abort", extra_fields=steps)
        call = super().generate(*args, adapter=adapter, request_id=request_id, **kwargs)
        request: asyncio.Task[TokenOutput] = asyncio.ensure_future(call)
        self._requests.add(request)
        request.add_done_callback(self._requests.discard)
        try:
            return await asyncio.shield(request)
        except asyncio.CancelledError:
            while not request.done():
                self.tokenizer_manager.abort_request(request_id)
                await asyncio.wait([request], timeout=ABORT_AGAIN_S)
            raise
        finally:
            # Remove the state of a request that was aborted in the queue, because SGLang keeps it.
            self.tokenizer_manager.rid_to_state.pop(request_id, None)

    async def abort_all_requests(self) -> None:
        """End running requests with the tokens they have, and reject new ones until `resume_generation`."""
        self._rejecting = True
        until = time.monotonic() + DRAIN_S
        while self._requests:
            if time.monotonic() > until:
                raise _not_ended()
            self.tokenizer_manager.abort_request(abort_all=True)
            await asyncio.wait(self._requests, timeout=ABORT_AGAIN_S)

    async def resume_generation(self) -> None:
        self._rejecting = False

    async def sleep(self) -> None:
        """Wait until no request runs, then sleep. With `free_cache_engine=False`, verl's method does nothing, but this
        method still waits, because new weights follow."""
        await self._drain()
        await super().sleep()

    async def release_kv_cache(self) -> None:
        """Wait until no request runs, then free the cache, because weights from another pool follow. The requests were
        aborted, but the last batch of a request may still run."""
        await self._drain()
        await super().release_kv_cache()

    async def pause(self) -> None:
        """Free the GPU. The weights are dropped, too; SGLang keeps a copy in host memory, as verl configures it."""
        await self.sleep()

    async def unpause(self) -> None:
        if self.node_rank == 0:
            from sglang.srt.managers.io_struct import ResumeMemoryOccupationReqInput

            # Resume what verl's `sleep` released. With LoRA adapters, the base's weights were not released.
            tags = ["kv_cache"] if self.lora_as_adapter else ["kv_cache", "weights"]
            request = ResumeMemoryOccupationReqInput(tags=tags)
            await self.tokenizer_manager.resume_memory_occupation(request, None)

    async def _drain(self) -> None:
        if self.node_rank == 0 and not await self._idle():
            logger.warning("%d requests still run after %g s; they are aborted", len(self._requests), DRAIN_S)
            self.tokenizer_manager.abort_request(abort_all=True)
            if not await self._idle():
                raise _not_ended()

    async def _idle(self) -> bool:
        if self._requests:
            _, running = await asyncio.wait(self._requests, timeout=DRAIN_S)
            if running:
                return False
        # Ask the scheduler, since a request that has been answered stays in its last batch for a moment.
        flushed = await self.tokenizer_manager.flush_cache(timeout_s=DRAIN_S)
        return bool(flushed.success) and not self._requests


def _not_ended() -> EngineLost:
    return EngineLost(f"an SGLang engine did not end its requests within {DRAIN_S:g} s of their abort")


def check_model(path: str, device: str, options: Mapping[str, object]) -> None:
    # verl chooses flashinfer for SGLang from 0.5.12 on.
    if device == "cuda" and options.get("attention_backend") in (None, "flashinfer"):
        fix = "set +actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend=triton, or rollout.name=vllm"
        require_head_size(path, HEAD_SIZES, "SGLang's attention, flashinfer,", fix)


ENGINES.register(ENGINE)(
    EngineFacts(
        package="sglang",
        install=INSTALL,
        contract=CONTRACT,
        gpu_fraction=True,
        memory=EngineMemory(of_free=True, host_copy=True, keeps_base=True, holds_context=False),
        numbers_gpus=True,
        server_mixin=TeamSglang,
        sender_mixin=AdapterSender,
        many_adapters=True,
        base_port=30000,
        # Without this option, a scheduler polls for requests and keeps a core busy, even while its engine sleeps.
        beside_others={"sleep_on_idle": True},
        stock_adapter="verl.workers.rollout.sglang_rollout.sglang_rollout",
        sampling=partial(installed_names, "sglang.srt.sampling.sampling_params", SAMPLING),
        needs_tokenizer=True,
        check_model=check_model,
        # SGLang 0.5.12 compiles its own kernels (`jit_kernel`) for rotary embeddings, norms and the KV cache, and the
        # kernels of flashinfer's attention.
        compiles=lambda rollout, capability: "SGLang's kernels",
        register_replica=partial(stock.register_replica, ENGINE),
        register_adapter=partial(stock.register_adapter, ENGINE),
    )
)
