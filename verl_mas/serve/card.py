"""The model card of an exported team: README.md, with the curve of its validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf

from verl_mas.metrics.names import CORE
from verl_mas.run_folder.disk import write_whole
from verl_mas.run_folder.metrics import Step, series
from verl_mas.sessions.curves import Panel, draw
from verl_mas.sessions.run import is_run, open_run
from verl_mas.workflow.team_file import TEAM_FILE, TeamFile, TeamPolicy

CARD, CURVE = "README.md", "validation.svg"
MARK = "<!-- Written by verl-mas export. -->"  # By it an export recognises its own card
SETTINGS = {
    "estimator": "algorithm.adv_estimator",
    "tasks per step": "data.train_batch_size",
    "sessions per task": "actor_rollout_ref.rollout.n",
    "learning rate": "actor_rollout_ref.actor.optim.lr",
    "experiment": "trainer.experiment_name",
}


@dataclass(frozen=True)
class Card:
    """`config` and `steps` of the run, as far as its folder has them; steps up to that of the export."""

    name: str
    team: TeamFile
    config: DictConfig | None = None
    steps: Sequence[Step] = ()

    @classmethod
    def of(cls, name: str, team: TeamFile, run: Path) -> Card:
        """`run`: the folder of the run, if the checkpoint is still in it. Raises DataError if it is damaged."""
        if not is_run(run):
            return cls(name, team)
        found, last = open_run(run), team.step
        steps = [step for step in found.steps() if last is None or step.number <= last]
        return cls(name, team, found.config, steps)

    def write(self, folder: Path) -> None:
        curves = self._curves()
        if curves:
            write_whole(folder / CURVE, f"{draw([Panel('', curves)], 'validation')}{MARK}\n")
        write_whole(folder / CARD, "\n".join([*self._lines(curves), ""]))

    def _lines(self, curves: Mapping[str, tuple[list[int], list[float]]]) -> Iterator[str]:
        team = self.team
        bases = sorted({str(policy.model) for policy in team.policies.values() if policy.model})
        hub = [name for name in bases if not Path(name).is_absolute()]
        head = {"library_name": "verl-mas", "tags": ["verl-mas", "multi-agent"], **({"base_model": hub} if hub else {})}
        yield f"---\n{yaml.safe_dump(head, sort_keys=False).strip()}\n---\n{MARK}\n"
        step = "" if team.step is None else f" after {team.step} steps of training"
        size = f"{len(team.agents)} agent{'s' if len(team.agents) > 1 else ''}"
        yield f"# {self.name}\n\nA team of {size}, workflow `{team.workflow.name}`,{step} with verl and verl-mas.\n"
        agents = []
        for name, agent in team.agents.items():
            sampling = ", ".join(f"{key} {value}" for key, value in agent.validation_sampling.items())
            agents.append((f"`{name}`", f"`{agent.policy}`", sampling))
        yield from _table(("agent", "policy", "sampling"), agents)
        policies = []
        for name, policy in team.policies.items():
            policies.append((f"`{name}`", _weights(policy), f"`{_short(policy.model)}`" if policy.model else ""))
        yield from _table(("policy", "weights", "started from"), policies)
        values = {name: OmegaConf.select(self.config, key) for name, key in SETTINGS.items()} if self.config else {}
        if trained := [(name, f"`{value}`") for name, value in values.items() if value is not None]:
            yield "## Training\n"
            yield from _table(("setting", "value"), trained)
        if curves:
            yield "## Validation\n"
            rows = []
            for name, (at, found) in curves.items():
                # The interval is of the last value.
                low, high = (series(self.steps, f"{CORE}{name}/{end}")[1][-1:] for end in ("low", "high"))
                between = f"{low[0]:.3f} to {high[0]:.3f}" if low and high else ""
                first, last = (f"{found[end]:.3f} (step {at[end]})" for end in (0, -1))
                rows.append((f"`{name}`", first, last, between))
            yield from _table(("metric", "first", "last", "95 %"), rows)
            yield f"![Validation by step]({CURVE})\n"
        yield "## Use\n"
        yield "```python\nimport verl_mas\n"
        yield 'with verl_mas.load("DIR") as team:\n    print(team.run("...").answer)\n```\n'
        yield "    verl-mas chat DIR\n    verl-mas serve DIR\n    verl-mas eval DIR --data test.parquet --n 16\n"
        yield f"DIR is this folder; `{TEAM_FILE}` has the workflow, the agents and their settings.\n"
        for name, policy in team.policies.items():
            if policy.folder is not None:
                served = f"DIR/{name} --served-model-name {name}"
                if policy.adapter_of is not None:
                    served = f"{_short(policy.model)} --enable-lora --lora-modules {name}=DIR/{name}"
                yield f"Policy `{name}` alone: `vllm serve {served}`; then `--endpoint {name}=http://HOST:8000/v1`.\n"

    def _curves(self) -> dict[str, tuple[list[int], list[float]]]:
        """The means and pass@k of validation. Of sessions that are right or wrong, pass@1 is the mean."""
        names = dict.fromkeys(key for step in self.steps for key in step.values if key.startswith(CORE))
        steps = [Step(one.number, {k: v for k, v in one.values.items() if isfinite(v)}) for one in self.steps]
        found = {
            name.removeprefix(CORE): series(steps, name)
            for name in names
            if name.rpartition("/")[2].startswith(("mean@", "pass@"))
        }
        doubled = {f"{name.removesuffix('pass@1')}acc/mean@" for name in found if name.endswith("/pass@1")}
        return {name: curve for name, curve in found.items() if curve[0] and name.rstrip("0123456789") not in doubled}


def is_card(path: Path) -> bool:
    return path.is_file() and MARK in path.read_text(encoding="utf-8", errors="replace")


def _weights(policy: TeamPolicy) -> str:
    if policy.remote is not None:
        return f"at an endpoint: `{policy.remote.model}`"
    if policy.folder is None:
        return "as they were"
    return f"an adapter on `{policy.adapter_of}`" if policy.adapter_of else "its own"


def _short(model: str | None) -> str:
    """Without the folders of the machine that trained."""
    return Path(str(model)).name if Path(str(model)).is_absolute() else str(model)


def _table(head: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    yield from (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)
    yield ""
