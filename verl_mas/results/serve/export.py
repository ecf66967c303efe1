"""Exports a checkpoint: its policies as folders that other software loads, the team as `team.yaml`, and a model card
(README.md) with the validation curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TypeAlias, cast

import torch
import yaml
from jinja2 import Environment, StrictUndefined
from omegaconf import DictConfig, OmegaConf
from safetensors import SafetensorError

from verl_mas.errors import ConfigError, DiskError, raise_all
from verl_mas.results.serve import model
from verl_mas.results.serve.adapter import LORA_FILE, SavedAdapter
from verl_mas.results.serve.trust import asks
from verl_mas.results.sessions.run import is_run, open_run
from verl_mas.run_folder import checkpoints
from verl_mas.run_folder.checkpoints import POINTER, RUN_FILE, Checkpoint
from verl_mas.run_folder.disk import replaced, write_whole, writing
from verl_mas.run_folder.metrics.file import Step, series
from verl_mas.run_folder.metrics.names import CORE, control_of
from verl_mas.trainer.adapters import files as adapter_files
from verl_mas.trainer.checkpoint import BASES, fingerprint
from verl_mas.trainer.policies import weight_folder
from verl_mas.util.text import sparkline
from verl_mas.workflow.team_file import TEAM_FILE, TeamFile, TeamPolicy

CARD = "README.md"
TEMPLATE = Path(__file__).with_name("card.md")
MARK = "<!-- Written by verl-mas export. -->"  # an export recognises its own card by this mark
SETTINGS = {
    "estimator": "algorithm.adv_estimator",
    "tasks per step": "data.train_batch_size",
    "sessions per task": "actor_rollout_ref.rollout.n",
    "learning rate": "actor_rollout_ref.actor.optim.lr",
    "experiment": "trainer.experiment_name",
}
# Steps, and the value at each step.
Curve: TypeAlias = tuple[list[int], list[float]]


def find_checkpoint(folder: Path, step: int | None = None) -> Checkpoint:
    """Find a checkpoint: the folder itself, the checkpoint of a step, or the latest checkpoint in a run's folder."""
    if step is not None:
        if checkpoints.step_of(folder) is not None:
            rule = "a step is chosen from a run's folder"
            raise ConfigError(f"--step {step} of {folder}", rule=rule, fix=f"give {folder.parent}, or leave out --step")
        folder = checkpoints.folder_of_step(folder, step)
    found: Checkpoint | str
    if not folder.is_dir():
        found = f"{folder} is {'no folder' if folder.exists() else 'not there'}"
    else:
        found = checkpoints.last(folder) if checkpoints.step_of(folder) is None else checkpoints.read(folder)
    if isinstance(found, Checkpoint):
        return found
    whole = checkpoints.whole_checkpoints(folder if checkpoints.step_of(folder) is None else folder.parent)
    rule = "a complete checkpoint is exported: the folder global_step_N of a run, or the run's folder for its latest"
    known = ", ".join(str(checkpoint.folder) for checkpoint in whole)
    fix = f"give one of {known}" if known else "give trainer.default_local_dir of a run"
    raise ConfigError(found, rule=rule, fix=fix)


@dataclass
class Export:
    """An export. `merge`: merge adapters into their base. `force`: replace files of an earlier export. `trust`: run the
    code of models."""

    checkpoint: Checkpoint
    team: TeamFile
    out: Path
    merge: bool = False
    force: bool = False
    trust: bool = False

    def run(self) -> Iterator[str]:
        """Write the export, and yield a line of text for each written part."""
        chosen = self._chosen()
        raise_all(self._refusals(chosen))
        team, described = self.out / TEAM_FILE, self._written(chosen)
        # Make the card before anything is written, because it reads the folder of the run, which may be damaged.
        card = Card.of(self.out.resolve().name, described, self.checkpoint.folder.parent)
        with _writing(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
            # Delete an old `team.yaml` now: if this export fails halfway, the old file would describe policies that
            # have been replaced.
            team.unlink(missing_ok=True)
        for name, policy in chosen.items():
            with _writing(self.out / name), replaced(self.out / name) as folder:
                written = self._policy(policy, folder)
            yield f"{name}: {written}"
        with _writing(team):
            card.write(self.out)
            described.write(self.out)
        yield f"{self.out / CARD}"
        yield f"{team}"

    def _chosen(self) -> Mapping[str, TeamPolicy]:
        """Return the policies that have weights of their own. A snapshot that was never refreshed equals its model, so
        its weights are not exported."""

        def refreshed(snapshot: str) -> bool:
            return model.read_record(self.checkpoint.folder / snapshot / weight_folder.RECORD, "step")["step"] != 0

        return {
            name: policy
            for name, policy in self.team.policies.items()
            if policy.folder is not None and (policy.snapshot_of is None or refreshed(policy.folder))
        }

    def _refusals(self, chosen: Mapping[str, TeamPolicy]) -> Iterator[ConfigError]:
        inside = self.out.resolve()
        if checkpoint := next((path for path in (inside, *inside.parents) if (path / RUN_FILE).exists()), None):
            rule = "a checkpoint has the files that its run.json lists"
            yield ConfigError(f"{self.out} is in the checkpoint {checkpoint}", rule=rule, fix="give another folder")
            return
        if (inside / POINTER).exists():
            yield ConfigError(
                f"{self.out} is the folder of a run", rule="an export has its own", fix="give another folder"
            )
        folders = [self.checkpoint.folder / str(policy.folder) for policy in chosen.values()]
        parts = [folder / name for folder in folders for name in (adapter_files.CONFIG, LORA_FILE)]
        if self.merge and not any(path.is_file() for path in parts):
            yield ConfigError("--merge", rule="it merges adapters, and no policy is one", fix="leave it out")
        folders, team = [self.out / name for name in chosen], self.out / TEAM_FILE
        yield from self._there([*folders, team, self.out / CARD])
        yield from self._other_bases(chosen)
        policies = self.team.policies.values()
        named = (path for each in policies for path in (each.model, each.tokenizer, each.start_adapter))
        needs = [self.checkpoint.folder, *(Path(path) for path in dict.fromkeys(named) if path and Path(path).exists())]
        for needed in needs:
            for target in (target for target in folders if needed.resolve().is_relative_to(target.resolve())):
                rule = "an export replaces neither a model nor a checkpoint"
                yield ConfigError(f"{target} has {needed}, which the team needs", rule=rule, fix="give another folder")

    def _there(self, targets: Sequence[Path]) -> Iterator[ConfigError]:
        there = [path for path in targets if path.exists() or path.is_symlink()]
        if there and not self.force:
            rule = "nothing is overwritten"
            fix = "give another folder, or add --force to replace what an earlier export wrote"
            yield ConfigError(f"{', '.join(map(str, there))} exist{'s' if len(there) == 1 else ''}", rule=rule, fix=fix)
        elif foreign := [path for path in there if not _is_exported(path)]:
            value = f"{', '.join(map(str, foreign))}: not written by an export"
            rule = "--force replaces folders of models and adapters with their tokenizer, team.yaml, and the model"
            fix = "move it away, or give another folder"
            yield ConfigError(value, rule=f"{rule} card that an export wrote", fix=fix)

    def _other_bases(self, chosen: Mapping[str, TeamPolicy]) -> Iterator[ConfigError]:
        """Refuse a base whose weights differ from the weights with which an adapter was trained. A base that is not on
        this machine is not checked."""
        bases = cast("Mapping[str, Mapping[str, str | None]]", self.checkpoint.run.get(BASES) or {})
        for name, policy in chosen.items():
            before = bases.get(policy.adapter_of or "", {}).get("fingerprint")
            if before is None:
                continue
            with model.available(str(policy.model)):
                now = fingerprint(Path(str(policy.model)))
            if now not in (None, before):
                value = f"{policy.model} has other weights than the base that policy {name} was trained on"
                rule = "an adapter belongs to the weights of its base"
                yield ConfigError(value, rule=rule, fix=f"make the base of the training available at {policy.model}")

    def _policy(self, policy: TeamPolicy, folder: Path) -> str:
        source = self.checkpoint.folder / str(policy.folder)
        if (source / adapter_files.CONFIG).is_file():
            return self._adapter(SavedAdapter.of_folder(source), policy, source, folder)
        if (source / LORA_FILE).is_file():
            return self._adapter(SavedAdapter.of_weights(source, policy), policy, source, folder)
        dtype = getattr(torch, policy.dtype) if policy.dtype else None
        if policy.snapshot_of is not None:
            with model.reading(source):
                weights = {name: model.in_precision(tensor, dtype) for name, tensor in weight_folder.read(source)}
            source = self.checkpoint.folder / policy.snapshot_of
        elif (source / model.WORKERS_FILE).is_file():
            weights = model.read_weights(source, dtype)
        else:
            rule = "a policy was saved by verl's FSDP engine, or as an adapter"
            fix = "for a run on several nodes, copy this folder of every node into one"
            raise DiskError(f"{source} has no {model.WORKERS_FILE} and no {adapter_files.CONFIG}", rule=rule, fix=fix)
        return model.write_model(weights, source / model.HUGGINGFACE, folder, trust=self.trust)

    def _adapter(self, adapter: SavedAdapter, policy: TeamPolicy, source: Path, folder: Path) -> str:
        base = str(policy.model)
        if (source / model.HUGGINGFACE).is_dir():
            model.copy_tokenizer(source / model.HUGGINGFACE, folder)
            tokenizer = model.load_tokenizer(str(folder), None, trust=self.trust)
        else:
            named = policy.tokenizer or base, policy.chat_template
            tokenizer = model.load_tokenizer(*named, trust=self.trust)
            (model.load_processor(*named, trust=self.trust) or tokenizer).save_pretrained(folder)
        if not self.merge:
            adapter.write(folder, base)
            return f"an adapter of rank {adapter.config['r']} on {base}"
        difference = adapter.merge(base, folder, tokenizer, trust=self.trust)
        return f"merged into {base}: the log-probs of a prompt differ from the adapter's by at most {difference:.2g}"

    def _written(self, chosen: Mapping[str, TeamPolicy]) -> TeamFile:
        """Make the team file with the policies on which agents act, and the bases of these policies."""
        policies = {}
        for name, policy in self.team.policies.items():
            base = None if self.merge else policy.adapter_of
            policies[name] = replace(policy, folder=name if name in chosen else None, adapter_of=base)
        used = {spec.policy for spec in self.team.agents.values()}
        used |= {policy.adapter_of for name, policy in policies.items() if name in used and policy.adapter_of}
        written = {name: policy for name, policy in policies.items() if name in used}
        return replace(self.team, policies=written, step=self.checkpoint.step)


def _is_exported(path: Path) -> bool:
    """Whether an export wrote this path. An empty folder counts, because nothing in it can be lost."""
    if path.name == CARD:
        return path.is_file() and MARK in path.read_text(encoding="utf-8", errors="replace")
    if path.is_symlink() or not path.is_dir():
        return path.name == TEAM_FILE and path.is_file()
    return (path / model.TOKENIZER_FILE).is_file() or not any(path.iterdir())


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    with writing(path, "a policy is written as a whole, or not at all", "make room, or give another folder"):
        try:
            yield
        except SafetensorError as error:
            raise OSError(str(error)) from error


@dataclass(frozen=True)
class Card:
    """The model card. `config` and `steps` come from the run's folder, if it has them. `steps` ends with the exported
    step."""

    name: str
    team: TeamFile
    config: DictConfig | None = None
    steps: Sequence[Step] = ()

    @classmethod
    def of(cls, name: str, team: TeamFile, run: Path) -> Card:
        """Make the card. `run`: the parent folder of the checkpoint. If it is not the folder of a run, the card has no
        settings and no curves. Raises DataError if the folder of the run is damaged."""
        if not is_run(run):
            return cls(name, team)
        found, last = open_run(run), team.step
        steps = [step for step in found.steps() if last is None or step.number <= last]
        return cls(name, team, found.config, steps)

    def write(self, folder: Path) -> None:
        write_whole(folder / CARD, self._text())

    def _text(self) -> str:
        curves = self._curves()
        bases = sorted({policy.model for policy in self.team.policies.values() if policy.model})
        hub = [name for name in bases if not Path(name).is_absolute()]
        head = {"library_name": "verl-mas", "tags": ["verl-mas", "multi-agent"], **({"base_model": hub} if hub else {})}
        values = {name: OmegaConf.select(self.config, key) for name, key in SETTINGS.items()} if self.config else {}
        templates = Environment(trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
        templates.filters |= {"short": _short, "cell": lambda value: str(value).replace("|", r"\|")}
        return templates.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
            head=yaml.safe_dump(head, sort_keys=False).strip(),
            mark=MARK,
            name=self.name,
            team=self.team,
            settings={name: value for name, value in values.items() if value is not None},
            curves=[self._row(name, curves) for name in curves],
            team_file=TEAM_FILE,
            names_code=any(asks(self.team)),
        )

    def _row(self, name: str, curves: Mapping[str, Curve]) -> dict[str, object]:
        """Return the first and the last value of a curve, each with its step. The interval belongs to the last
        value."""
        steps, values = curves[name]
        low, high = (series(self.steps, f"{CORE}{name}/{end}")[1] for end in ("low", "high"))
        return {
            "name": name,
            "base": control_of(name.partition("/")[0], {key.partition("/")[0] for key in curves}),
            "first": (values[0], steps[0]),
            "last": (values[-1], steps[-1]),
            "interval": (low[-1], high[-1]) if low and high else None,
            "course": sparkline(values),
        }

    def _curves(self) -> dict[str, Curve]:
        """Return the means and pass@k of validation. If a data source has pass@1, its mean of `acc` is skipped, because
        both are equal for sessions that are either right or wrong."""
        names = dict.fromkeys(key for step in self.steps for key in step.values if key.startswith(CORE))
        steps = [Step(one.number, {k: v for k, v in one.values.items() if isfinite(v)}) for one in self.steps]
        found = {
            name.removeprefix(CORE): series(steps, name)
            for name in names
            if name.rpartition("/")[2].startswith(("mean@", "pass@"))
        }
        doubled = {f"{name.removesuffix('pass@1')}acc/mean@" for name in found if name.endswith("/pass@1")}
        return {name: curve for name, curve in found.items() if curve[0] and name.rstrip("0123456789") not in doubled}


def _short(model: str | None) -> str:
    """Return the name of a model without the folders of the machine that trained it."""
    return Path(str(model)).name if Path(str(model)).is_absolute() else str(model)
