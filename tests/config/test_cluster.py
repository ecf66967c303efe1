import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from verl_mas.config import cluster
from verl_mas.util.worker_folder import VARIABLE

FILE = "10.0.0.1:6379"


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)
    monkeypatch.setattr("ray._private.utils.read_ray_address", lambda folder: None)


@pytest.fixture
def ray_start(monkeypatch):
    monkeypatch.setattr("ray._private.utils.read_ray_address", lambda folder: FILE)


def config(device: str = "cpu", **ray_init: object):
    init = {"num_cpus": 64, "num_gpus": 1, "runtime_env": {"env_vars": {"A": "b"}}, **ray_init}
    made = OmegaConf.create({"trainer": {"device": device}, "ray_kwargs": {"ray_init": init}})
    OmegaConf.set_struct(made, True)
    return made


def test_without_a_cluster_the_run_starts_its_own_and_nothing_is_changed():
    made = config()
    assert cluster.address(made) is None and not cluster.joined(made)
    cluster.adapt(made)
    assert made == config()
    assert cluster.address(config(address="auto")) == "auto", "left to Ray"


@pytest.mark.parametrize(
    ("given", "environment", "found"),
    [
        (None, None, FILE),
        ("auto", None, FILE),
        (None, "10.0.0.2:1", "10.0.0.2:1"),
        ("auto", "10.0.0.2:1", "10.0.0.2:1"),
        ("10.0.0.3:1", "10.0.0.2:1", "10.0.0.3:1"),
        ("local", "10.0.0.2:1", None),
        (None, "local", None),
    ],
)
def test_a_cluster_is_found_as_ray_finds_it(given, environment, found, monkeypatch, ray_start):
    from ray._private import services

    if environment:
        monkeypatch.setenv("RAY_ADDRESS", environment)
    made = config(address=given)
    assert cluster.address(made) == found and cluster.joined(made) is (found is not None)
    monkeypatch.setattr(services, "find_gcs_addresses", set)
    # `ray.init` takes the variable into account before it asks for the address.
    asked = environment if environment and given in (None, "auto") else given
    assert services.canonicalize_bootstrap_address(asked) == found


def test_a_joining_run_on_the_cpu_drops_the_counters_of_its_own_cluster_and_keeps_its_folder(ray_start):
    made = config()
    cluster.adapt(made)
    init = made.ray_kwargs.ray_init
    assert (init.num_cpus, init.num_gpus) == (None, None)
    assert init.runtime_env.env_vars == {"A": "b", VARIABLE: str(Path.cwd())}
    on_gpus = config("cuda")
    cluster.adapt(on_gpus)
    assert on_gpus.ray_kwargs.ray_init.num_cpus == 64


@pytest.mark.parametrize("how", ["job", "setting"])
def test_where_ray_sends_a_copy_of_the_folder_workers_stay_in_the_copy(how, monkeypatch, ray_start):
    if how == "job":
        monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps({"runtime_env": {"working_dir": "gcs://x.zip"}}))
    made = config(runtime_env={"working_dir": "." if how == "setting" else None})
    assert cluster.sends_folder(made)
    cluster.adapt(made)
    assert "env_vars" not in made.ray_kwargs.ray_init.runtime_env
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps({"runtime_env": None}))
    assert not cluster.sends_folder(config())
