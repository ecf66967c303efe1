"""Finds keys that verl does not know and values that it does not accept, according to verl's YAML, dataclasses,
registries and checks."""

import contextlib
import difflib
import io
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from typing import Annotated, Literal, cast

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from verl_mas.checks.examined import ExaminedRun
from verl_mas.checks.refusals import Problem, unresolved
from verl_mas.config.merge import SECTION, leaves
from verl_mas.config.placement import pool_shape
from verl_mas.config.run import CORRECTION, Run
from verl_mas.config.values import Above, Count, Hint, NotNegative, Positive, Range, Share, Temperature, Text
from verl_mas.config.values import problems as problems_of
from verl_mas.config.verl_settings import SettingDifference, SettingsSection, differences, section_at, settings_of
from verl_mas.engines.facts import ENGINES, facts_of
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.verl_.registries import devices, loggers, losses, replicas, tool_formats

GROUPS = ("mas", "platform", "recipe")  # groups of our configuration: `+platform=cpu`
REFERS = re.compile(r"\$\{\s*(?:oc\.select:\s*)?(\w+)")
Whole = Annotated[int, Range(0)]
AllOr = Literal[-1] | Count
# Errors that verl's own checks and dataclasses raise.
REFUSED = (ValueError, AssertionError, TypeError, NotImplementedError, OmegaConfBaseException, HydraException)


def engines() -> Iterable[str]:
    from verl.workers.rollout import replica

    return [*ENGINES, *replicas(replica)]


# Ranges and choices that verl does not declare for its settings, so a wrong value would fail late or not at all.
# Names that begin with actor, model, ref or rollout are below `actor_rollout_ref`.
NUMBERS: Mapping[str, Hint] = {
    """
    data.train_batch_size data.max_prompt_length data.max_response_length trainer.nnodes trainer.n_gpus_per_node
    trainer.total_epochs reward.num_workers actor.ppo_mini_batch_size actor.ppo_max_token_len_per_gpu actor.ppo_epochs
    actor.ulysses_sequence_parallel_size rollout.n rollout.val_kwargs.n rollout.prompt_length rollout.response_length
    rollout.tensor_model_parallel_size rollout.data_parallel_size rollout.pipeline_model_parallel_size
    rollout.max_num_seqs rollout.max_num_batched_tokens rollout.agent.num_workers
    """: Count,
    """
    trainer.total_training_steps rollout.max_model_len actor.ppo_micro_batch_size_per_gpu
    rollout.log_prob_micro_batch_size_per_gpu ref.log_prob_micro_batch_size_per_gpu
    """: Count | None,
    """
    ray_kwargs.ray_init.num_cpus ray_kwargs.ray_init.num_gpus trainer.v1.sampler.max_off_policy_threshold
    """: Whole | None,
    "model.lora_rank model.lora_alpha": Whole,
    """
    data.train_max_samples data.val_max_samples rollout.top_k rollout.val_kwargs.top_k actor.fsdp_config.fsdp_size
    """: AllOr,
    "trainer.save_freq trainer.test_freq": Annotated[int, Range(-1)],
    "rollout.gpu_memory_utilization rollout.top_p rollout.val_kwargs.top_p": Annotated[float, Above(0), Range(high=1)],
    "rollout.temperature rollout.val_kwargs.temperature": Temperature,
    "actor.optim.lr": Annotated[float, Range(0, 10)],
    "actor.grad_clip": Positive,
    "algorithm.gamma": Share,
    """
    trainer.v1.colocate_async.num_warmup_batches trainer.v1.separate_async.num_warmup_batches
    actor.clip_ratio actor.clip_ratio_low actor.clip_ratio_high actor.kl_loss_coef
    """: NotNegative,
}
VALUES: Mapping[str, Hint] = {
    **{
        f"{SECTION}.{name}" if name.startswith(("actor.", "model.", "ref.", "rollout.")) else name: hint
        for names, hint in NUMBERS.items()
        for name in names.split()
    },
    f"{SECTION}.model.path": str,
    "data.truncation": Literal["left", "right", "middle", "error"],
    "data.train_files": str | list[str] | None,
    "data.val_files": str | list[str] | None,
    "data.reward_fn_key": str,
    "trainer.default_local_dir": Text,
    "trainer.rollout_data_dir": Text | None,
    "trainer.validation_data_dir": Text | None,
    "trainer.resume_mode": Literal["auto", "disable", "resume_path"],
    "trainer.v1.sampler.max_off_policy_strategy": Literal["drop", "wait"],
    f"{CORRECTION}.rollout_is": Literal["token", "sequence"] | None,
    f"{CORRECTION}.loss_type": Literal["ppo_clip", "reinforce"],
}
# Settings whose choices verl has in a registry.
CHOICES: Mapping[str, Callable[[], Iterable[str]]] = {
    f"{SECTION}.actor.policy_loss.loss_mode": losses,
    "trainer.logger": loggers,
    "trainer.device": devices,
    f"{SECTION}.rollout.name": engines,
    f"{SECTION}.rollout.multi_turn.format": tool_formats,
}


def takes(path: str) -> Hint | None:
    """Return the type that the values of a verl setting must have, if it is stricter than the type that verl declares;
    else None."""
    if path in CHOICES:
        names: Hint = Literal[tuple(CHOICES[path]())]
        return names | list[names] if path == "trainer.logger" else names  # type: ignore[valid-type]
    return VALUES.get(path)


def check_keys(config: DictConfig) -> Iterator[Problem]:
    """Find keys that verl does not read. `config` is the configuration as Hydra composed it."""
    verl, raw = settings_of(config), plain(config)
    # Top-level keys of the user to which an interpolation such as `${my_rate}` refers.
    used = {name for _, value in leaves(raw) for name in REFERS.findall(str(value))}
    for difference in differences(raw, verl):
        if difference.known or difference.path in used:
            continue
        error = unknown(difference, verl)
        if difference.path.startswith("data.") and OmegaConf.select(config, "data.custom_cls.path"):
            yield ConfigWarning(error.value, f"{error.rule}; only your data.custom_cls can", error.fix)
        else:
            yield error


def plain(config: object) -> Mapping[str, object]:
    """Convert a configuration to plain data, without resolving its interpolations."""
    return cast("Mapping[str, object]", OmegaConf.to_container(config, resolve=False)) if config else {}


def unknown(difference: SettingDifference, verl: SettingsSection) -> ConfigError:
    """Report a key that verl does not read. Suggest settings of the same name in other sections or, if there are none,
    keys with a similar name."""
    keys = list(dict.fromkeys([*difference.section.keys, *(() if difference.section.path else GROUPS)]))
    prefix = difference.path.removesuffix(difference.key)
    meant = [".".join(path) for path, _ in leaves(verl.yaml) if path[-1] == difference.key]
    meant = meant or [prefix + name for name in difflib.get_close_matches(difference.key, keys, n=3)]
    rule = f"verl reads no key {difference.key!r} in {difference.section.path or 'the configuration'}"
    fix = f"did you mean {', '.join(meant[:3])}?" if meant else f"known: {', '.join(keys)}"
    return ConfigError(f"{difference.path} is not a setting", rule=rule, fix=fix)


def check_values(config: DictConfig) -> Iterator[Problem]:
    """Find values that verl does not accept, by type, range, choices, and whether interpolations can be resolved."""
    for difference in differences(plain(config), settings_of(config)):
        if difference.known:
            yield from _of_value(config, difference, difference.path)


def check_overrides(run: Run) -> Iterator[Problem]:
    """Find keys and values in the overrides of policies that verl does not accept."""
    verl = settings_of(run.config)
    for name in run.mas.policies:
        for key, path in (("overrides", SECTION), ("rollout_correction", CORRECTION)):
            place, section = f"mas.policies.{name}.{key}", section_at(path, verl)
            assert section
            for found in differences(plain(OmegaConf.select(run.config, place)), section, place):
                verls = f"{path}{found.path.removeprefix(place)}"
                yield from _of_value(run.config, found, verls) if found.known else [unknown(found, verl)]


def _of_value(config: DictConfig, difference: SettingDifference, path: str) -> Iterator[Problem]:
    """Check one value. `path` is the path of verl's setting, also for a value in the overrides of a policy."""
    try:
        value = OmegaConf.select(config, difference.path)
        value = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except OmegaConfBaseException as error:
        yield unresolved(error)
        return
    if difference.section.below(difference.key) is None:
        yield from problems_of(takes(path) or difference.section.hint(difference.key), value, difference.path)
    elif value is not None and not isinstance(value, Mapping):
        rule, fix = "this is a section, not a value", f"set {difference.path}.<key>"
        yield ConfigError(f"{difference.path}={value!r}", rule=rule, fix=fix)


def check_validated(run: ExaminedRun) -> Iterator[ConfigError]:
    """Find settings that verl itself refuses, for each policy."""
    for name, spec in run.mas.policies.items():
        if spec.remote:
            continue
        view, shape = run.view(name).copy(), pool_shape(run, spec.pool)
        view.trainer.nnodes, view.trainer.n_gpus_per_node = len(shape), shape[0]
        if run.mode and run.config[SECTION].actor.use_dynamic_bsz:
            # A team's rows are padded to the number that its workers need, so the number of sessions need not be a
            # multiple of a policy's GPUs. verl would require this, so let it validate the policy with one GPU.
            view.trainer.nnodes = view.trainer.n_gpus_per_node = 1
        package = facts_of(view[SECTION].rollout.name).package
        if package and find_spec(package) is None:
            # Without this setting, verl would import the engine to ask which LoRA ranks it accepts. Another check
            # reports that the engine is not installed.
            OmegaConf.update(view, f"{SECTION}.model.lora.merge", True, force_add=True)
        if why := _refused(view):
            own = f", or mas.policies.{name}.overrides" if run.mode else ""
            whose = f"policy {name}: " if run.mode else ""
            yield ConfigError(f"{whose}{why}", rule="verl itself refuses it", fix=f"change it in {SECTION}{own}")


def _refused(view: DictConfig) -> str:
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            # Decide as verl's `need_reference_policy` does; importing its module would import datasets, which takes a
            # third of a second.
            reference = bool(view.algorithm.get("use_kl_in_reward") or view[SECTION].actor.use_kl_loss)
            validate_config(view, use_reference_policy=reference, use_critic=False)
            # verl's servers and trainer convert these sections, so convert them here to find values that they refuse.
            for section in [view[SECTION].rollout, *([view.distillation] if view.distillation.enabled else [])]:
                omega_conf_to_dataclass(section)
    except REFUSED as error:
        cause = error.__cause__ or error  # Hydra wraps the exception of a dataclass in its own exception
        # Some of verl's assertions have no message, so show the line of code instead.
        return str(cause) or f"{traceback.extract_tb(cause.__traceback__)[-1].line}"
    return ""
