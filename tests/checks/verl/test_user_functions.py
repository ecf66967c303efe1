from __future__ import annotations

import pytest

from verl_mas.checks.verl.user_functions import check_functions


@pytest.mark.parametrize(
    "text",
    [
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None): ...",
        "async def compute_score(**kwargs): ...",
        "from elsewhere import compute_score",
        "from elsewhere import *",
        "try:\n    from fast import score as compute_score\nexcept ImportError:\n    compute_score = None",
        "compute_score = print",
    ],
)
def test_a_file_that_defines_the_function_passes(make, tmp_path, text):
    (tmp_path / "reward.py").write_text(text)
    for path in (f"{tmp_path}/reward.py", f"file://{tmp_path}/reward.py"):
        assert list(check_functions(make(reward__custom_reward_function__path=path))) == []


def test_a_function_of_an_installed_module_passes(make):
    config = make(reward__custom_reward_function__path="pkg://verl_mas.testing.letters")
    config.reward.custom_reward_function.name = "score"
    assert list(check_functions(config)) == []
    config.reward.custom_reward_function.name = "nosuch"
    (error,) = check_functions(config)
    assert "does not define it" in error.value
