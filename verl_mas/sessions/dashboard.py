"""A layout of charts for what a run logs: the ten to watch, then a section per agent, policy and kind of number.

TensorBoard and Weights & Biases make a section of everything before the first slash, so all agents would share one.
"""

from __future__ import annotations

import pprint
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from string import Template
from typing import TypeAlias

from verl_mas.errors import DataError
from verl_mas.metrics.names import AGENT, POLICY, VALIDATION, described, policies_in
from verl_mas.metrics.table import METRICS, SECTIONS, Metric

# Section -> title of a chart -> the names of its metrics.
Layout: TypeAlias = Mapping[str, Mapping[str, list[str]]]
TO_WATCH, OTHERS = "To watch", "Other metrics"
FOLDER = "dashboard"

PROGRAM = Template('''\
"""Creates a workspace of Weights & Biases for the runs of $place. Written by `verl-mas dashboard`.

    pip install wandb-workspaces
    python $file
"""

import wandb_workspaces.reports.v2 as reports
import wandb_workspaces.workspaces as workspaces

# Section -> title of a panel -> the metrics in it.
SECTIONS = $sections


def workspace():
    sections = [
        workspaces.Section(
            name=name,
            panels=[reports.LinePlot(title=title, y=metrics) for title, metrics in panels.items()],
            is_open=name == "$watch",
        )
        for name, panels in SECTIONS.items()
    ]
    return workspaces.Workspace(entity=$entity, project=$project, name="verl-mas", sections=sections)


if __name__ == "__main__":
    print(workspace().save().url)
''')


def layout(names: Iterable[str]) -> Layout:
    """The charts for these metrics. A metric to watch is in two sections."""
    names = sorted(names, key=_place_in_table)
    found: dict[str, dict[str, list[str]]] = {section: {} for section in _sections(names)}
    for name in names:
        metric = described(name)
        for section in _of(name, metric, names):
            title = name if metric is None else _title(name, metric)
            found[section].setdefault(title, []).append(name)
    return {section: charts for section, charts in found.items() if charts}


def _place_in_table(name: str) -> int:
    metric = described(name)
    return METRICS.index(metric) if metric else len(METRICS)


def _sections(names: list[str]) -> list[str]:
    """The titles of all sections, in order."""
    owners = (_owner(name) for name in names)
    own = sorted({owner for owner in owners if owner} | {f"{POLICY} {name}" for name in policies_in(names)})
    return [TO_WATCH, *own, *(section.title for section in SECTIONS), OTHERS]


def _of(name: str, metric: Metric | None, names: list[str]) -> Iterable[str]:
    if metric is None:
        yield OTHERS
        return
    if metric.watch:
        yield TO_WATCH
    policies = policies_in(names)
    only = f"{POLICY} {policies[0]}" if metric.of_actor and len(policies) == 1 else None
    of_table = next(section.title for section in SECTIONS if metric in section.metrics)
    yield _owner(name) or only or of_table


def _owner(name: str) -> str | None:
    """`agent solver`, for the agent's metrics of training and validation; None for a metric of no agent or policy."""
    kind, _, rest = name.removeprefix(VALIDATION).partition("/")
    return f"{kind} {rest.split('/')[0]}" if kind in (AGENT, POLICY) else None


def _title(name: str, metric: Metric) -> str:
    """The part of a pattern after the name of an agent or policy: `reward/score`."""
    before = VALIDATION if name.startswith(f"{VALIDATION}{AGENT}") else ""
    return before + metric.pattern.removeprefix(before).removeprefix("agent/<agent>/").removeprefix("policy/<policy>/")


def write_tensorboard(charts: Layout, logs: Path, force: bool = False) -> Path:
    """A folder beside the event files of runs, for TensorBoard's tab "Custom Scalars".

    A file of its own in the folder of a run would end the display of a run that still writes: TensorBoard takes a later
    file for the continuation.
    """
    if not logs.is_dir():
        raise DataError(
            f"{logs} is not a folder",
            rule="the layout is written into the folder that `tensorboard --logdir` displays",
            fix="give the TENSORBOARD_DIR of the run, by default tensorboard_log/<project>/<experiment>",
        )
    folder = logs / FOLDER
    if folder.exists() and not force:
        raise DataError(f"{folder} exists", rule="a file that exists is kept", fix="add --force to replace it")
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise DataError(
            f"the layout needs tensorboard: {error}", rule="torch writes it", fix="pip install tensorboard"
        ) from None
    if folder.exists():
        shutil.rmtree(folder)
    writer = SummaryWriter(str(folder))
    # TensorBoard takes every tag that begins like the expression.
    writer.add_custom_scalars(
        {
            section: {title: ["Multiline", [f"{re.escape(name)}$" for name in names]] for title, names in of.items()}
            for section, of in charts.items()
        }
    )
    writer.close()
    return folder


def wandb_program(charts: Layout, entity: str, project: str, file: str) -> str:
    """A program that creates the layout as a workspace: Weights & Biases has none in a file."""
    sections = pprint.pformat({section: dict(of) for section, of in charts.items()}, width=110, sort_dicts=False)
    return PROGRAM.substitute(
        place=f"{entity}/{project}",
        file=file,
        sections=sections,
        watch=TO_WATCH,
        entity=repr(entity),
        project=repr(project),
    )
