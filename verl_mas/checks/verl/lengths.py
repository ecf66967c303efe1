"""Whether prompts and responses fit: in the model's context, the engine's limits and the trainer's token budgets."""

from __future__ import annotations

from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf

from verl_mas.checks.verl.model_folder import model_number, positions
from verl_mas.checks.verl.refusals import Problem
from verl_mas.config.merge import SECTION
from verl_mas.engines.facts import facts_of
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.platform import DEVICE

# The trainer refuses a row that is longer than its budget, in the middle of a run: budget -> what turns it on.
BUDGETS = {
    "actor.ppo_max_token_len_per_gpu": "actor.use_dynamic_bsz",
    "rollout.log_prob_max_token_len_per_gpu": "rollout.log_prob_use_dynamic_bsz",
}
SIZES = ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size")
GIB = 1 << 30
SHARE = 0.4  # of the machine's memory; weights, their optimiser, engine and Ray have the rest
# A chat template alone has more tokens than this.
SHORTEST_PROMPT = 8


def check_lengths(view: DictConfig, policy: str, *, trained: bool) -> Iterator[Problem]:
    """`view` is the configuration of one policy."""
    rollout = view[SECTION].rollout
    prompt, response = rollout.prompt_length, rollout.response_length
    if prompt < SHORTEST_PROMPT:
        reason = "most chat templates need more tokens than that for an empty message, so every act would fail"
        yield ConfigWarning(f"data.max_prompt_length={prompt}", reason=reason, fix="raise data.max_prompt_length")
    longest = prompt + response
    limit, context = _whole(view, "rollout.max_model_len"), positions(view[SECTION].model)
    if limit and context and limit > context:
        value = f"policy {policy}: rollout.max_model_len={limit}"
        rule = f"the model has a context of {context} tokens (max_position_embeddings)"
        yield ConfigError(value, rule=rule, fix=f"set {SECTION}.rollout.max_model_len={context}, or leave it null")
    for name, most in (("rollout.max_model_len", limit), ("the model's max_position_embeddings", context)):
        if most and longest > most:
            yield ConfigError(
                f"policy {policy}: max_prompt_length + max_response_length = {longest}",
                rule=f"prompt and response fit together in {name}, {most} tokens",
                fix="lower data.max_prompt_length or data.max_response_length"
                + (f", or raise {SECTION}.rollout.max_model_len" if most == limit else ""),
            )
    tokens, sequences = _whole(view, "rollout.max_num_batched_tokens"), _whole(view, "rollout.max_num_seqs")
    if view[SECTION].rollout.name == "vllm" and tokens and sequences and tokens < sequences:
        value = f"policy {policy}: rollout.max_num_batched_tokens={tokens} with rollout.max_num_seqs={sequences}"
        fix = f"raise {SECTION}.rollout.max_num_batched_tokens, or lower {SECTION}.rollout.max_num_seqs"
        yield ConfigError(value, rule="vLLM gives every running sequence at least one token of a batch", fix=fix)
    sizes = {kind: _whole(view, f"rollout.{kind}_parallel_size") for kind in ("tensor_model", "data", "pipeline_model")}
    spread = [f"{kind}_parallel_size={size}" for kind, size in sizes.items() if size and size > 1]
    if spread and facts_of(str(view[SECTION].rollout.name)).one_process:
        value = f"policy {policy}: rollout.{', rollout.'.join(spread)} with rollout.name={view[SECTION].rollout.name}"
        fix = f"set {SECTION}.rollout.{spread[0].split('=')[0]}=1; more workers give more replicas"
        yield ConfigError(value, rule="a replica of this engine is one process", fix=fix)
    if trained:
        yield from _budgets(view, policy, prompt + response)
        if OmegaConf.select(view, "trainer.device") == DEVICE:
            yield from _memory(view, policy)


def _budgets(view: DictConfig, policy: str, longest: int) -> Iterator[ConfigError]:
    parts = _whole(view, "actor.ulysses_sequence_parallel_size") or 1
    for key, switch in BUDGETS.items():
        budget = _whole(view, key)
        if budget and OmegaConf.select(view, f"{SECTION}.{switch}") is True and budget * parts < longest:
            yield ConfigError(
                f"policy {policy}: {key}={budget}",
                rule=f"a row has up to {longest} tokens (max_prompt_length + max_response_length), and verl ends the "
                "run at a row that is longer than the budget of a micro batch",
                fix=f"set {SECTION}.{key}={-(-longest // parts)} or more, or lower the lengths",
            )


def _memory(view: DictConfig, policy: str) -> Iterator[ConfigWarning]:
    """On a CPU a micro batch can take all memory, and the system ends the process, often without a word."""
    from ray._common.utils import get_system_memory

    budget, model = _whole(view, "actor.ppo_max_token_len_per_gpu"), view[SECTION].model
    layers, hidden, wide, vocabulary = (model_number(model, name) for name in SIZES)
    by_tokens = OmegaConf.select(view, f"{SECTION}.{BUDGETS['actor.ppo_max_token_len_per_gpu']}") is True
    if not (by_tokens and budget and layers and hidden and wide and vocabulary):
        return
    # In float32: logits with their gradient and what the loss makes of them; of a layer, what its backward pass reads.
    of_token = 4 * (5 * vocabulary + layers * (8 * hidden + 3 * wide))
    memory = get_system_memory()  # respects the limit of a container
    if budget * of_token > memory * SHARE:
        yield ConfigWarning(
            f"policy {policy}: actor.ppo_max_token_len_per_gpu={budget}",
            reason=f"so many tokens take about {budget * of_token / GIB:.0f} GiB beside the weights, of this machine's "
            f"{memory / GIB:.0f}",
            fix=f"set {SECTION}.actor.ppo_max_token_len_per_gpu={int(memory * SHARE / of_token)} or less",
        )


def _whole(view: DictConfig, key: str) -> int | None:
    value = OmegaConf.select(view, f"{SECTION}.{key}")
    return value if type(value) is int else None
