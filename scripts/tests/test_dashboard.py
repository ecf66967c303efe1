from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from verl_mas.run_folder.metrics.table import described

SCRIPT = importlib.util.spec_from_file_location("dashboard", Path(__file__).parents[2] / "scripts" / "dashboard.py")
dashboard = importlib.util.module_from_spec(SCRIPT)
SCRIPT.loader.exec_module(dashboard)
layout, main = dashboard.layout, dashboard.main

STEP = {
    "agent/solver/reward/score": 0.5,
    "agent/verifier/reward/score": 0.25,
    "agent/solver/group/group_size_min": 8,
    "agent/solver/group/group_size_max": 8,
    "val-agent/solver/malformed": 0.0,
    "policy/main/rows/real": 16,
    "actor/grad_norm": 1.0,
    "session/dropped": 0,
    "val-core/gsm8k/acc/mean@1": 0.5,
    "timing_s/gen": 3.0,
    "my/own": 1.0,
}


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "time": 0.0, "metrics": STEP}) + "\n")
    return folder


def test_what_to_watch_comes_first_then_each_agent_and_policy():
    assert layout(STEP) == {
        "To watch": {
            "reward/score": ["agent/solver/reward/score", "agent/verifier/reward/score"],
            "actor/grad_norm": ["actor/grad_norm"],
            "session/dropped": ["session/dropped"],
            "val-core/<source>/<name>/mean@<n>": ["val-core/gsm8k/acc/mean@1"],
        },
        "agent solver": {
            "reward/score": ["agent/solver/reward/score"],
            "group/group_size_{mean,min,max}": [
                "agent/solver/group/group_size_min",
                "agent/solver/group/group_size_max",
            ],
            "val-malformed": ["val-agent/solver/malformed"],
        },
        "agent verifier": {"reward/score": ["agent/verifier/reward/score"]},
        "policy main": {"rows/real": ["policy/main/rows/real"], "actor/grad_norm": ["actor/grad_norm"]},
        "Sessions": {"session/dropped": ["session/dropped"]},
        "Validation": {"val-core/<source>/<name>/mean@<n>": ["val-core/gsm8k/acc/mean@1"]},
        "verl's metrics of a step": {"timing_s/<name>": ["timing_s/gen"]},
        "Other metrics": {"my/own": ["my/own"]},
    }


def test_metrics_of_an_actor_are_those_of_the_only_policy_or_of_each():
    several = layout(["policy/a/rows/real", "policy/b/rows/real", "policy/b/actor/lr"])
    assert several["policy b"] == {"rows/real": ["policy/b/rows/real"], "actor/lr": ["policy/b/actor/lr"]}
    assert layout(["actor/lr"]) == {"Policies: verl's metrics of an actor": {"actor/lr": ["actor/lr"]}}


def test_tensorboard_reads_the_layout_and_finds_every_metric_by_it(run, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.custom_scalar.layout_pb2 import Layout

    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "dashboard").mkdir()
    (logs / "dashboard" / "earlier").touch()
    main([str(run), "--tensorboard", str(logs)])
    events = EventAccumulator(str(logs / "dashboard"))
    events.Reload()
    read = Layout.FromString(events.Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0])
    found = {
        category.title: {chart.title: list(chart.multiline.tag) for chart in category.chart}
        for category in read.category
    }
    expected = layout(STEP)
    assert found.keys() == expected.keys()
    for section, charts in expected.items():
        for title, names in charts.items():
            # Like `re.match`, TensorBoard matches an expression only at the beginning of a name.
            shown = [name for name in STEP if any(re.compile(tag).match(name) for tag in found[section][title])]
            assert sorted(shown) == sorted(names)
    assert not (logs / "dashboard" / "earlier").exists()


def test_a_workspace_has_the_sections(run, monkeypatch, capsys):
    saved = []

    def workspace(**parts):
        return SimpleNamespace(save=lambda: saved.append(parts) or SimpleNamespace(url="https://w"))

    module = SimpleNamespace(Section=dict, Workspace=workspace, LinePlot=dict)
    for name in ("wandb_workspaces", "wandb_workspaces.reports", "wandb_workspaces.reports.v2"):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "wandb_workspaces.workspaces", module)
    module.reports = module.v2 = module.workspaces = module
    main([str(run), "--wandb", "us/math"])
    (parts,) = saved
    assert (parts["entity"], parts["project"]) == ("us", "math") and capsys.readouterr().out == "https://w\n"
    sections = {part["name"]: {panel["title"]: panel["y"] for panel in part["panels"]} for part in parts["sections"]}
    assert sections == layout(STEP)
    assert [part["name"] for part in parts["sections"] if part["is_open"]] == ["To watch"]


def test_without_event_files_or_a_step_nothing_is_written(run, tmp_path):
    with pytest.raises(SystemExit, match="nowhere is not a folder"):
        main([str(run), "--tensorboard", "nowhere"])
    (run / "metrics.jsonl").write_text("")
    with pytest.raises(SystemExit, match="repeat this after its first step"):
        main([str(run), "--tensorboard", str(tmp_path)])
    assert not (tmp_path / "dashboard").exists()


def test_the_examples_are_metrics_of_ours():
    assert [name for name in STEP if not described(name)] == ["my/own"]
