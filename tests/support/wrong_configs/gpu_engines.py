"""What a GPU engine cannot serve: stop texts, models, adapters, several policies."""

from __future__ import annotations

from wrong_configs.case import wrong

REF = "actor_rollout_ref"
ON_GPUS = f"trainer.device=cuda {REF}.rollout.name"
TWO = "mas.policies={a:{},b:{}} mas.agents={solver:{policy:a},verifier:{policy:b}}"
STOP = "mas.agents.solver.sampling.stop=[END]"


CASES = (
    wrong(f"{ON_GPUS}=sglang ++{STOP}", "skip_tokenizer_init=False"),
    wrong(f"{ON_GPUS}=sglang ++{STOP.replace('sampling', 'validation_sampling')}", "engine without a tokenizer"),
    wrong(f"{ON_GPUS}=trtllm {TWO}", "the same names for every policy"),
    wrong(f"{ON_GPUS}=sglang {REF}.rollout.disaggregation.enabled=true {TWO}", "only prefill or only decode"),
    # Those of the tiny model.
    wrong(f"{ON_GPUS}=sglang", "attention heads of size 26"),
    wrong(f"{ON_GPUS}=sglang {REF}.model.lora_rank=4 {REF}.model.target_modules=.*q_proj", "not a regular expression"),
    wrong(
        "mas.policies={a:{},f:{trainable:false,overrides:{model:{lora_rank:4}}}} "
        "mas.agents={solver:{policy:a},verifier:{policy:f}}",
        "vLLM serves the base weights",
    ),
)
