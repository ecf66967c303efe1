"""verl's vLLM engine, for several policies on one cluster. On the CPU platform it uses vLLM's CPU build."""

from __future__ import annotations

import asyncio
import os
from argparse import Namespace
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeAlias

from omegaconf import DictConfig
from packaging.version import Version

from verl_mas.engines import platform, stock
from verl_mas.engines.adapters import AdapterServer, current_adapter
from verl_mas.engines.facts import ENGINES, Contract, EngineFacts, EngineMemory, require_head_size
from verl_mas.engines.sampling import installed_names
from verl_mas.errors import ConfigError, EngineLost
from verl_mas.util import installed_version
from verl_mas.verl_.types import Fields, Passed, Untyped

if TYPE_CHECKING:
    from verl.workers.rollout.replica import TokenOutput
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer
    from vllm.lora.request import LoRARequest
else:
    vLLMHttpServer = object

# A class of vLLM, which is not installed where types are checked.
Engine: TypeAlias = Untyped

ENGINE = "vllm"
CONTRACT = Contract("vllm", tested=("0.24.0", "0.31.0"), needs={"delta_sharded": "0.29.0"})
ABORT_AGAIN_S = 0.05
EXTENSION = "verl_mas.engines.vllm_extension.AdapterExtension"
# First number of our adapters. vLLM identifies adapters by numbers: its warm-up uses 1, 2, ..., and verl's adapter has
# 123.
FIRST_ID = 1000
PATH = "in memory"
V2_THINKS = Version("0.28.0")  # the first version whose model runner V2 takes `thinking_token_budget`
# The package that runs vLLM on a CPU: scripts/vllm_cpu. Its modules import vLLM, so name its classes without an import.
ON_CPU = "verl_mas_vllm_cpu"
CPU_ADAPTER = f"{ON_CPU}.adapter.CpuServerAdapter"
CPU_REPLICA = f"{ON_CPU}.server.CpuVllmReplica"
CPU_FIX = "run make vllm-cpu in a clone of verl-mas, which creates an environment that has all of it"
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
# Sampling settings of vLLM 0.24, which verl 0.9.1 requires.
SAMPLING = frozenset(
    "allowed_token_ids bad_words detokenize extra_args flat_logprobs frequency_penalty ignore_eos "
    "include_stop_str_in_output logit_bias logprob_token_ids logprobs max_tokens min_p min_tokens n "
    "output_kind presence_penalty prompt_logprobs repetition_detection repetition_penalty seed skip_special_tokens "
    "spaces_between_special_tokens stop stop_token_ids structured_outputs temperature thinking_token_budget top_k "
    "top_p".split()
)


class TeamVllm(AdapterServer, vLLMHttpServer):
    """A server with several adapters. A dead engine ends the run, and a pause frees the GPU but keeps the weights.

    With verl's server, a dead engine would not end the run: each act that uses it would fail, and the session of the
    act would be dropped. A sleep of verl's server drops the weights.
    """

    engine: Engine

    def _get_worker_extension_cls(self) -> str:
        stock: str = super()._get_worker_extension_cls()
        return EXTENSION if self.adapters else stock

    async def run_server(self, args: Namespace) -> None:
        await super().run_server(self._with_slots(args))
        if self.adapters:
            self.engine = AdapterEngine(self.engine, self)
            await self.engine.collective_rpc("set_adapters", args=(self.engine.ids,))

    async def run_headless(self, args: Namespace) -> None:
        """Run the part of a replica that is on another node."""
        await super().run_headless(self._with_slots(args))

    def _with_slots(self, args: Namespace) -> Namespace:
        # verl sets `max_loras=1` after it has read the user's options, so set it again.
        if self.adapters:
            args.max_loras = args.max_cpu_loras = len(self.adapters)
        return args

    async def generate(self, *args: Passed, adapter: str | None = None, **kwargs: Passed) -> TokenOutput:
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            return await super().generate(*args, adapter=adapter, **kwargs)
        except EngineDeadError as error:
            raise _lost() from error

    async def wait_for_requests_to_drain(self) -> None:
        """Raise EngineLost if the engine is dead. verl calls this method at the end of every sampling phase, so no rows
        of a dead engine are trained on."""
        if self.engine.errored:
            raise _lost()
        await super().wait_for_requests_to_drain()

    async def abort_all_requests(self, reset_prefix_cache: bool = True, reject_request: bool = False) -> Fields:
        """Abort at once, including queued requests.

        verl waits up to 60 s until every request has a token, and a queued request gets a token only after another
        request has ended. So abort all known requests repeatedly until verl's call returns.
        """
        stock = super().abort_all_requests(reset_prefix_cache, reject_request)
        if self.node_rank != 0:
            nothing: Fields = await stock
            return nothing
        abort: asyncio.Task[Fields] = asyncio.ensure_future(stock)
        while not abort.done():
            if known := list(self.engine.output_processor.request_states):
                await self.engine.abort(known, internal=True)
            await asyncio.wait([abort], timeout=ABORT_AGAIN_S)
        return abort.result()

    async def pause(self) -> None:
        if self.node_rank == 0:
            await self.engine.sleep(level=1)

    async def unpause(self) -> None:
        if self.node_rank == 0:
            await self.engine.wake_up(tags=self._get_wake_up_tags())


class AdapterEngine:
    """vLLM's engine; each request uses the adapter that its caller named."""

    def __init__(self, engine: Engine, server: AdapterServer):
        self._engine, self._server, self._table = engine, server, server.adapters
        self.ids = {policy: number for number, policy in enumerate(self._table, FIRST_ID)}

    def __getattr__(self, name: str) -> Engine:
        return getattr(self._engine, name)

    async def list_loras(self) -> set[int]:
        """Return no adapters. verl asks before every request whether verl's own adapter is loaded. Because it is not
        loaded, verl sends the request without an adapter, and `generate` adds the adapter that the caller named."""
        return set()

    def generate(self, *, lora_request: None, **request: object) -> AsyncGenerator[object, None]:
        replies: AsyncGenerator[object, None] = self._engine.generate(lora_request=self._adapter(), **request)
        return replies

    def _adapter(self) -> LoRARequest | None:
        from vllm.lora.request import LoRARequest

        if (policy := current_adapter.get()) is None:
            return None
        # The prefix cache identifies adapters by name. With the version in the name, the cache does not return prefixes
        # that were computed with old weights.
        versioned = f"{self._table[policy].name}@{self._server.updates}"
        return LoRARequest(lora_name=versioned, lora_int_id=self.ids[policy], lora_path=PATH)


def _lost() -> EngineLost:
    import ray

    name = ray.get_runtime_context().get_actor_name()
    return EngineLost(f"vLLM engine {name} is dead; the last log lines of its process are above")


def thinking_fix(options: Mapping[str, object]) -> str:
    """Return the fix if an engine with these options does not accept `thinking_token_budget`; else an empty string."""
    installed = Version(installed_version(ENGINE) or CONTRACT.tested[0])
    if not any(options.get(name) for name in ("reasoning_parser", "reasoning_config")):
        return "set ++actor_rollout_ref.rollout.engine_kwargs.vllm.reasoning_parser, such as qwen3"
    # vLLM's default for Qwen3, Llama and other models on GPUs is model runner V2.
    if not platform.selected() and installed < V2_THINKS and os.environ.get("VLLM_USE_V2_MODEL_RUNNER") != "0":
        return f"set VLLM_USE_V2_MODEL_RUNNER=0: model runner V2 takes it from vLLM {V2_THINKS} on"
    return ""


def compiles(rollout: DictConfig, capability: tuple[int, int]) -> str:
    """Name the kernels of FlashInfer that vLLM 0.24 compiles unless the package `flashinfer-jit-cache` is installed.

    With verl's default `logprobs_mode=processed_logprobs`, vLLM does not use FlashInfer's sampler. If the fused
    all-reduce of tensor parallelism cannot be compiled, vLLM only warns.
    """
    if find_spec("flashinfer_jit_cache"):
        return ""
    options = rollout.engine_kwargs.get(ENGINE) or {}
    if capability[0] == 10 and not options.get("attention_backend"):
        return "FlashInfer's attention, which vLLM chooses on this GPU,"
    samples = os.environ.get("VLLM_USE_FLASHINFER_SAMPLER") != "0"
    return "FlashInfer's sampler" if samples and rollout.logprobs_mode != "processed_logprobs" else ""


def check_ready(device: str | None) -> None:
    if device == platform.DEVICE and (missing := missing_on_cpu()):
        value = f"actor_rollout_ref.rollout.name=vllm on the CPU: {'; '.join(missing)}"
        rule = "vLLM's CPU build is installed, and nothing beside it that breaks it"
        raise ConfigError(value, rule=rule, fix=CPU_FIX)


def missing_on_cpu() -> list[str]:
    """List the problems that prevent vLLM from running on the CPU of this machine, in the order in which to fix them;
    empty if there are no problems."""
    if find_spec(ON_CPU) is None:
        return ["vLLM's CPU build is not installed"]
    missing: list[str] = import_module(f"{ON_CPU}.readiness").readiness()
    return missing


def check_model(path: str, device: str, options: Mapping[str, object]) -> None:
    # Check the model here, because vLLM would fail only at the first request, without naming the cause.
    if device == platform.DEVICE:
        fix = "use another model, or set actor_rollout_ref.rollout.name=transformers"
        require_head_size(path, CPU_HEAD_SIZES, "vLLM's CPU attention", fix)


ENGINES.register(ENGINE)(
    EngineFacts(
        package="vllm",
        install='pip install "verl-mas[vllm]"',
        contract=CONTRACT,
        gpu_fraction=True,
        memory=EngineMemory(),
        batch_limit=True,
        cache_option="kv_cache_memory_bytes",
        server_mixin=TeamVllm,
        highest_rank=512,
        many_adapters=True,
        stock_adapter="verl.workers.rollout.vllm_rollout",
        sampling=partial(installed_names, "vllm.sampling_params", SAMPLING),
        register_replica=lambda module: stock.register_replica(ENGINE, module, on_cpu=CPU_REPLICA),
        register_adapter=lambda module: stock.register_adapter(ENGINE, module, on_cpu=CPU_ADAPTER),
        check_ready=check_ready,
        check_model=check_model,
        thinking_fix=thinking_fix,
        compiles=compiles,
        image_processor="Qwen2VLImageProcessor",
    )
)
