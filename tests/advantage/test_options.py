import subprocess
import sys
from pathlib import Path

import pytest

import verl_mas.advantage.estimators as estimators
from verl_mas.advantage import ESTIMATORS, AdvantageOptions, compute_advantages, options_for
from verl_mas.advantage.estimator import estimator
from verl_mas.errors import ConfigError


def test_options_are_read_from_a_config_block_and_those_of_an_empty_one_are_the_defaults():
    options = AdvantageOptions.from_config({"deviation": "population", "eps": 0, "scale": None})
    assert (options.deviation, options.eps, options.scale) == ("population", 0, None)
    assert AdvantageOptions.from_config({}) == AdvantageOptions.from_config(None) == AdvantageOptions()


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("team_grpo", {"gamma": 0.9}, "team_grpo does not read gamma"),
        ("agent_grpo", {"session_mean": True}, "agent_grpo does not read session_mean"),
        ("agent_grpo", {"decay": 0.5}, "agent_grpo keeps running scores for shrinkage only"),
        ("at_grpo", {"shrinkage": 2.0}, "at_grpo does not read shrinkage"),
        ("agent_grpo", {"shrinkage": 2.0, "gamma": 0.9}, "running scores are those of acts without what followed"),
        ("agent_grpo", {"shrinkage": 2.0, "scale": "batch_std"}, "agent_grpo compares with running scores"),
        ("agent_rae", {"baseline": "best_other"}, "agent_rae compares with running scores"),
        ("team_grpo", {"by": "role"}, "team_grpo compares the acts of all agents"),
        ("hierarchical_grpo", {}, r"set \+\+mas\.advantage\.main"),
        ("rao", {"main": "solver_0", "scale": "std"}, "rao does not read scale"),
        ("rao", {"main": "solver_0", "by": "role"}, "rao compares the acts of all agents"),
    ],
)
def test_an_option_without_effect_or_a_missing_one_is_refused_and_not_ignored(name, options, says):
    with pytest.raises(ConfigError, match=says):
        options_for(name, options)
    with pytest.raises(ConfigError, match=says):
        compute_advantages(name, None, AdvantageOptions(**options))  # type: ignore[arg-type]


def test_an_unknown_estimator_names_the_known_ones():
    with pytest.raises(ConfigError, match="did you mean 'agent_grpo'"):
        compute_advantages("agent_gpro", None)  # type: ignore[arg-type]


def test_every_file_in_the_folder_is_an_estimator_of_its_name():
    files = {path.stem for path in Path(estimators.__path__[0]).glob("[!_]*.py")}
    shipped = {name for name in ESTIMATORS if ESTIMATORS[name].function.__module__.startswith("verl_mas.")}
    assert files == shipped


def test_importing_the_package_and_its_options_loads_no_torch():
    program = "import sys, verl_mas.advantage as a; a.AdvantageOptions(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_an_estimator_takes_the_rows_and_the_options():
    def alone(batch): ...

    with pytest.raises(ConfigError, match=r"estimator alone: too many positional arguments(?s:.*)def alone\(batch"):
        estimator()(alone)
