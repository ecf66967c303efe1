"""Make a layout of charts for a run: ten metrics to watch, then a section per agent, policy and kind of metric.

    python scripts/dashboard.py checkpoints/my_run --tensorboard tensorboard_log/my_project/my_run
    python scripts/dashboard.py checkpoints/my_run --wandb my_entity/my_project     # pip install wandb-workspaces

By default, TensorBoard and Weights & Biases group metrics by the part of the name before the first slash, so all
agents would share a section. The layout has a section for each agent and policy in the metrics of the run.
`--tensorboard` writes the folder `dashboard` into the given folder of event files; TensorBoard displays the layout in
its tab Custom Scalars. `--wandb` creates a workspace and prints its URL.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from verl_mas.results.sessions.run import open_run
from verl_mas.run_folder.metrics.names import AGENT, POLICY, VALIDATION, policies_in
from verl_mas.run_folder.metrics.table import METRICS, SECTIONS, Metric, described

# Section -> title of a chart -> the names of its metrics.
Layout: TypeAlias = Mapping[str, Mapping[str, list[str]]]
TO_WATCH, OTHERS = "To watch", "Other metrics"
FOLDER = "dashboard"


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="the folder of a run (trainer.default_local_dir)")
    parser.add_argument("--tensorboard", metavar="DIR", type=Path, help="the TENSORBOARD_DIR of the run")
    parser.add_argument("--wandb", metavar="ENTITY/PROJECT")
    options = parser.parse_args(argv)
    charts = layout(dict.fromkeys(name for step in open_run(options.run).steps() for name in step.values))
    if not charts:
        raise SystemExit(f"{options.run} has no metrics yet: repeat this after its first step")
    if options.tensorboard:
        print(write_tensorboard(charts, options.tensorboard))
    if options.wandb:
        print(create_workspace(charts, *options.wandb.split("/")))


def layout(names: Iterable[str]) -> Layout:
    """Return the charts for these metrics. A metric to watch is in the first section and in its own section."""
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
    return METRICS.index(metric) if metric in METRICS else len(METRICS)


def _sections(names: list[str]) -> list[str]:
    """Return the titles of all sections, in order."""
    owners = (_owner(name) for name in names)
    own = sorted({owner for owner in owners if owner} | {f"{POLICY} {name}" for name in policies_in(names)})
    return [TO_WATCH, *own, *SECTIONS, OTHERS]


def _of(name: str, metric: Metric | None, names: list[str]) -> Iterable[str]:
    if metric is None:
        yield OTHERS
        return
    if metric.watch:
        yield TO_WATCH
    policies = policies_in(names)
    only = f"{POLICY} {policies[0]}" if metric.of_actor and len(policies) == 1 else None
    yield _owner(name) or only or metric.section


def _owner(name: str) -> str | None:
    """Return the agent or policy of a metric, such as `agent solver`, in training or validation. Return None if the
    metric belongs to no agent and no policy."""
    kind, _, rest = name.removeprefix(VALIDATION).partition("/")
    return f"{kind} {rest.split('/')[0]}" if kind in (AGENT, POLICY) else None


def _title(name: str, metric: Metric) -> str:
    """Return the part of a metric's pattern after the name of the agent or policy, such as `reward/score`."""
    before = VALIDATION if name.startswith(f"{VALIDATION}{AGENT}") else ""
    return before + metric.pattern.removeprefix(before).removeprefix("agent/<agent>/").removeprefix("policy/<policy>/")


def write_tensorboard(charts: Layout, logs: Path) -> Path:
    """Write the layout to a new subfolder of the event files and replace an earlier layout.

    The layout must not be a file in the folder of a run. TensorBoard takes a newer event file as the continuation of
    the run, so it would no longer display a run that still writes to its older file.
    """
    from torch.utils.tensorboard import SummaryWriter

    if not logs.is_dir():
        raise SystemExit(f"{logs} is not a folder: give the one that `tensorboard --logdir` displays")
    shutil.rmtree(logs / FOLDER, ignore_errors=True)
    writer = SummaryWriter(str(logs / FOLDER))
    # TensorBoard matches a regular expression from the beginning of a tag only, so `$` has to mark the end.
    writer.add_custom_scalars(
        {
            section: {title: ["Multiline", [f"{re.escape(name)}$" for name in names]] for title, names in of.items()}
            for section, of in charts.items()
        }
    )
    writer.close()
    return logs / FOLDER


def create_workspace(charts: Layout, entity: str, project: str) -> str:
    """Create a workspace on the server of Weights & Biases and return its URL."""
    import wandb_workspaces.reports.v2 as reports
    import wandb_workspaces.workspaces as workspaces

    sections = [
        workspaces.Section(
            name=section,
            panels=[reports.LinePlot(title=title, y=names) for title, names in of.items()],
            is_open=section == TO_WATCH,
        )
        for section, of in charts.items()
    ]
    workspace = workspaces.Workspace(entity=entity, project=project, name="verl-mas", sections=sections)
    return str(workspace.save().url)


if __name__ == "__main__":
    main(sys.argv[1:])
