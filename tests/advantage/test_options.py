from __future__ import annotations

import subprocess
import sys

import pytest

from verl_mas.advantage import ESTIMATORS, AdvantageInput, AdvantageOptions, compute_advantages, options_for
from verl_mas.errors import ConfigError, ConfigErrors


def test_options_of_an_empty_block_are_the_defaults():
    assert AdvantageOptions.from_config({}) == AdvantageOptions.from_config(None) == AdvantageOptions()


def test_options_are_read_from_a_config_block():
    options = AdvantageOptions.from_config({"deviation": "population", "eps": 0, "scale": None})
    assert (options.deviation, options.eps, options.scale) == ("population", 0, None)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"deviaton": "sample"}, "did you mean 'deviation'"),
        ({"deviation": "biased"}, "one of sample, population"),
        ({"scale": "variance"}, "one of std, none, batch_std"),
        ({"baseline": 0}, "one of mean, leave_one_out"),
        ({"weighting": ""}, "one of per_act"),
        ({"group_of_one": "one"}, "one of zero, raw"),
        ({"eps": -1e-6}, "a finite number, between 0 and 1"),
        ({"eps": "1e-6"}, "a finite number"),
        ({"eps": float("nan")}, "a finite number"),
        ({"gamma": 1.5}, "a finite number, between 0 and 1"),
        ({"group_size": 0}, "a whole number, at least 1"),
        ({"group_size": 2.5}, "a whole number"),
        ({"step_weight": True}, "a finite number"),
        ({"by": "policy"}, "one of agent, role"),
    ],
)
def test_an_unknown_option_is_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        AdvantageOptions.from_config(config)


def test_options_that_code_constructs_are_refused_alike():
    with pytest.raises(ConfigErrors, match=r"mas\.advantage\.gamma is a finite number, between 0 and 1"):
        AdvantageOptions(eps=-1.0, gamma=2.0)


@pytest.mark.parametrize("option", [{"gamma": 0.9}, {"step_weight": 2.0}, {"group_size": 4}, {"main": "solver"}])
def test_an_option_that_the_estimator_does_not_read_is_refused_and_not_ignored(option):
    with pytest.raises(ConfigError, match="agent_grpo does not read"):
        compute_advantages("agent_grpo", None, AdvantageOptions(**option))  # type: ignore[arg-type]


def test_an_estimators_own_defaults_fill_what_was_not_chosen():
    options = options_for("agent_rloo", {"scale": "std"})
    assert (options.baseline, options.scale, options.weighting) == ("leave_one_out", "std", "per_act")
    with pytest.raises(ConfigError, match="agent_rloo does not read gamma"):
        options_for("agent_rloo", {"gamma": 0.9})


def test_groups_by_role_are_refused_where_all_agents_are_compared_with_each_other():
    with pytest.raises(ConfigError, match="team_grpo compares the acts of all agents"):
        options_for("team_grpo", {"by": "role"})
    assert options_for("agent_grpo", {"by": "role"}).by == "role"


def test_an_option_that_has_no_default_has_to_be_set():
    with pytest.raises(ConfigError, match=r"set \+\+mas\.advantage\.main"):
        options_for("hierarchical_grpo", {})
    assert options_for("hierarchical_grpo", {"main": "leader"}).weighting == "per_session"


def test_an_unknown_estimator_names_the_known_ones():
    with pytest.raises(ConfigError, match="did you mean 'agent_grpo'"):
        compute_advantages("agent_gpro", None)  # type: ignore[arg-type]


def test_every_file_in_the_folder_is_an_estimator_of_its_name():
    from verl_mas.advantage import estimators

    files = {path.stem for path in __import__("pathlib").Path(estimators.__path__[0]).glob("[!_]*.py")}
    shipped = {name for name in ESTIMATORS if ESTIMATORS[name].function.__module__.startswith("verl_mas.")}
    assert files == shipped


def test_importing_the_package_and_its_options_loads_no_torch():
    program = "import sys, verl_mas.advantage as a; a.AdvantageOptions(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_name_that_the_package_lacks_is_an_attribute_error():
    import verl_mas.advantage

    assert verl_mas.advantage.AdvantageInput is AdvantageInput
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = verl_mas.advantage.nothing
