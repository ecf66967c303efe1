"""Whether a policy can be served: its model folder and its engine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig

from verl_mas.checks.refusals import raised_by
from verl_mas.engines.facts import ENGINES, facts_of
from verl_mas.errors import ConfigError
from verl_mas.registry import nearest


def check_served(config: DictConfig) -> Iterator[ConfigError]:
    """The model and the engine of a run without a team, or of a policy's view."""
    engine, device = config.actor_rollout_ref.rollout.name, config.trainer.device
    yield from check_engine(engine, device)
    yield from check_model(config.actor_rollout_ref.model.path)
    facts = facts_of(engine)
    if facts.check_options:
        yield from raised_by(facts.check_options, config.actor_rollout_ref.rollout.engine_kwargs)
    if facts.check_model:
        yield from raised_by(facts.check_model, config.actor_rollout_ref.model.path, device)


def check_engine(name: str, device: str | None = None) -> Iterator[ConfigError]:
    known = list(ENGINES) if name in ENGINES else _engines_of_verl()
    if name not in known:
        yield ConfigError(
            f"actor_rollout_ref.rollout.name={name}",
            rule="it names a rollout engine that is registered with verl",
            fix=nearest(str(name), known),
        )
    if check := facts_of(name).check_ready:
        yield from raised_by(check, device)


def _engines_of_verl() -> list[str]:
    """With those that a package registers with verl itself. Importing verl takes seconds."""
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    return list(RolloutReplicaRegistry._registry)  # noqa: SLF001  # see verl_contract


def check_model(path: str) -> Iterator[ConfigError]:
    """A local folder must hold a model, a tokenizer and a chat template. A name on the hub is not checked."""
    if "://" in path:
        return
    folder = Path(os.path.expanduser(path))
    if folder.is_dir():
        yield from _complete(folder)
    elif folder.is_absolute() or path.count("/") != 1 or path.startswith((".", "~")):
        yield ConfigError(
            f"actor_rollout_ref.model.path={path}",
            rule="it is a folder in Hugging Face format, or the name of a model on the hub (owner/name)",
            fix="set the model path to an existing folder or to owner/name",
        )


def _complete(folder: Path) -> Iterator[ConfigError]:
    for any_of, noun, fix in (
        (["config.json"], "a model's config.json", "save the model with save_pretrained"),
        (
            ["tokenizer.json", "tokenizer_config.json", "tokenizer.model"],
            "a tokenizer",
            "save the tokenizer beside the model with tokenizer.save_pretrained",
        ),
    ):
        if not any((folder / name).exists() for name in any_of):
            yield ConfigError(f"{folder} has no {any_of[0]}", rule=f"a model folder holds {noun}", fix=fix)
    if not _has_chat_template(folder):
        yield ConfigError(
            f"{folder} has no chat template",
            rule="prompts are lists of messages, which a chat template renders as text",
            fix="set tokenizer.chat_template and save the tokenizer again, or use an instruct model",
        )


def _has_chat_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").exists() or (folder / "chat_template.json").exists():
        return True
    settings = folder / "tokenizer_config.json"
    return settings.exists() and bool(json.loads(settings.read_text()).get("chat_template"))
