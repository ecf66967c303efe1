"""Finds the weights of an exported team."""

from dataclasses import dataclass
from pathlib import Path

from verl_mas.errors import ConfigError, raise_all
from verl_mas.planning.model_folder import shapes_in
from verl_mas.run_folder.checkpoints import POINTER, RUN_FILE
from verl_mas.trainer.adapters.files import CONFIG, WEIGHTS
from verl_mas.workflow.team_file import TEAM_FILE, TeamFile, read_team


@dataclass(frozen=True)
class Place:
    """Weights of a policy. `model`: a folder, or a name on the hub; `adapter`: a PEFT folder for that model."""

    model: str
    tokenizer: str
    chat_template: str | None = None
    adapter: Path | None = None


def open_export(folder: Path) -> TeamFile:
    """Read the team in a folder that `verl-mas export` wrote."""
    if (folder / RUN_FILE).exists() or (folder / POINTER).exists():
        value = f"{folder} is a {'checkpoint' if (folder / RUN_FILE).exists() else 'run'}"
        rule = "a team is loaded from what verl-mas export wrote"
        raise ConfigError(value, rule=rule, fix=f"verl-mas export {folder} --out DIR, and give DIR")
    if not (folder / TEAM_FILE).is_file():
        value = f"{folder} has no {TEAM_FILE}" if folder.is_dir() else f"{folder} is not there"
        rule = "verl-mas export writes it last, so a folder without it is not a whole export"
        raise ConfigError(value, rule=rule, fix="verl-mas export RUN --out DIR, and give DIR")
    return read_team(folder)


def places(folder: Path, team: TeamFile, policies: list[str]) -> dict[str, Place]:
    """Find the weights of these policies. Raises ConfigErrors for all missing and incomplete files at once."""
    placed, missing = {}, []
    for name in policies:
        policy, own = team.policies[name], folder / name
        if policy.folder is None:
            placed[name] = Place(str(policy.model), policy.tokenizer or str(policy.model), policy.chat_template)
            continue
        adapter = (own / CONFIG).exists()
        placed[name] = Place(str(policy.model), str(own), adapter=own) if adapter else Place(str(own), str(own))
        parts = [own / file for file in ((CONFIG, WEIGHTS) if adapter else ("config.json",))]
        rule = f"{TEAM_FILE} says that policy {name} has weights of its own in the folder {name}"
        fix = "export the run again, or copy the whole folder"
        absent = [path for path in (parts if own.is_dir() else [own]) if not path.exists()]
        missing += [ConfigError(f"{path} is not there", rule=rule, fix=fix) for path in absent]
        for file in sorted(own.glob("*.safetensors")):
            try:
                shapes_in(file)
            except ValueError as error:
                missing.append(ConfigError(f"{file} is not whole: {error}", rule=rule, fix=fix))
    raise_all(missing)
    return placed
