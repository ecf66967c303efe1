"""The training of a policy: its engine, attention, adapters, checkpoints and correction."""

from collections.abc import Iterator, Mapping

from verl_mas.checks.examined import ExaminedRun, parts_of, setting, stated
from verl_mas.checks.rules import Problem, rule
from verl_mas.config.adapters import adapters
from verl_mas.config.merge import SECTION
from verl_mas.config.run import CORRECTION, READERS, View
from verl_mas.config.verl_settings import attention, is_flash
from verl_mas.engines.facts import facts_of
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.planning import model_folder as model
from verl_mas.planning.path import by_rows
from verl_mas.workflow.agents import flat

# PACKED_BY_VERL: models with a state, for which verl marks where a packed row ends. HEAD_GATHERED: models whose head
# verl gathers.
PACKED_BY_VERL = ("qwen3_5", "qwen3_5_moe")
HEAD_GATHERED = ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
ULYSSES = "actor.ulysses_sequence_parallel_size"
# Sampling settings that exclude tokens -> the values with which they exclude no token.
TRUNCATING: Mapping[str, tuple[object, ...]] = {"top_p": (1, None), "top_k": (-1, 0, None), "min_p": (0, None)}


@rule(seen="THU-KEG/AdaptThink#1, MIV-XJTU/FSDrive#21, verl#1226, DAMO-NLP-SG/LongPO#5", of="served")
def whole_heads(run: ExaminedRun, view: View) -> Iterator[ConfigError]:
    """Tensor and sequence parallel sizes divide the attention heads."""
    tensor = "rollout.tensor_model_parallel_size"
    sizes = {} if facts_of(view.engine).one_process else {tensor: int(view.value(tensor))}
    sizes |= {ULYSSES: parts_of(view)} if view in run.learning else {}
    names = ("num_attention_heads", "num_key_value_heads")
    heads, shared = (model.model_number(view.section("model"), name) for name in names)
    for key, parts in sizes.items():
        # If there are fewer heads of keys and values than parts, these heads are repeated.
        if heads and (heads % parts or (shared and shared % parts and parts % shared)):
            value = f"{setting(view, key)}={parts} with {view.get('model.path')}"
            rule = f"it divides the model's {heads} attention heads ({shared or heads} of keys and values)"
            fits = [size for size in range(1, heads + 1) if heads % size == 0 and size <= run.gpus(view)]
            yield ConfigError(value, rule=rule, fix=f"set {setting(view, key)} to one of {fits}")


@rule(seen="verl#1191, verl#1182, verl#2596", of="learning")
def whole_shards(run: ExaminedRun, view: View) -> Iterator[ConfigError]:
    """Sequence parallel and FSDP sizes divide the GPUs."""
    gpus, fsdp = run.gpus(view), view.get("actor.fsdp_config.fsdp_size")
    sizes = {ULYSSES: parts_of(view), "actor.fsdp_config.fsdp_size": max(1, min(fsdp or -1, gpus))}
    for key in (key for key, size in sizes.items() if gpus % size):
        value = f"{setting(view, key)}={sizes[key]} on {gpus} GPUs"
        fix = f"set {setting(view, key)} to a divisor of {gpus}"
        yield ConfigError(value, rule="it divides the GPUs that train the policy", fix=fix)


@rule(seen="hiyouga/LlamaFactory#10616, verl#6660", of="learning")
def ulysses_attention(run: ExaminedRun, view: View) -> ConfigError | None:
    """verl can divide a sequence among GPUs only with flash-attn."""
    if parts_of(view) == 1 or is_flash(used := attention(view.config)):
        return None
    value = f"{setting(view, ULYSSES)}={parts_of(view)} with attn_implementation={used}"
    rule = "other attention would see a part of each sequence, and the update would be wrong"
    return ConfigError(value, rule=rule, fix=f"set {setting(view, ULYSSES)}=1, or flash_attention_2")


@rule(seen="THUDM/slime#1686, verl#6660, huggingface/transformers#46093", of="learning")
def packed_state(run: ExaminedRun, view: View) -> Iterator[ConfigWarning]:
    """In a packed micro batch, linear attention carries its state from one row into the next."""
    own, packed = view.section("model"), view.get("model.use_remove_padding")
    if packed and model.is_stateful(own) and model.settings(own).get("model_type") not in PACKED_BY_VERL:
        value, fix = stated(view, "model.use_remove_padding", "model.path"), "set use_remove_padding=False"
        reason = "the model carries a state from token to token, and verl does not mark where a packed row ends"
        yield ConfigWarning(value, reason, fix)


@rule(seen="verl#5633, verl#5920", of="learning")
def fused_head(run: ExaminedRun, view: View) -> Iterator[ConfigWarning]:
    """verl's fused kernels read the whole head, which FSDP2 divides."""
    own, fused = view.section("model"), view.get("model.use_fused_kernels")
    gathered = model.settings(own).get("model_type") in HEAD_GATHERED
    if fused and view.get("actor.strategy") == "fsdp2" and model.has_own_head(own) and not gathered:
        value = stated(view, "model.use_fused_kernels", "actor.strategy", "model.path")
        reason = "FSDP2 divides a head with weights of its own, and verl's kernels read it outside of its layer"
        fix = f"set {setting(view, 'model.use_fused_kernels')}=False, or {SECTION}.actor.strategy=fsdp"
        yield ConfigWarning(value, f"{reason} (torch: got mixed torch.Tensor and DTensor)", fix)


@rule(seen="verl#7561, verl-project/uni-agent#191", team=True, of="learning")
def shared_prefixes(run: ExaminedRun, view: View) -> Problem | None:
    """A tree of prefixes needs a model with full attention, and log-probs that are computed from logits."""
    why = by_rows(view) if view.shared_prefixes else None
    if why is None:
        return None
    value, key = f"{stated(view, 'model.path')} with shared_prefixes", f"mas.policies.{view.name}.shared_prefixes"
    if view.shared_prefixes == "auto":
        return ConfigWarning(value, f"prefixes are computed for each row: {why}", f"set {key}=false")
    return ConfigError(value, rule=why, fix=f"set {key}=false")


@rule(seen="verl's own scripts for Megatron, VeOmni and TorchTitan with +mas=solver_verifier", team=True)
def fsdp_alone(run: ExaminedRun) -> Iterator[ConfigError]:
    """Teams are trained with FSDP."""
    strategies = {str(view.get("actor.strategy")) for view in run.learning}
    if others := strategies - {"fsdp", "fsdp2"}:
        rule = "with another engine no team has been run, and verl chooses settings of all policies by the first"
        fix = f"leave out model_engine and the keys of its engine, and set {SECTION}.actor.strategy=fsdp2"
        yield ConfigError(f"{SECTION}.actor.strategy={min(others)}", rule=rule, fix=fix)


@rule(seen="verl#7952, rllm-org/rllm#897", of="learning")
def saved_in_time(run: ExaminedRun, view: View) -> Iterator[ConfigError]:
    """FSDP never writes the pointer of a checkpoint that is saved asynchronously."""
    key = "actor.checkpoint.async_save"
    if view.get(key) and str(view.get("actor.strategy")).startswith("fsdp"):
        rule = "no process writes the pointer to such a checkpoint, so a run that resumes starts from step 0"
        yield ConfigError(stated(view, key), rule=rule, fix=f"set {setting(view, key)}=False")


# Rules on the LoRA adapter of a policy with weights of its own. `checks.adapters` checks adapters that share a base.


@rule(seen="verl's own script examples/tuning/lora/run_qwen3_8b_from_adapter_fsdp.sh", of="learning")
def unread_adapter(run: ExaminedRun, view: View) -> Iterator[Problem]:  # patch: lora-adapter-path
    """verl loads an adapter only if lora_rank is above 0, and FSDP ignores Megatron's rank."""
    if view.get("model.lora_rank"):
        return
    if view.get("model.lora_adapter_path"):
        reason = "verl loads an adapter only where lora_rank is above 0, so all weights are trained"
        fix = f"set {SECTION}.model.lora_rank to the adapter's rank, or lora_adapter_path=null"
        yield ConfigWarning(stated(view, "model.lora_adapter_path", "model.lora_rank"), reason, fix)
    if view.get("model.lora.rank") and str(view.get("actor.strategy")).startswith("fsdp"):
        fix = f"set {SECTION}.model.lora_rank={view.get('model.lora.rank')} and model.lora.rank=0"
        yield ConfigError(stated(view, "model.lora.rank"), rule="FSDP reads model.lora_rank", fix=fix)


@rule(seen="verl#7495, huggingface/trl#5312", of="served")
def adapter_reaches_engine(run: ExaminedRun, view: View) -> Iterator[ConfigError]:
    """An adapter that is not merged needs an engine that can serve it."""
    rank, facts = view.get("model.lora_rank") or 0, facts_of(view.engine)
    if not rank or view.get("model.lora.merge") or view.spec.adapter_of or adapters(run.mas, view.name):
        return
    most = facts.highest_rank or rank
    why = "the engine takes whole weights" if not facts.takes_adapters else ""
    why = why or (f"the engine serves ranks up to {most}" if rank > most else "")
    if run.mode and run.mode.name == "mas_separate_async":
        why = "verl sends whole weights to engines on other GPUs, and leaves adapters out"
    if not view.spec.is_trained:
        why = "a frozen policy has no adapter: the engine would serve the bare weights"
    if why:
        fix = f"set {setting(view, 'model.lora.merge')}=True, or lora_rank=0"
        yield ConfigError(f"policy {view.name}: {stated(view, 'model.lora_rank')}", rule=why, fix=fix)


@rule(seen="patches/README.md: clip-ratio, freeze-vision-tower", of="learning")
def unread_by_verl(run: ExaminedRun, view: View) -> Iterator[ConfigWarning]:
    """verl reads clip_ratio only for a bound that is null, and never reads freeze_vision_tower."""
    ratio, low, high = (view.get(f"actor.clip_ratio{part}") for part in ("", "_low", "_high"))
    if ratio not in (0.2, low, high) and None not in (low, high):
        reason = "verl reads clip_ratio only where the two others are null"
        yield ConfigWarning(stated(view, "actor.clip_ratio"), reason, "set clip_ratio_low and clip_ratio_high")
    if view.get("actor.freeze_vision_tower"):
        reason = "verl 0.9.1 reads it nowhere, so the tower is trained"
        yield ConfigWarning(stated(view, "actor.freeze_vision_tower"), reason, "remove it, or apply the patch")


# Rules on the correction for rows that were not sampled with the current weights.


@rule(seen="verl#4912, verl#4272", of="learning")
def bypass_unread(run: ExaminedRun, view: View) -> Iterator[ConfigWarning]:
    """In bypass mode, verl's V1 trainer ignores the other settings of the correction."""
    found = view.correction
    unread = {key: found.get(key) for key in ("rollout_is", "rollout_rs") if found.get(key)}
    unread |= {} if found.get("loss_type") in (None, "ppo_clip") else {"loss_type": found.loss_type}
    if found.get("bypass_mode") and unread:
        given = ", ".join(f"{key}={value}" for key, value in unread.items())
        reason = "verl's V1 trainer then takes the engine's log-probs as the old ones, and reads nothing else here"
        fix = f"set {CORRECTION}.bypass_mode=False, or remove {', '.join(unread)}"
        yield ConfigWarning(f"{CORRECTION}.bypass_mode=True with {given}", reason, fix)


@rule(seen="verl#2953, verl#3694", of="learning")
def log_probs_of_engine(run: ExaminedRun, view: View) -> Iterator[ConfigError]:
    """A correction reads the engine's log-probs."""
    used = [key for key in READERS if view.correction.get(key)]
    if (used or run.ahead) and not view.get("rollout.calculate_log_probs"):
        value = f"{SECTION}.rollout.calculate_log_probs=False with {', '.join(used) or 'an asynchronous mode'}"
        rule = "the correction compares the engine's log-probs with the trainer's"
        yield ConfigError(value, rule=rule, fix=f"set {SECTION}.rollout.calculate_log_probs=True")


@rule(seen="verl#4912, verl#4070", of="learning")
def rejection(run: ExaminedRun, view: View) -> Iterator[ConfigError]:
    """verl parses the settings of a rejection only in its first update, so the check calls verl's parser now."""
    option, threshold = (view.correction.get(key) for key in ("rollout_rs", "rollout_rs_threshold"))
    if not option:
        return
    import torch
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_rejection_mask

    try:
        compute_rollout_rejection_mask(torch.ones(1, 1), torch.ones(1, 1), option, threshold)
    except (ValueError, TypeError) as error:
        value = f"{CORRECTION}.rollout_rs={option} with rollout_rs_threshold={threshold}"
        yield ConfigError(value, rule=f"verl takes both: {error}", fix="set rollout_rs=token_k1 and 0.5_2.0")


@rule(seen="huggingface/trl#6789, PrimeIntellect-ai/prime-rl#2979, verl#6240", team=True, of="learning")
def truncated_sampling(run: ExaminedRun, view: View) -> Iterator[ConfigError]:
    """Engines compute log-probs over the tokens that truncation keeps, but trainers compute them over all tokens."""
    corrected = run.ahead and any(view.correction.get(key) for key in READERS)
    if not (corrected or view.correction.get("bypass_mode")):
        return
    for name, agent in run.learners(view).items():
        own = flat(agent.spec.sampling)
        for key, harmless in TRUNCATING.items():
            value = own.get(key, view.get(f"rollout.{key}") if key != "min_p" else None)
            if isinstance(value, int | float) and value not in harmless:
                rule = "engines compute log-probs after excluding tokens, trainers before, so every ratio is wrong"
                fix = f"set ++mas.agents.{agent.role}.sampling.{key}={harmless[0]}, or that of the rollout"
                yield ConfigError(f"agent {name} is trained with {key}={value:g}", rule=rule, fix=fix)
