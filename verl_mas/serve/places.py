"""Where the weights of an exported team are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from verl_mas.errors import ConfigError, raise_all
from verl_mas.run_folder.checkpoints import POINTER, RUN_FILE
from verl_mas.trainer.adapters.files import CONFIG, WEIGHTS
from verl_mas.workflow.team_file import TEAM_FILE, TeamFile, read_team


@dataclass(frozen=True)
class Place:
    """`model`: a folder, or a name on the hub; with `adapter` a PEFT folder on it."""

    model: str
    tokenizer: str
    chat_template: str | None = None
    adapter: Path | None = None


def open_export(folder: Path) -> TeamFile:
    """The team in a folder that `verl-mas export` wrote."""
    if (folder / RUN_FILE).exists() or (folder / POINTER).exists():
        raise ConfigError(
            f"{folder} is a {'checkpoint' if (folder / RUN_FILE).exists() else 'run'}",
            rule="a team is loaded from what verl-mas export wrote",
            fix=f"verl-mas export {folder} --out DIR, and give DIR",
        )
    if not (folder / TEAM_FILE).is_file():
        raise ConfigError(
            f"{folder} has no {TEAM_FILE}" if folder.is_dir() else f"{folder} is not there",
            rule="verl-mas export writes it last, so a folder without it is not a whole export",
            fix="verl-mas export RUN --out DIR, and give DIR",
        )
    return read_team(folder)


def places(folder: Path, team: TeamFile, policies: list[str]) -> dict[str, Place]:
    """Where these policies are; refuses all of which a part is missing."""
    raise_all(problem for name in policies for problem in _missing(folder, team, name))
    return {name: _place(folder, team, name) for name in policies}


def _missing(folder: Path, team: TeamFile, name: str) -> Iterator[ConfigError]:
    policy = team.policies[name]
    if policy.folder is None:
        return
    own = folder / name
    files = [CONFIG, WEIGHTS] if (own / CONFIG).exists() else ["config.json"]
    for needed in [own / file for file in files] if own.is_dir() else [own]:
        if not needed.exists():
            yield ConfigError(
                f"{needed} is not there",
                rule=f"{TEAM_FILE} says that policy {name} has weights of its own in the folder {name}",
                fix="export the run again, or copy the whole folder",
            )


def _place(folder: Path, team: TeamFile, name: str) -> Place:
    policy = team.policies[name]
    if policy.folder is None:
        return Place(str(policy.model), policy.tokenizer or str(policy.model), policy.chat_template)
    own = folder / name
    if (own / CONFIG).exists():
        return Place(str(policy.model), str(own), adapter=own)
    return Place(str(own), str(own))
