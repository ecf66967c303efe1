"""verl's SGLang engine, for several policies on one cluster."""

from __future__ import annotations

from functools import partial

from verl_mas.engines import stock
from verl_mas.engines.facts import ENGINES, EngineFacts
from verl_mas.engines.sampling import installed_names

ENGINE = "sglang"
# Of SGLang 0.5.12, which verl 0.9.1 requires.
SAMPLING = frozenset(
    "custom_params ebnf frequency_penalty ignore_eos json_schema logit_bias max_tokens min_new_tokens "
    "min_p n no_stop_trim presence_penalty regex repetition_penalty sampling_seed skip_special_tokens "
    "spaces_between_special_tokens stop stop_regex stop_token_ids stream_interval structural_tag temperature top_k "
    "top_p".split()
)


class PausableSglang:
    """A server that can free the GPU. `pause` drops the weights too; verl has SGLang keep a copy in host memory."""

    async def pause(self) -> None:
        await self.sleep()  # type: ignore[attr-defined]

    async def unpause(self) -> None:
        if self.node_rank == 0:  # type: ignore[attr-defined]
            from sglang.srt.managers.io_struct import ResumeMemoryOccupationReqInput

            request = ResumeMemoryOccupationReqInput(tags=["kv_cache", "weights"])
            await self.tokenizer_manager.resume_memory_occupation(request, None)  # type: ignore[attr-defined]


ENGINES.register(ENGINE)(
    EngineFacts(
        package="sglang",
        gpu_fraction=True,
        pausable=PausableSglang,
        base_port=30000,
        stock_adapter="verl.workers.rollout.sglang_rollout.sglang_rollout",
        sampling=partial(installed_names, ENGINE, "srt/sampling/sampling_params.py", SAMPLING),
        register_replica=partial(stock.register_replica, ENGINE, PausableSglang),
        register_adapter=partial(stock.register_adapter, ENGINE),
    )
)
