"""Shrinkage, compared with its two extremes, `agent_grpo` and `team_grpo`, in the settings of the benchmark."""

from __future__ import annotations

import pytest

from benchmarks.rare_agent import SETTINGS, signal
from verl_mas.advantage import AdvantageOptions


def signals(setting):
    """Return the signals of shrinkage, agent_grpo and team_grpo."""
    arms = (("agent_grpo", 2.0), ("agent_grpo", None), ("team_grpo", None))
    return [signal(setting, name, AdvantageOptions(shrinkage=count), steps=80)[0] for name, count in arms]


@pytest.mark.parametrize("setting", SETTINGS[:2], ids=lambda setting: setting.name)
def test_with_one_or_two_calls_per_task_shrinkage_is_level_with_the_better_estimator(setting):
    shrunk, agent, team = signals(setting)
    assert shrunk > agent + 0.1 and shrunk > team - 0.02


def test_shrinkage_is_far_above_both_for_a_rare_agent_whose_rewards_have_an_offset():
    shrunk, agent, team = signals(SETTINGS[3])
    assert shrunk > 1.3 * agent and shrunk > 1.3 * team
