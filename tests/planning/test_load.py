"""A policy is read from its configuration."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from small_model import MODEL, SEEING, N

from verl_mas.config.run import Run, load
from verl_mas.engines.serving import resolve_serving
from verl_mas.planning.load import Policy, read_policy
from verl_mas.planning.path import FUSED


@pytest.fixture
def read(two) -> Callable[..., Policy]:
    """Read policy `a` of a team in which the solver and the verifier have a policy each, on four GPUs. Settings are
    below `actor_rollout_ref`, unless they begin with mas, critic or algorithm."""

    def read(**settings: object) -> Policy:
        whole = ("mas", "critic", "algorithm")
        full = {key if key.startswith(whole) else f"actor_rollout_ref__{key}": settings[key] for key in settings}
        config = two(trainer__device="cuda", trainer__n_gpus_per_node=4, **full)
        return read_policy(resolve_serving(Run.of(config)), "a", MODEL)

    return read


def test_a_policy_that_shares_its_pool_is_offloaded_and_divided_among_its_gpus(read):
    policy = read()
    assert policy.param_offload and policy.optimizer_offload and policy.shards == 4 and not policy.reference
    assert policy.section == "++mas.policies.a.overrides"
    size = {"actor__fsdp_config__fsdp_size": 2}
    kept = read(mas__pools__shared={"offload": False}, **size)
    assert not kept.param_offload and not kept.optimizer_offload and kept.shards == 2
    assert read(mas__policies__a__trainable=False).trains is False
    assert read(actor__fsdp_config__use_no_sync_for_gradient_accumulation=None).sync_once is False, "as with veomni"


def test_micro_batches_have_the_budget_or_the_longest_rows(read):
    budget = {"actor__ppo_max_token_len_per_gpu": 5000}
    known = read(**budget)
    assert known.update_tokens == 5000
    row, rows = known.row, {"actor__ppo_micro_batch_size_per_gpu": 3, "rollout__log_prob_micro_batch_size_per_gpu": 7}
    training = read(**budget, **rows, actor__use_dynamic_bsz=False)
    assert (training.update_tokens, training.log_prob_tokens) == (3 * row, 7 * row)


def test_images_have_at_most_the_prompts_part_of_a_micro_batch(two):
    config = two(trainer__device="cuda", trainer__n_gpus_per_node=4)
    run = resolve_serving(Run.of(config))
    sighted, row = read_policy(run, "a", SEEING), config.data.max_prompt_length + config.data.max_response_length
    assert sighted.images == config.data.max_prompt_length / row
    assert any("images" in note for note in sighted.notes)
    blind, other = read_policy(run, "a", MODEL), read_policy(run, "a", replace(SEEING, vision=None))
    assert blind.images == other.images == 0
    assert any("vision tower" in note for note in other.notes) and not any("vision" in note for note in blind.notes)


def test_logits_are_copied_at_a_temperature_that_is_not_1_also_at_that_of_an_agent(read):
    attention = {"model__override_config__attn_implementation": "flash_attention_2"}
    attention |= {"actor__entropy_coeff": 0, "actor__fsdp_config__use_torch_compile": True}
    cold = {"rollout__temperature": 1.0}
    training = read(**attention, **cold)
    # The gradient is written into the logits; entropy in the loss needs them once more.
    assert (training.logits, training.logits_update) == (2, 2)
    entropy = {"actor__entropy_coeff": 0.1}
    assert read(**{**attention, **entropy}, **cold).logits_update == 6
    for hot in ({"rollout__temperature": 0.7}, {**cold, "mas__agents__solver__sampling": {"temperature": 0.7}}):
        training = read(**attention, **hot)
        assert (training.logits, training.logits_update) == (4, 6)
    # The computation in blocks needs a second tensor of this size, for the gradient.
    sdpa = {**attention, "model__override_config__attn_implementation": "sdpa"}
    assert read(**sdpa, **cold).logits_update == 4
    fused = read(**attention, **cold, model__use_fused_kernels=True)
    assert fused.path.log_probs == FUSED


def test_rows_of_agents_that_exchange_their_policies_have_the_temperatures_of_all(read):
    settings = {"rollout__temperature": 1.0, "mas__agents__verifier__sampling": {"temperature": 0.7}}
    swapped = read(**settings, mas__swap__agents=["solver", "verifier"]).logits
    assert swapped > read(**settings).logits


def test_a_reference_is_a_second_model_unless_the_adapter_can_be_left_out(read):
    loss = {"actor__use_kl_loss": True}
    assert read(**loss).reference
    lora = read(**loss, model__lora_rank=8)
    assert not lora.reference and lora.adapter == 8 * 1000


def test_an_engine_that_reserves_no_share_of_the_gpu_has_no_fraction(read):
    served = read(rollout__gpu_memory_utilization=0.4)
    assert served.fraction is None and "rollout.name=transformers is estimated as vLLM" in served.notes[0]
    own = {"rollout": {"name": "vllm", "gpu_memory_utilization": 0.4, "max_model_len": 99, "enforce_eager": True}}
    serving = read(mas__policies__a__overrides=own)
    assert (serving.fraction, serving.max_model_len, serving.eager) == (0.4, 99, True)


def test_packed_rows_have_a_mask_unless_flash_attn_computes_them(read):
    packed = {"model__use_remove_padding": True}
    attention = "model__override_config__attn_implementation"
    assert read(**packed, **{attention: "sdpa"}).path.masked
    assert not read(**packed, **{attention: "flash_attention_3"}).path.masked
    padded = read(model__use_remove_padding=False, **{attention: "sdpa"})
    assert not (padded.path.packed or padded.path.masked)


def test_a_policy_alone_is_set_as_verls(make):
    config = make(trainer__device="cuda")
    assert read_policy(Run(config, load(None)), "main", MODEL).section == "actor_rollout_ref"


def test_a_base_has_the_adapters_of_its_policies(two):
    gpus = {"trainer__device": "cuda", "trainer__n_gpus_per_node": 4, "actor_rollout_ref__rollout__name": "vllm"}
    b = {"lora_rank": 4, "target_modules": ["o_proj"]}
    own = {"a": {"adapter_of": "main"}, "b": {"adapter_of": "main", "overrides": {"model": b}}}
    config = two(**gpus, mas__policies=own, actor_rollout_ref__model__lora_rank=8)
    base = read_policy(resolve_serving(Run.of(config)), "main", MODEL)
    assert (base.adapters, base.adapter) == ((8 * 1000, 4 * 400), 0)
    assert base.serves_adapters and base.ranks == 2 * 8
    assert not base.param_offload  # It is alone on its pool.


def test_a_critic_is_offloaded_with_its_policy_and_has_micro_batches_of_its_own(read):
    gae = {"algorithm__adv_estimator": "gae"}
    assert read().critic is None
    critic = read(**gae).critic
    assert critic.param_offload and critic.optimizer_offload and critic.critic is None
    assert (critic.update_tokens, critic.by_tokens, critic.logits, critic.model.parameters) == (32768, True, 0, N)
    kept = read(**gae, mas__pools__shared={"offload": False}, critic__ppo_infer_max_token_len_per_gpu=4096)
    assert not kept.critic.param_offload and kept.critic.update_tokens == 4096
    assert (critic.element, read(**gae, critic__fsdp__model_dtype="bf16").critic.element) == (4, 2)
