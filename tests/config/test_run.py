from __future__ import annotations

import subprocess
import sys

from verl_mas.config import load


def test_importing_the_package_loads_neither_torch_nor_ray():
    program = "import sys, verl_mas.config; print({'torch', 'ray', 'verl'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_an_empty_block_is_one_policy_on_one_pool():
    team = load({"policies": None})
    assert list(team.policies) == ["main"]
    assert list(team.pools) == ["shared"]


def test_a_snapshot_is_served_as_its_policy_where_it_has_no_overrides_of_its_own():
    source = {"model": {"path": "m"}, "rollout": {"dtype": "float16", "n": 2}, "actor": {"optim": {"lr": 1e-6}}}
    past = {"snapshot": {"of": "main", "every": 2}, "overrides": {"rollout": {"n": 3}}}
    policies = load({"policies": {"past": past, "main": {"overrides": source}}}).policies
    assert policies["past"].overrides == {"model": {"path": "m"}, "rollout": {"dtype": "float16", "n": 3}}
    assert policies["main"].overrides == source
    assert [policies[name].is_trained for name in ("main", "past")] == [True, False]
