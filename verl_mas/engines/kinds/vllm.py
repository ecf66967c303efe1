"""verl's vLLM engine, for several policies on one cluster; with vLLM's CPU build on the CPU platform."""

from __future__ import annotations

from functools import partial
from types import ModuleType

from verl_mas import platform
from verl_mas.engines import stock, vllm_cpu
from verl_mas.engines.facts import ENGINES, EngineFacts, set_adapter
from verl_mas.engines.sampling import installed_names
from verl_mas.engines.vllm_cpu.readiness import check_heads, require_ready

ENGINE = "vllm"
# Of vLLM 0.24, which verl 0.9.1 requires.
SAMPLING = frozenset(
    "allowed_token_ids bad_words detokenize extra_args flat_logprobs frequency_penalty ignore_eos "
    "include_stop_str_in_output logit_bias logprob_token_ids logprobs max_tokens min_p min_tokens n "
    "output_kind presence_penalty prompt_logprobs repetition_detection repetition_penalty seed skip_special_tokens "
    "spaces_between_special_tokens stop stop_token_ids structured_outputs temperature thinking_token_budget top_k "
    "top_p".split()
)


class PausableVllm:
    """A server that can free the GPU and keep its weights; verl's own sleep drops them."""

    async def pause(self) -> None:
        if self.node_rank == 0:  # type: ignore[attr-defined]
            await self.engine.sleep(level=1)  # type: ignore[attr-defined]

    async def unpause(self) -> None:
        if self.node_rank == 0:  # type: ignore[attr-defined]
            await self.engine.wake_up(tags=self._get_wake_up_tags())  # type: ignore[attr-defined]


def register_replica(replica: ModuleType) -> None:
    if platform.selected():
        replica.RolloutReplicaRegistry.register(ENGINE, vllm_cpu.load_replica)
    else:
        stock.register_replica(ENGINE, PausableVllm, replica)


def register_adapter(base: ModuleType) -> None:
    if platform.selected():
        set_adapter(base, ENGINE, vllm_cpu.ADAPTER)
    else:
        stock.register_adapter(ENGINE, base)


def check_ready(device: str | None) -> None:
    if device == platform.DEVICE:
        require_ready()


def check_model(path: str, device: str) -> None:
    if device == platform.DEVICE:
        check_heads(path)


ENGINES.register(ENGINE)(
    EngineFacts(
        package="vllm",
        gpu_fraction=True,
        pausable=PausableVllm,
        stock_adapter="verl.workers.rollout.vllm_rollout",
        sampling=partial(installed_names, ENGINE, "sampling_params.py", SAMPLING),
        register_replica=register_replica,
        register_adapter=register_adapter,
        check_ready=check_ready,
        check_model=check_model,
    )
)
