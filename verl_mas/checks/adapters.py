"""LoRA adapters: those that share a base, and that of a policy by itself. Whether they are trained and served."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from packaging.version import Version

from verl_mas.checks.verl.combinations import combinations
from verl_mas.checks.verl.model_folder import fields, modules, readable_json, settings
from verl_mas.checks.verl.refusals import Problem
from verl_mas.config.adapters import ALL_LINEAR, Targets, bases, plain, targeted
from verl_mas.config.merge import SECTION, leaves, own_section
from verl_mas.config.run import Run, View
from verl_mas.engines.contract import lacking
from verl_mas.engines.facts import ENGINES, facts_of
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.registry import closest

# What an adapter can have of its own. All else is of the weights, the processes or the engines, which are the base's.
OWN = (
    "model.lora_rank model.lora_alpha model.lora_adapter_path model.target_modules model.exclude_modules actor.optim.* "
    "actor.policy_loss.* actor.clip_ratio* actor.tau_* actor.loss_* actor.use_kl_loss actor.kl_loss_* "
    "actor.entropy_coeff actor.calculate_entropy actor.ppo_epochs actor.ppo_mini_batch_size actor.shuffle "
    "actor.data_loader_seed rollout.temperature rollout.top_p rollout.top_k rollout.val_kwargs.*"
).split()
# And these, up to the base's.
LENGTHS = ("rollout.prompt_length", "rollout.response_length")
HIGHEST_RANK = 512
# Numbers in config.json, of which one is above 1 in a mixture of experts.
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
# PEFT's first weights that are taken out of the base's, which is then another one.
CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
# Of adapter_config.json: what an adapter has beside its two matrices per module, and what it is without.
PLAIN: Mapping[str, tuple[object, ...]] = {
    "use_dora": (None, False),
    "use_rslora": (None, False),
    "modules_to_save": (None, []),
    "bias": (None, "none"),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "alora_invocation_tokens": (None,),
}
# The output layer of a language model.
HEAD = "lm_head"


def check_adapters(run: Run) -> Iterator[Problem]:
    """What is an adapter of what. `config` is as the user wrote it: in `mas` an adapter has its base's settings."""
    declared = OmegaConf.select(run.config, "mas.policies") or {}
    for base in bases(run.mas):
        others = [name for name in run.mas.policies if name != base]
        if base not in declared and (meant := closest(base, others, cutoff=0.7)):
            value = f"adapter_of={base}, which mas.policies leaves out, beside policy {meant}"
            fix = f"did you mean {meant}? If not, declare it: ++mas.policies.{base}.trainable=false"
            yield ConfigWarning(value, reason="it is added as a base, with processes and engines of its own", fix=fix)
    yield from _own_base(run)
    for name, spec in run.mas.policies.items():
        if spec.adapter_of is None:
            continue
        base = spec.adapter_of
        refused = list(combinations("adapter", run.config, own=spec, policy=name, base=run.mas.policies[base]))
        yield from refused
        if not refused:
            pool = OmegaConf.select(run.config, f"mas.policies.{name}.pool")
            if pool is not None and pool != run.mas.policies[base].pool:
                value = f"mas.policies.{name}.pool={pool}, and its base {base} is on pool {run.mas.policies[base].pool}"
                rule = "an adapter is trained and served by the processes and engines of its base"
                fix = f"remove mas.policies.{name}.pool, or set ++mas.policies.{base}.pool={pool}"
                yield ConfigError(value, rule=rule, fix=fix)
            yield from _own_settings(run, name, base)


def _own_base(run: Run) -> Iterator[ConfigWarning]:
    """A rank that was meant for the adapters and is that of a policy with weights of its own, too."""
    rank, beside = OmegaConf.select(run.config, f"{SECTION}.model.lora_rank"), bases(run.mas)
    for name, spec in run.mas.policies.items() if rank and beside else ():
        own = OmegaConf.select(OmegaConf.create(spec.overrides), "model.lora_rank")
        if own is None and spec.is_trained and not spec.adapter_of:
            yield ConfigWarning(
                f"policy {name}: model.lora_rank={rank} of {SECTION}, beside adapters of {', '.join(beside)}",
                reason="it is trained as an adapter, too, on a base of its own",
                fix=f"set ++mas.policies.{name}.overrides.model.lora_rank=0 for whole weights, or "
                f"++mas.policies.{name}.adapter_of={beside[0]}",
            )


def _own_settings(run: Run, name: str, base: str) -> Iterator[ConfigError]:
    own = OmegaConf.select(run.config, f"mas.policies.{name}.overrides")
    if not isinstance(own, DictConfig):
        return
    for path, value in leaves(OmegaConf.to_container(own, resolve=True)):
        key, view = ".".join(path), run.view(base)
        # A section without settings is a leaf, too.
        if value == {} or any(fnmatch(key, pattern) for pattern in OWN):
            continue
        if value == (of_base := view.get(key)):
            continue
        differs = f"mas.policies.{name}.overrides.{key}={value}, and its base {base} has {of_base}"
        if key not in LENGTHS:
            if not _follows(view, own, key):
                yield ConfigError(
                    differs,
                    rule="an adapter has its own rank, modules, optimiser, loss and sampling; all else is its base's, "
                    "for all of its adapters",
                    fix=f"remove it, or set {own_section(run.config, base)}.{key}={value}, or make it a policy with "
                    "weights of its own: remove adapter_of",
                )
        elif type(value) is int and type(of_base) is int and value > of_base:
            rule = "the engines and micro batches of the base are made for rows of its lengths"
            yield ConfigError(differs, rule=rule, fix=f"lower it, or raise data.max_{key.removeprefix('rollout.')}")


def _follows(base: View, own: DictConfig, key: str) -> bool:
    """Whether a value is another one because of another setting, to which verl's configuration refers."""
    parent, _, last = f"{SECTION}.{key}".rpartition(".")
    node = OmegaConf.select(base.run.config, parent)
    if not (isinstance(node, DictConfig) and last in node and OmegaConf.is_interpolation(node, last)):
        return False
    rest = copy.deepcopy(own)
    OmegaConf.set_struct(rest, False)
    above, _, _ = key.rpartition(".")
    del OmegaConf.select(rest, above)[last]
    view = base.copy()
    OmegaConf.update(view, SECTION, rest, force_add=True)
    return bool(OmegaConf.select(view[SECTION], key) == OmegaConf.select(own, key))


def check_base(view: DictConfig, base: str, names: list[str]) -> Iterator[Problem]:
    """`view` is the configuration of a base, `names` its adapters."""
    section, who = view[SECTION], f"policy {base}, the base of {', '.join(names)}"
    yield from check_trainable(who, str(section.model.get("lora_rank")))
    able = ", ".join(name for name in ENGINES if ENGINES[name].many_adapters)
    engine = facts_of(str(section.rollout.name))
    images = "vision_config" in settings(section.model)
    lacks = lacking(str(section.rollout.name))
    yield from combinations("base", view, f"{who}: ", engine=engine, able=able, images=images, lacks=lacks)


def check_adapter(view: DictConfig, policy: str) -> Iterator[Problem]:
    """`view` is the configuration of one adapter: its base's, with its own settings."""
    model, engine = view[SECTION].model, str(view[SECTION].rollout.name)
    rank = model.get("lora_rank")
    most = facts_of(engine).highest_rank or HIGHEST_RANK
    facts = {"policy": policy, "most": most, "fits": 1 <= (rank or 0) <= most}
    yield from combinations("adapter_rank", view, f"policy {policy}: ", **facts)
    known = _linear(model)
    wrong = list(check_targets(view, policy, known))
    yield from wrong
    if not any(isinstance(problem, ConfigError) for problem in wrong):
        yield from _not_linear(view, policy, known)
        if engine == "sglang":
            yield from check_sglang_targets(view, policy, known)
    yield from _experts(view, policy)
    if path := model.get("lora_adapter_path"):
        yield from _warm_start(view, policy, str(path))


def _linear(model: DictConfig) -> list[str] | None:
    """The modules that adapters can be on. Embeddings have a matrix, too; they and the head are known by their names.

    Where the head has weights of its own, verl splits it with FSDP2 by its name, which fails on PEFT's layer.
    """
    known = modules(model)
    return known and [name for name in known if "embed" not in (last := name.rpartition(".")[2]) and last != HEAD]


def _not_linear(view: DictConfig, policy: str, known: list[str] | None) -> Iterator[ConfigError]:
    """Modules that the model has, beside others that are right."""
    wanted, excluded = targets(view)
    if known is None or wanted is None or wanted == ALL_LINEAR:
        return
    others = sorted({HEAD, *(modules(view[SECTION].model, vectors=True) or ())} - {*known})
    if wrong := targeted(others, wanted, excluded):
        value = f"policy {policy}: model.target_modules={wanted} selects {wrong[0]}"
        rule = "adapters on one base are on linear layers, not on norms, embeddings and the output layer"
        yield ConfigError(value, rule=rule, fix="leave it out")


def _experts(view: DictConfig, policy: str) -> Iterator[ConfigError]:
    model = view[SECTION].model
    found = fields(model)
    experts = next((key for key in EXPERTS if isinstance(count := found.get(key), int) and count > 1), None)
    if experts and model.get("target_modules") == "all-linear":
        value = f"policy {policy}: model.target_modules=all-linear with {experts}={found[experts]} of {model.path}"
        rule = "the weights of experts are no linear modules, so all-linear does not reach them"
        fix = f"name what is trained: {SECTION}.model.target_modules=[q_proj,k_proj,v_proj,o_proj]"
        yield ConfigError(value, rule=rule, fix=fix)


def _warm_start(view: DictConfig, policy: str, path: str) -> Iterator[Problem]:
    model, folder = view[SECTION].model, Path(path).expanduser()
    who, fix = f"policy {policy}: model.lora_adapter_path={path}", "start from another adapter, or set it to null"
    found = readable_json(folder / "adapter_config.json")
    for key, without in PLAIN.items():
        if found.get(key) not in without:
            rule = "adapters on one base are plain LoRA: engines drop the rest, or read another scale"
            yield ConfigError(f"{who} has {key}={found[key]}", rule=rule, fix=fix)
    first = found.get("init_lora_weights")
    if isinstance(first, str) and first.lower().startswith(CHANGES_BASE):
        rule = "such an adapter was started by a change of its base, and the base is the same for all adapters"
        yield ConfigError(f"{who} has init_lora_weights={first}", rule=rule, fix=fix)
    for key, setting in (("r", "lora_rank"), ("lora_alpha", "lora_alpha")):
        if key in found and found[key] != model.get(setting):
            value = f"{who} has {key}={found[key]}, and model.{setting}={model.get(setting)}"
            rule = "an adapter resumes with the rank and the scale that it was trained with"
            fix = f"set ++mas.policies.{policy}.overrides.model.{setting}={found[key]}"
            yield ConfigError(value, rule=rule, fix=fix)


# Of a policy by itself.


def check_lora(view: DictConfig, policy: str) -> Iterator[Problem]:
    """`view` is the configuration of one policy."""
    model, rollout, who = view[SECTION].model, view[SECTION].rollout, f"policy {policy}"
    rank = model.get("lora_rank")
    facts = facts_of(str(rollout.name))
    yield from combinations("lora", view, f"{who}: ")
    if not rank:
        return
    yield from check_trainable(who, rank)
    known = modules(model)
    yield from check_targets(view, policy, known)
    if (model.get("lora") or {}).get("merge"):
        return
    yield from check_peft(view, who)
    yield from combinations("lora_served", view, f"{who}: ", engine=facts, lacks=lacking(str(rollout.name)))
    fix = f"set {SECTION}.model.lora.merge=True"
    for error in check_sglang_targets(view, policy, known) if rollout.name == "sglang" else ():
        yield ConfigError(error.value, rule=error.rule, fix=f"{error.fix}, or {fix}")


def check_trainable(policy: str, rank: object) -> Iterator[ConfigError]:
    if importlib.util.find_spec("peft") is None:
        value = f"{policy}: model.lora_rank={rank}, and peft is not installed"
        yield ConfigError(value, rule="verl trains adapters with peft", fix="pip install 'peft<0.21'")


def check_peft(view: DictConfig, policy: str) -> Iterator[ConfigError]:
    """An adapter that verl collects by names which PEFT 0.21 has changed (patch: lora-peft-names)."""
    strategy, installed = view[SECTION].actor.strategy, version("peft") if importlib.util.find_spec("peft") else "0"
    if strategy == "fsdp" and Version(installed) >= Version("0.21"):
        yield ConfigError(
            f"{policy}: model.lora_rank={view[SECTION].model.lora_rank} with actor.strategy=fsdp and peft {installed}",
            rule="verl then finds no tensor of the adapter to send, and the engine samples with the base",
            fix=f"pip install 'peft<0.21', or set {SECTION}.actor.strategy=fsdp2",
        )


def check_targets(view: DictConfig, policy: str, known: list[str] | None) -> Iterator[Problem]:
    """`known`: the modules that an adapter of the policy can be on; None: not known."""
    if known is None:
        return
    wanted, excluded = targets(view)
    path = f"policy {policy}: model.target_modules"
    short = sorted({name.rsplit(".", 1)[-1] for name in known})
    fix = f"set it to all-linear, or to a list of: {', '.join(short)}"
    try:
        found, kept = targeted(known, wanted), targeted(known, wanted, excluded)
    except ConfigError as error:
        yield ConfigError(f"policy {policy}: {error.value}", rule=error.rule, fix=fix)
        return
    if not found:
        rule = "as a regular expression it matches a module" if isinstance(wanted, str) else _NO_MODULE
        yield ConfigError(f"{path}={wanted}", rule=rule, fix=fix)
    elif not kept:
        yield ConfigError(f"{path}={wanted} with exclude_modules={excluded}", rule=_NO_MODULE, fix="exclude fewer")
    elif not isinstance(wanted, str) and (missing := [item for item in wanted or () if not targeted(known, [item])]):
        reason = f"the model has no module {', '.join(missing)} that an adapter can be on"
        yield ConfigWarning(f"{path}={wanted}", reason=reason, fix=fix)


_NO_MODULE = "an adapter is on modules that the model has"


def targets(view: DictConfig) -> tuple[Targets, Targets]:
    """`target_modules` and `exclude_modules`."""
    model = view[SECTION].model
    return plain(model.get("target_modules")), plain(model.get("exclude_modules"))


# What SGLang computes in one product, and of it what it needs to stack an adapter's weights.
STACKED = (({"q_proj", "k_proj", "v_proj"}, {"q_proj", "v_proj"}), ({"gate_proj", "up_proj"}, {"gate_proj"}))


def check_sglang_targets(view: DictConfig, policy: str, known: list[str] | None) -> Iterator[ConfigError]:
    """`known`: the modules that an adapter of the policy can be on; None: not known."""
    wanted, excluded = targets(view)
    path = f"policy {policy}: model.target_modules={wanted} with rollout.name=sglang"
    if isinstance(wanted, str) and wanted != ALL_LINEAR:
        rule = "SGLang takes the names of modules, not a regular expression"
        yield ConfigError(path, rule=rule, fix="set it to all-linear or a list of names")
        return
    names = (wanted or ()) if known is None else known
    try:
        each = [name.rpartition(".") for name in targeted(names, wanted, excluded)]
    except ConfigError:
        return  # `check_targets` reports it.
    for parent in dict.fromkeys(parent for parent, _, _ in each):
        on = {last for above, _, last in each if above == parent}
        for stacked, needed in STACKED:
            if on & stacked and not needed <= on:
                yield ConfigError(
                    f"{path} has {', '.join(sorted(on & stacked))} without {', '.join(sorted(needed - on))}",
                    rule="SGLang stacks the weights of query, key and value, and of gate and up: it needs those of "
                    "query and value, and of gate, to serve an adapter on one of them",
                    fix=f"add {', '.join(sorted(needed - on))}",
                )
                return
