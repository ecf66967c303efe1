"""Checks of LoRA adapters that share a base: whether they can be trained and served."""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from verl_mas.checks.examined import ExaminedRun
from verl_mas.checks.rules import Problem
from verl_mas.config.adapters import bases, plain, targeted
from verl_mas.config.merge import SECTION, leaves, own_section
from verl_mas.config.run import View
from verl_mas.engines.facts import ENGINES, facts_of
from verl_mas.errors import ConfigError
from verl_mas.planning.model_folder import modules, readable_json, settings

# Settings that an adapter can override. All others belong to the weights, the processes or the engines of the base.
OWN = (
    "model.lora_rank model.lora_alpha model.lora_adapter_path model.target_modules model.exclude_modules actor.optim.* "
    "actor.policy_loss.* actor.clip_ratio* actor.tau_* actor.loss_* actor.use_kl_loss actor.kl_loss_* "
    "actor.entropy_coeff actor.calculate_entropy actor.ppo_epochs actor.ppo_mini_batch_size actor.shuffle "
    "actor.data_loader_seed rollout.temperature rollout.top_p rollout.top_k rollout.val_kwargs.*"
).split()
# Settings that an adapter can override with a value up to that of its base.
LENGTHS = ("rollout.prompt_length", "rollout.response_length")
HIGHEST_RANK = 512
# Fields of adapter_config.json that extend LoRA beyond its two matrices per module -> the values in plain LoRA.
PLAIN: Mapping[str, tuple[object, ...]] = {
    "use_dora": (None, False),
    "use_rslora": (None, False),
    "modules_to_save": (None, []),
    "bias": (None, "none"),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
}
HEAD = "lm_head"


def check_adapters(run: ExaminedRun) -> Iterator[Problem]:
    """Check that adapters are on frozen, local bases, and that the settings of adapters and bases are supported."""
    for name, spec in run.mas.policies.items():
        if spec.adapter_of is None:
            continue
        base_of = run.mas.policies[spec.adapter_of]
        if base_of.adapter_of or base_of.remote or base_of.snapshot or base_of.trainable:
            rule = "adapters are trained on weights that never change, those of a frozen policy"
            fix = f"set ++mas.policies.{spec.adapter_of}.trainable=false, or another name in adapter_of"
            yield ConfigError(f"mas.policies.{name}.adapter_of={spec.adapter_of}", rule=rule, fix=fix)
            continue
        pool = OmegaConf.select(run.config, f"mas.policies.{name}.pool")
        if pool is not None and pool != base_of.pool:
            value, rule = f"mas.policies.{name}.pool={pool}", "an adapter is trained and served by its base's processes"
            yield ConfigError(value, rule=rule, fix=f"remove it, or set ++mas.policies.{spec.adapter_of}.pool={pool}")
        yield from _own_settings(run, name, spec.adapter_of)
        yield from _adapter(run.view(name))
    for base in bases(run.mas):
        yield from _base(run.view(base))


def _own_settings(run: ExaminedRun, name: str, base: str) -> Iterator[ConfigError]:
    own = OmegaConf.select(run.config, f"mas.policies.{name}.overrides")
    found = leaves(OmegaConf.to_container(own, resolve=True)) if isinstance(own, DictConfig) else ()
    for path, value in found:
        key, view = ".".join(path), run.view(base)
        # `leaves` also yields sections without settings.
        if value == {} or any(fnmatch(key, pattern) for pattern in OWN) or value == (of_base := view.get(key)):
            continue
        differs = f"mas.policies.{name}.overrides.{key}={value}, and its base {base} has {of_base}"
        if key not in LENGTHS and not _follows(run.config, key):
            rule = "an adapter has its own rank, modules, optimiser, loss and sampling; all else is its base's"
            fix = f"remove it, or set {own_section(run.config, base)}.{key}={value}, or remove adapter_of"
            yield ConfigError(differs, rule=rule, fix=fix)
        elif key in LENGTHS and type(value) is int and type(of_base) is int and value > of_base:
            rule = "the engines and micro batches of the base are made for rows of its lengths"
            yield ConfigError(differs, rule=rule, fix=f"lower it, or raise data.max_{key.removeprefix('rollout.')}")


def _follows(config: DictConfig, key: str) -> bool:
    """Whether the value of this key in verl's configuration is an interpolation, so it follows another setting."""
    parent, _, last = f"{SECTION}.{key}".rpartition(".")
    node = OmegaConf.select(config, parent)
    return isinstance(node, DictConfig) and last in node and OmegaConf.is_interpolation(node, last)


def _base(view: View) -> Iterator[ConfigError]:
    """Check the settings that the base of adapters needs."""
    facts = facts_of(view.engine)
    able = ", ".join(name for name in ENGINES if ENGINES[name].many_adapters)
    needed = {
        "actor.strategy": ("fsdp2", "FSDP2 divides the parameters one by one, frozen and trained ones together"),
        "model.lora.merge": (False, "one engine serves all adapters on the weights of the base"),
        "rollout.disaggregation.enabled": (False, "the server that decodes would compute with the bare base"),
    }
    for key, (value, why) in needed.items():
        if (given := view.get(key)) != value and (given or value):
            fix = f"set {SECTION}.{key}={'null' if value is None else value}"
            yield ConfigError(f"policy {view.name}, a base of adapters: {key}={given}", rule=why, fix=fix)
    why = "" if facts.many_adapters else f"its engine serves several adapters at once: {able}"
    if "vision_config" in settings(view.section("model")):
        why = "adapters on one base need a text model, because engines ignore adapters on a vision tower"
    if why := why or facts.lacks("adapters"):
        value = f"policy {view.name}, a base of adapters: {view.engine} with {view.get('model.path')}"
        yield ConfigError(value, rule=why, fix=f"set {SECTION}.rollout.name to one of {able}, or remove adapter_of")


def _adapter(view: View) -> Iterator[Problem]:
    model, rank = view.section("model"), view.get("model.lora_rank") or 0
    most = facts_of(view.engine).highest_rank or HIGHEST_RANK
    if not 1 <= rank <= most:
        fix = f"set ++mas.policies.{view.name}.overrides.model.lora_rank=16, or {SECTION}.model.lora_rank for all"
        value, rule = f"policy {view.name}: lora_rank={rank}", f"an adapter has a rank of 1 to {most}"
        yield ConfigError(value, rule=rule, fix=fix)
    yield from check_targets(view, _linear(model))
    if path := model.get("lora_adapter_path"):
        yield from _warm_start(view, str(path))


def _linear(model: DictConfig) -> list[str] | None:
    """List the modules that adapters can be on. Embeddings and the head also have a matrix, so they are excluded by
    name."""
    known = modules(model)
    return known and [name for name in known if "embed" not in (last := name.rpartition(".")[2]) and last != HEAD]


def check_targets(view: View, known: list[str] | None) -> Iterator[ConfigError]:
    """Check that `target_modules` and `exclude_modules` select a module. `known`: the modules that an adapter of the
    policy can be on; None if the model is not on this machine."""
    if known is None:
        return
    wanted, excluded = (plain(view.get(f"model.{key}")) for key in ("target_modules", "exclude_modules"))
    value = f"policy {view.name}: model.target_modules={wanted}, exclude_modules={excluded}"
    fix = f"set it to all-linear, or to a list of: {', '.join(sorted({name.rsplit('.', 1)[-1] for name in known}))}"
    try:
        found = targeted(known, wanted, excluded)
    except ConfigError as error:
        yield ConfigError(f"policy {view.name}: {error.value}", rule=error.rule, fix=fix)
        return
    if not found:
        yield ConfigError(value, rule="an adapter is on linear modules, and this selects none", fix=fix)


def _warm_start(view: View, path: str) -> Iterator[ConfigError]:
    found = readable_json(Path(path).expanduser() / "adapter_config.json")
    who, model = f"policy {view.name}: model.lora_adapter_path={path}", view.section("model")
    for key in (key for key, without in PLAIN.items() if found.get(key) not in without):
        rule = "adapters on one base are plain LoRA: engines drop the rest, or read another scale"
        yield ConfigError(f"{who} has {key}={found[key]}", rule=rule, fix="start from another adapter")
    for key, setting in (("r", "lora_rank"), ("lora_alpha", "lora_alpha")):
        if key in found and found[key] != model.get(setting):
            fix = f"set ++mas.policies.{view.name}.overrides.model.{setting}={found[key]}"
            rule = "an adapter resumes with the rank and the scale that it was trained with"
            yield ConfigError(f"{who} has {key}={found[key]}", rule=rule, fix=fix)
