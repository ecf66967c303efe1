"""Merges the overrides of a policy into the configuration."""

import pickle
from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf, open_dict

from verl_mas.config.schema import MasConfig, PolicySpec, Weighting

SECTION = "actor_rollout_ref"
# verl's estimator with a critic, the section of critics, and verl's default path of a model.
GAE, CRITIC, ANY_MODEL = "gae", "critic", "~/models/deepseek-llm-7b-chat"
Path = tuple[str, ...]


def own_section(config: DictConfig, name: str) -> str:
    """Return the prefix of command-line arguments that set overrides of a policy. If `mas.policies` lacks the policy,
    which is then the base of adapters, the prefix first declares the policy as frozen."""
    declared = OmegaConf.select(config, "mas.policies") or [name]
    return f"{'' if name in declared else f'++mas.policies.{name}.trainable=false '}++mas.policies.{name}.overrides"


def overridden(copied: DictConfig, spec: PolicySpec) -> DictConfig:
    """Merge a policy's overrides into a copied configuration, and return it."""
    section = copied[SECTION]
    OmegaConf.set_struct(section, False)
    # Merge in place, because `OmegaConf.merge` and the assignment of its result would copy the section twice.
    section.merge_with(spec.overrides)
    return copied


def finalize(config: DictConfig, mas: MasConfig) -> None:
    """Write into a composed configuration the values that can no longer be derived after verl has resolved it."""
    # This comes first, because the overrides are compared with the final base configuration.
    set_default_tokenizer_model(config, mas)
    if config.algorithm.adv_estimator == GAE and config.critic.model.path == ANY_MODEL:
        config.critic.model.path = config[SECTION].model.path  # verl's driver reads it
    materialize_interpolations(config, mas)


def materialize_interpolations(config: DictConfig, mas: MasConfig) -> list[str]:
    """Write into each policy's overrides the values that depend on them by interpolation. Return the added settings.

    verl resolves all interpolations before it builds the trainer. Without this function, a `ref` setting that refers to
    the `actor` would have the value of the base configuration instead of the policy's value.
    """
    # Resolve the section even if there are no overrides, because a value that cannot be resolved is an error.
    base = dict(leaves(OmegaConf.to_container(config[SECTION], resolve=True, throw_on_missing=False)))
    added = []
    overriding = {name: spec for name, spec in mas.policies.items() if spec.overrides}
    dump = pickle.dumps(config) if overriding else b""
    for name, spec in overriding.items():
        written = {path for path, _ in leaves(spec.overrides)}
        view = overridden(pickle.loads(dump), spec)[SECTION]
        for path, value in leaves(OmegaConf.to_container(view, resolve=True, throw_on_missing=False)):
            if (path in base and base[path] == value) or any(path[: len(w)] == w for w in written):
                continue
            key = f"mas.policies.{name}.overrides." + ".".join(path)
            OmegaConf.update(config, key, value, force_add=True)
            added.append(f"{key}={value}")
    return added


def set_default_tokenizer_model(config: DictConfig, mas: MasConfig) -> None:
    """Set `actor_rollout_ref.model` to the model of the first policy if every policy overrides the model. verl reads
    the data with the tokenizer of this model."""
    local = [OmegaConf.create(spec.overrides) for spec in mas.policies.values() if not spec.remote]
    paths = [OmegaConf.select(overrides, "model.path") for overrides in local]
    if paths and None not in paths:
        config[SECTION].model.path = paths[0]


def leaves(tree: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """Yield the path and value of every leaf of a nested mapping. An empty mapping is a leaf."""
    if not isinstance(tree, dict) or not tree:
        yield path, tree
        return
    for key, value in tree.items():
        yield from leaves(value, (*path, str(key)))


def snapshots(mas: MasConfig) -> list[str]:
    """List the policies that have the weights of another policy at an earlier step."""
    return [name for name, spec in mas.policies.items() if spec.snapshot]


def snapshot_sources(mas: MasConfig) -> set[str]:
    """Return the policies from which snapshots take their weights."""
    return {spec.snapshot.of for spec in mas.policies.values() if spec.snapshot}


# verl's loss aggregation mode on which each weighting is built.
LOSS_MODES: dict[Weighting, str] = {
    "token": "seq-mean-token-sum",
    "row": "seq-mean-token-mean",
    "agent": "seq-mean-token-mean",
    "agent_token": "seq-mean-token-sum",
    "session": "seq-mean-token-mean",
}


def set_mode(view: DictConfig, weighting: Weighting | None) -> None:
    """Set the loss aggregation mode of a weighting in the configuration of a policy."""
    if weighting is not None:
        with open_dict(view):
            view[SECTION].actor.loss_agg_mode = LOSS_MODES[weighting]
