import subprocess
import sys

import pytest

from verl_mas.config import load
from verl_mas.config.engine_tag import SHARED_PREFIXES
from verl_mas.config.run import Run
from verl_mas.errors import ConfigErrors, InvalidInput


def test_importing_the_package_loads_neither_torch_nor_ray():
    program = "import sys, verl_mas.config; print({'torch', 'ray', 'verl'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_snapshot_is_served_as_its_policy_where_it_has_no_overrides_of_its_own():
    source = {"model": {"path": "m"}, "rollout": {"dtype": "float16", "n": 2}, "actor": {"optim": {"lr": 1e-6}}}
    past = {"snapshot": {"of": "main", "every": 2}, "overrides": {"rollout": {"n": 3}}}
    policies = load({"policies": {"past": past, "main": {"overrides": source}}}).policies
    assert policies["past"].overrides == {"model": {"path": "m"}, "rollout": {"dtype": "float16", "n": 3}}
    assert policies["main"].overrides == source
    assert [policies[name].is_trained for name in ("main", "past")] == [True, False]


ACTOR, CORRECTION = "actor_rollout_ref__actor__", "algorithm__rollout_correction__"


@pytest.mark.parametrize(
    ("settings", "passes", "skips"),
    [
        ({}, 0.1, True),
        ({"mas__old_log_probs_every": 1, "mas__skip_zero_advantage": False}, 1, False),
        ({"mas__updates_per_step": 2}, 1, False),
        ({"mas__updates_per_step": 2, "mas__skip_zero_advantage": True}, 1, True),
        ({"mas__policies": {"main": {"updates_per_step": 2}}}, 1, False),
        ({f"{ACTOR}ppo_epochs": 2}, 1, True),
        ({f"{ACTOR}policy_loss__loss_mode": "kl_cov"}, 1, False),
        ({f"{ACTOR}policy_loss__loss_mode": "geo_mean"}, 0.1, False),
        ({f"{ACTOR}policy_loss__loss_mode": "a_users_own"}, 1, False),
        ({f"{ACTOR}use_kl_loss": True}, 0.1, False),
        ({f"{ACTOR}entropy_coeff": 0.1}, 0.1, False),
        ({f"{CORRECTION}bypass_mode": True}, 0, True),
        ({f"{CORRECTION}rollout_is": "token"}, 1, True),
        ({"mas__policies": {"main": {"rollout_correction": {"rollout_rs": "token_k1"}}}}, 1, True),
        ({"trainer__v1__trainer_mode": "sync"}, 1, True),  # verl's own trainer
    ],
)
def test_passes_that_change_nothing_are_left_out(make, settings, passes, skips):
    [view] = map(Run.of(make(**{"mas__updates_per_step": 1, f"{ACTOR}use_kl_loss": False, **settings})).view, ["main"])
    assert (view.old_log_prob_passes, view.skips_zero_advantage) == (passes, skips)


def test_a_policy_is_on_pools_that_exist():
    with pytest.raises(ConfigErrors) as refused:
        load({"policies": {"main": {"pool": "big", "engines": "servee"}}, "pools": {"serve": {}}})
    assert [error.value for error in refused.value.errors] == [
        "mas.policies.main.pool=big",
        "mas.policies.main.engines=servee",
    ]
    assert "did you mean 'serve'" in refused.value.errors[1].fix


@pytest.mark.parametrize(
    ("device", "run", "own", "shares"),
    [
        ("cpu", None, None, True),
        ("cpu", False, None, False),
        ("cuda", None, None, False),
        ("cuda", "auto", None, True),
        ("cuda", True, False, False),
        ("cuda", None, True, True),
    ],
)
def test_prefixes_are_shared_as_the_policy_says_or_the_run_or_on_a_cpu(make, device, run, own, shares):
    mas = {"mas__shared_prefixes": run, "mas__policies": {"main": {"shared_prefixes": own}}}
    view = Run.of(make(trainer__device=device, **mas)).view("main")
    assert view.shares_prefixes == shares
    told = view.config.actor_rollout_ref.rollout.custom.get(SHARED_PREFIXES)
    assert told == (run if own is None else own)


REMOTE = {"base_url": "http://localhost:8000/v1", "model": "m"}


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ({"snapshot": {"of": "a", "every": 2}, "remote": REMOTE}, "a policy with snapshot and remote"),
        ({"adapter_of": "base", "snapshot": {"of": "a", "every": 2}}, "a policy with snapshot and adapter_of"),
        ({"remote": REMOTE, "overrides": {"model": {"path": "x"}}}, "a remote policy with overrides"),
    ],
)
def test_a_policy_has_one_source_of_weights(policy, says):
    with pytest.raises(InvalidInput, match=says):
        load({"policies": {"p": policy}})
