"""Adapters on one base that cannot be trained or served, or that share less than was meant."""

from __future__ import annotations

import json
from pathlib import Path

from wrong_configs.case import wrong

MODEL, ACTOR, ROLLOUT = "actor_rollout_ref.model", "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
AGENTS = "mas.agents={solver:{policy:a},verifier:{policy:b}}"


def _two(a: str = "", b: str = "", more: str = "", rank: int = 4) -> str:
    """Two policies, adapters of `main` if nothing else is said."""
    a, b = (f"{{{spec or 'adapter_of:main'}}}" for spec in (a, b))
    return f"++mas.policies={{a:{a},b:{b}{more}}} {AGENTS} {MODEL}.lora_rank={rank}"


def _own(settings: str) -> str:
    return _two(f"adapter_of:main,overrides:{{{settings}}}")


def _saved(**changed: object):  # type: ignore[no-untyped-def]
    def save(folder: Path) -> None:
        plain = {"peft_type": "LORA", "r": 4, "lora_alpha": 16, "init_lora_weights": True}
        (folder / "adapter").mkdir()
        (folder / "adapter" / "adapter_config.json").write_text(json.dumps(plain | changed))

    return save


ON_GPUS = f"trainer.device=cuda {ROLLOUT}"
WARM = f"{_two()} {MODEL}.lora_adapter_path={{folder}}/adapter"

CASES = (
    # Of what
    wrong(_two("adapter_of:b"), "which is an adapter of main"),
    wrong(_two("adapter_of:a"), "which is this policy itself"),
    wrong(_two(more=",main:{}"), "which is trained"),
    wrong(_two(more=",main:{remote:{base_url:'http://h/v1',model:m}}"), "which is remote"),
    wrong(_two("adapter_of:b", "snapshot:{of:c,every:2}", ",c:{}"), "which is a snapshot of c"),
    wrong(_two("adapter_of:main,remote:{base_url:'http://h/v1',model:m}"), "adapter_of=main with remote"),
    wrong(_two(b="snapshot:{of:a,every:2}"), "never merged into them"),
    wrong(_two("adapter_of:main,trainable:false"), "trainable=false"),
    wrong(_two(b="adapter_of:mian"), "did you mean main?", warned=True),
    wrong(_two(b="overrides:{model:{lora:{merge:true}}}"), "b.overrides.model.lora_rank=0 for whole", warned=True),
    # Settings of its own
    wrong(f"{_two('adapter_of:main,pool:other')} ++mas.pools={{other:{{}}}}", "its base main is on pool shared"),
    wrong(_own("model:{path:/other}"), "a.overrides.model.path=/other, and its base main has /"),
    wrong(_own("model:{target_modules:[nosuch]}"), "policy a: model.target_modules=['nosuch']"),
    wrong(_own("model:{target_modules:[q_proj],exclude_modules:[self_attn.q_proj]}"), "with exclude_modules="),
    wrong(_own("model:{target_modules:[q_proj,norm]}"), "selects model.norm"),
    wrong(_own("model:{target_modules:[q_proj,lm_head]}"), "selects lm_head"),
    wrong(_own("model:{target_modules:[q_proj,nosuch]}"), "no module nosuch", warned=True),
    wrong(f"{_own('model:{target_modules:[q_proj]}')} {ON_GPUS}.name=sglang", "has q_proj without v_proj"),
    wrong(_own("actor:{ppo_max_token_len_per_gpu:2048}"), "all else is its base's"),
    wrong(_own("rollout:{gpu_memory_utilization:0.3}"), "all else is its base's"),
    wrong(_own("rollout:{response_length:99999}"), "or raise data.max_response_length"),
    wrong(_own("model:{lora_rank:0}"), "a rank of 1 to 512"),
    wrong(_two(rank=513), "a rank of 1 to 512"),
    # The base
    wrong(f"{_two()} {MODEL}.target_modules=[nosuch]", "modules that the model has"),
    wrong(f"{_two()} {MODEL}.target_modules=[input_layernorm]", "modules that the model has"),
    wrong(f"{_two()} {MODEL}.target_modules=[embed_tokens]", "modules that the model has"),
    wrong(f"{_two()} {ACTOR}.checkpoint.save_contents=[hf_model]", "verl-mas export --merge", warned=True),
    wrong(f"{_two()} {ACTOR}.strategy=fsdp", "set actor_rollout_ref.actor.strategy=fsdp2"),
    wrong(f"{_two()} {MODEL}.lora.merge=true", "none can be merged"),
    wrong(f"{_two()} {ROLLOUT}.checkpoint_engine.backend=nccl", "only the backend naive sends adapters"),
    wrong(
        f"{_two()} trainer.device=cuda {ROLLOUT}.name=vllm {ROLLOUT}.disaggregation.enabled=true", "without its adapter"
    ),
    wrong(f"{_two()} ++{MODEL}.target_parameters=[weight]", "not serve them on other parameters"),
    wrong(f"{_two()} ++{ACTOR}.fsdp_config.qat.enable=true", "changes the base"),
    wrong(f"{_two()} {ROLLOUT}.name=trtllm", "serves several adapters at once"),
    # A start from saved weights
    wrong(f"{_two()} {MODEL}.lora_adapter_path=/nowhere", "a folder"),
    wrong(WARM, "has use_dora=True", prepare=_saved(use_dora=True)),
    wrong(WARM, "has modules_to_save", prepare=_saved(modules_to_save=["lm_head"])),
    wrong(WARM, "has alora_invocation_tokens", prepare=_saved(alora_invocation_tokens=[1])),
    wrong(WARM, "has alpha_pattern", prepare=_saved(alpha_pattern={"q_proj": 2})),
    wrong(WARM, "has init_lora_weights=pissa_niter_4", prepare=_saved(init_lora_weights="pissa_niter_4")),
    wrong(WARM, "has r=8, and model.lora_rank=4", prepare=_saved(r=8)),
)
