"""The cases of worked_cases.toml, in which implementations differ."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomllib
import torch

from verl_mas.advantage import AdvantageInput, AdvantageOptions, compute_advantages

CASES = tomllib.loads(Path(__file__).with_name("worked_cases.toml").read_text())["case"]


@pytest.mark.parametrize(
    ("name", "case"),
    [(name, case) for case in CASES for name in case.get("estimators", ["agent_grpo"])],
    ids=[f"{case['name']}, {name}" for case in CASES for name in case.get("estimators", ["agent_grpo"])],
)
def test_the_value_that_we_choose(name, case):
    n = len(case["scores"])
    columns = {"task": ["t"] * n, "session": range(n), "agent": ["solver"] * n, "turn": [0] * n, "branch": [0] * n}
    columns |= {"committed": [True] * n, "local_reward": [0.0] * n, "penalty": [0.0] * n}
    columns |= {key: value for key, value in case.items() if key not in ("name", "estimators", "gives", "metrics")}
    parts = zip(columns["scores"], columns["local_reward"], columns["penalty"], strict=True)
    columns["team_reward"] = [score - local + penalty for score, local, penalty in parts]
    tensors = dict.fromkeys(("team_reward", "local_reward", "penalty"), torch.float64)
    tensors |= {"scores": torch.float32, "padding": torch.bool, "tokens": torch.long}
    tensors = {key: torch.tensor(columns[key], dtype=kind) for key, kind in tensors.items() if key in columns}
    batch = AdvantageInput(**{**columns, **tensors})
    for options in case["gives"]:
        expected, chosen = options["A"], {key: value for key, value in options.items() if key != "A"}
        output = compute_advantages(name, batch, AdvantageOptions(**chosen))
        assert output.advantages.tolist() == pytest.approx(expected, abs=2e-5), chosen
        assert [a == 0 for a in output.advantages] == [a == 0 for a in expected], chosen
        assert case.get("metrics", {}).items() <= output.metrics.items()
