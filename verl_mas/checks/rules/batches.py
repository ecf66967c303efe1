"""Batches, optimiser steps and token budgets."""

from collections.abc import Iterator

from verl_mas.checks.examined import ExaminedRun, parts_of, setting, stated
from verl_mas.checks.place import was_written
from verl_mas.checks.rules import Problem, rule
from verl_mas.config.merge import SECTION
from verl_mas.config.run import View
from verl_mas.engines.facts import facts_of
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.planning.model_folder import model_number

MINI, MICRO = "actor.ppo_mini_batch_size", "actor.ppo_micro_batch_size_per_gpu"
MANY = 16
BUDGETS = {
    "actor.use_dynamic_bsz": "actor.ppo_max_token_len_per_gpu",
    "rollout.log_prob_use_dynamic_bsz": "rollout.log_prob_max_token_len_per_gpu",
}
# verl's estimators that compare the sessions of one task.
COMPARING = ("grpo", "grpo_vectorized", "rloo", "rloo_vectorized", "gpg", "grpo_passk", "gdpo", "opo")


@rule(seen="PRIME-RL/TTRL#43, hiyouga/EasyR1#44", team=False, of="learning")
def mini_batch_per_gpu(run: ExaminedRun, view: View) -> Iterator[ConfigError]:
    """The rows of a mini batch are divided among the workers without a remainder."""
    workers, mini, sessions = run.gpus(view) // parts_of(view), view.value(MINI), view.value("rollout.n")
    if view.value("actor.strategy").startswith("fsdp") and mini * sessions % max(1, workers):
        value = f"{setting(view, MINI)}={mini} with rollout.n={sessions} on {workers} workers"
        rule = f"a mini batch has {mini} x {sessions} rows, and the workers each take as many"
        fit = next(n for n in range(mini, mini + workers + 1) if n * sessions % workers == 0)
        yield ConfigError(value, rule=rule, fix=f"set {setting(view, MINI)}={fit}, or another multiple")


@rule(seen="PRIME-RL/Entropy-Mechanism-of-RL#20, sunblaze-ucb/Intuitor#26, hiyouga/EasyR1#44", of="learning")
def many_updates(run: ExaminedRun, view: View) -> Iterator[Problem]:
    """Each optimiser step needs a row, and many steps on one batch can make the entropy collapse or explode."""
    epochs = view.get("actor.ppo_epochs") or 1
    if run.mode and view.updates_per_step > run.sessions_per_step:
        value = f"policy {view.name}: {view.updates_per_step} optimiser steps for {run.sessions_per_step} sessions"
        fix = "lower mas.updates_per_step, or raise data.train_batch_size or rollout.n"
        yield ConfigError(value, rule="each optimiser step needs at least one row", fix=fix)
    if (updates := view.updates_per_step * epochs) > MANY:
        value = f"policy {view.name}: {updates} optimiser steps per training step, {stated(view, MINI)}"
        reason = "the later steps train on rows of older weights; with 16 and more steps, entropy has collapsed"
        yield ConfigWarning(value, reason, f"raise {setting(view, MINI)}, or lower ppo_epochs")


@rule(seen="huggingface/trl#3199, modelscope/ms-swift#3980")
def group_of_one(run: ExaminedRun) -> ConfigError | ConfigWarning | None:
    """Estimators that compare the sessions of a task need more than one session per task."""
    name, own = str(run.config.algorithm.adv_estimator), run.estimator
    compares = own.compares_sessions if own else name in COMPARING and run.mode is None
    several = max(run.config[SECTION].rollout.n, run.candidates)
    remembers = own is not None and own.reads_running(run.options)
    if not compares or several > 1 or remembers or run.config.trainer.val_only or run.get("distillation.enabled"):
        return None
    value = f"{SECTION}.rollout.n=1 with algorithm.adv_estimator={name}"
    rule = "sessions of one task are compared, so a single session has no informative advantage"
    if run.mode is None:
        return ConfigWarning(value, rule, f"set {SECTION}.rollout.n=8")
    fix = f"set {SECTION}.rollout.n=8, or algorithm.adv_estimator=agent_rae, which compares all tasks"
    return ConfigError(value, rule=rule, fix=fix)


@rule(seen="Weiyun1025/verl-internvl#15, agentscope-ai/Trinity-RFT#398, verl#571, verl#3088", of="learning")
def token_budget(run: ExaminedRun, view: View) -> Iterator[ConfigError]:
    """The token budget of a micro batch is large enough for the longest row."""
    needed = -(-longest_row(view) // parts_of(view))
    for switch, budget in BUDGETS.items():
        if view.get(switch) and view.get(budget) < needed:
            rule = f"a row has up to {longest_row(view)} tokens, and verl ends the run at one above the budget"
            fix = f"set {setting(view, budget)}={needed} or more, or lower data.max_response_length"
            yield ConfigError(stated(view, budget), rule=rule, fix=fix)


def longest_row(view: View) -> int:
    return int(view.value("rollout.prompt_length")) + int(view.value("rollout.response_length"))


@rule(seen="RLHFlow/Online-DPO-R1#2, huggingface/trl#1867, hiyouga/EasyR1#207", of="served")
def lengths_fit(run: ExaminedRun, view: View) -> Iterator[ConfigError]:
    """Prompt and response fit together in the model's context and the engine's limit."""
    key, context = "rollout.max_model_len", model_number(view.section("model"), "max_position_embeddings")
    limit = view.get(key)
    for name, most in {f"{SECTION}.{key}": limit, "the model's context, max_position_embeddings": context}.items():
        if most and longest_row(view) > most:
            value = f"data.max_prompt_length + data.max_response_length = {longest_row(view)}"
            yield ConfigError(value, rule=f"together they fit in {name}, {most} tokens", fix="lower one of the two")
    if context and limit and limit > context:
        fix = f"set {setting(view, key)}={context}, or null"
        yield ConfigError(stated(view, key), rule=f"the model has a context of {context} tokens", fix=fix)


@rule(seen="verl#189, verl#259, verl#7624, hiyouga/EasyR1#648, unslothai/unsloth-zoo#1211", of="served")
def batched_tokens(run: ExaminedRun, view: View) -> Iterator[ConfigError]:
    """A batch holds a token of each running sequence and, without chunked prefill, the longest sequence."""
    tokens, chunked = (view.get(f"rollout.{key}") for key in ("max_num_batched_tokens", "enable_chunked_prefill"))
    longest = view.get("rollout.max_model_len") or longest_row(view)
    sequences = view.get("rollout.max_num_seqs")
    least = sequences if chunked else max(longest, sequences)
    if not facts_of(view.engine).batch_limit or not tokens or tokens >= least:
        return
    keys = "rollout.max_num_batched_tokens", "rollout.enable_chunked_prefill", "rollout.max_num_seqs"
    rule = f"without chunked prefill a batch holds the longest sequence, {longest} tokens; always one per sequence"
    fix = f"set {setting(view, keys[0])}={max(longest, sequences)}, or leave chunked prefill on"
    yield ConfigError(stated(view, *keys), rule=rule, fix=fix)


@rule(seen="verl#4534, verl#260")
def nothing_saved(run: ExaminedRun) -> ConfigWarning | None:
    """A run of many steps saves checkpoints. By default, verl saves no checkpoint, so the trained weights are lost."""
    trainer = run.config.trainer
    steps = trainer.total_training_steps or trainer.total_epochs
    if trainer.save_freq > 0 or trainer.val_only or steps <= 2 or was_written("trainer.save_freq"):
        return None
    reason = "nothing is ever saved, not even the weights of the last step, and a crash loses the run"
    return ConfigWarning(f"trainer.save_freq={trainer.save_freq}", reason, "set trainer.save_freq=20")


@rule(seen="huggingface/trl#2872, dhcode-cpp/X-R1#66, huggingface/trl#3452", of="learning")
def rate_of_adapter(run: ExaminedRun, view: View) -> Iterator[ConfigWarning]:
    """A LoRA adapter needs about ten times the learning rate of whole weights."""
    if view.get("model.lora_rank") and (rate := view.get("actor.optim.lr")) <= 2e-6:
        value, reason = stated(view, "actor.optim.lr", "model.lora_rank"), "the rate is one for whole weights"
        fix = f"set {setting(view, 'actor.optim.lr')}={rate * 10:g} or more: ten times that rate is usual for LoRA"
        yield ConfigWarning(value, reason, fix)


@rule(seen="vllm-project/vllm#20305, vllm-project/vllm#10797", of="served")
def memory_fraction(run: ExaminedRun, view: View) -> Iterator[ConfigWarning]:
    """An engine starts only if its share of the GPU is free."""
    share = view.get("rollout.gpu_memory_utilization")
    if facts_of(view.engine).gpu_fraction and run.config.trainer.device == "cuda" and share > 0.97:
        key = "rollout.gpu_memory_utilization"
        reason = "the engine starts only if this share of the GPU is free, and CUDA's contexts take a part of it"
        yield ConfigWarning(stated(view, key), reason, f"set {setting(view, key)}=0.6")
