"""Checks of snapshots: policies with the weights that a trained policy had at an earlier step."""

from __future__ import annotations

from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf

from verl_mas.checks.refusals import Problem
from verl_mas.config.merge import trained
from verl_mas.config.run import Run
from verl_mas.config.schema import MasConfig, SnapshotSpec
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.registry import nearest


def check_snapshots(run: Run) -> Iterator[Problem]:
    for name, spec in run.mas.policies.items():
        if spec.snapshot is None:
            continue
        # `mas` does not tell a value from its default.
        yield from _not_also(
            name, OmegaConf.select(run.config, f"mas.policies.{name}.trainable") is True, "trainable=true"
        )
        yield from _not_also(name, spec.remote is not None, "remote")
        if spec.snapshot.of not in run.trained:
            yield _of_untrained(name, spec.snapshot, run.mas)
            continue
        yield from _same_model(run, name, spec.snapshot)
        yield from _ever_refreshed(run.config, name, spec.snapshot)


def _not_also(name: str, wrong: bool, setting: str) -> Iterator[ConfigError]:
    if wrong:
        yield ConfigError(
            f"mas.policies.{name}.snapshot with {setting}",
            rule="a snapshot is served here and never trained: its weights are those of another policy",
            fix=f"remove one of the two from mas.policies.{name}",
        )


def _of_untrained(name: str, snapshot: SnapshotSpec, mas: MasConfig) -> ConfigError:
    source = mas.policies.get(snapshot.of)
    kind = "is not there" if source is None else "is a snapshot" if source.snapshot else "is not trained"
    return ConfigError(
        f"mas.policies.{name}.snapshot.of={snapshot.of}, which {kind}",
        rule="a snapshot takes the weights of a policy that this run trains",
        fix=nearest(snapshot.of, trained(mas)),
    )


def _same_model(run: Run, name: str, snapshot: SnapshotSpec) -> Iterator[ConfigError]:
    source = run.view(snapshot.of)
    path, of_source = (view.get("model.path") for view in (run.view(name), source))
    if path != of_source:
        yield ConfigError(
            f"mas.policies.{name}.overrides.model.path={path}, and policy {snapshot.of} has {of_source}",
            rule="a snapshot has the weights of its policy, and starts with the same model",
            fix=f"remove mas.policies.{name}.overrides.model",
        )
    rank = source.get("model.lora_rank") or 0
    if source.spec.adapter_of:
        yield ConfigError(
            f"mas.policies.{name}.snapshot.of={snapshot.of}, which is an adapter of {source.spec.adapter_of}",
            rule="a snapshot takes whole weights, and adapters on one base are never merged into them",
            fix=f"remove mas.policies.{snapshot.of}.adapter_of, so that it has weights of its own",
        )
    elif rank > 0 and not source.get("model.lora.merge"):
        yield ConfigError(
            f"policy {snapshot.of}: model.lora_rank={rank} with model.lora.merge=False and a snapshot, {name}",
            rule="a snapshot takes whole weights, so the trainer merges the adapter into them",
            fix="set actor_rollout_ref.model.lora.merge=True",
        )


def _ever_refreshed(config: DictConfig, name: str, snapshot: SnapshotSpec) -> Iterator[ConfigWarning]:
    steps, first = config.trainer.total_training_steps, snapshot.first or snapshot.every
    if isinstance(steps, int) and first >= steps:
        setting = f"first={first}" if snapshot.first else f"every={first}"
        yield ConfigWarning(
            f"mas.policies.{name}.snapshot.{setting} with trainer.total_training_steps={steps}",
            reason="no step follows the first refresh, so it is the start model in all of them",
            fix=f"lower it; for a policy that never changes, use mas.policies.{name}.trainable=false without snapshot",
        )
