from __future__ import annotations

import pytest
from verl_mas.checks.together import check_together

from verl_mas.checks import cluster
from verl_mas.config.load import load
from verl_mas.config.run import Run
from verl_mas.execution.executor import Execution
from verl_mas.workflow.base import resolve


@pytest.fixture
def ray_start(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray._private.utils.read_ray_address", lambda folder: "10.0.0.1:6379")


def test_counts_for_a_running_cluster_are_refused_with_what_to_type(make, ray_start):
    given = {"ray_kwargs__ray_init__num_gpus": 8, "ray_kwargs__ray_init__num_cpus": None}
    (error,) = cluster.check_cluster(make(**given))
    assert error.value == "ray_kwargs.ray_init.num_gpus with the running Ray cluster at 10.0.0.1:6379"
    assert error.fix.startswith("set ray_kwargs.ray_init.num_gpus=null; ++ray_kwargs.ray_init.address=local ")
    assert not list(cluster.check_cluster(make(**given, ray_kwargs__ray_init__address="local")))


@pytest.mark.parametrize(("address", "joins"), [("10.0.0.1:6379", True), ("local", False)])
def test_the_resources_of_a_cluster_that_is_there_are_not_checked_and_those_of_an_own_one_are(make, address, joins):
    config = make(ray_kwargs__ray_init__address=address)
    values = [problem.value for problem in check_together(Run.of(config))]
    assert (f"ray_kwargs.ray_init.address={address}" in values) is joins


def test_output_that_ray_would_delete_is_warned_of(make):
    sent = {"ray_kwargs__ray_init__runtime_env__working_dir": "."}
    (warning,) = cluster.check_cluster(make(**sent, trainer__default_local_dir="checkpoints/a"))
    assert warning.value == "trainer.default_local_dir=checkpoints/a with a working_dir"
    assert not list(cluster.check_cluster(make(**sent, trainer__default_local_dir="/disk/a")))
    assert not list(cluster.check_cluster(make(trainer__default_local_dir="checkpoints/a")))


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_server_at_127_0_0_1_is_warned_of_in_a_run_on_several_nodes(make, nodes):
    config = make(
        "search_team",
        mas__policies={"main": {}, "far": {"remote": {"base_url": "http://localhost:8001/v1", "model": "m"}}},
        trainer__nnodes=nodes,
    )
    mas = load(config.mas)
    warnings = list(cluster.check_addresses(Run(config, mas), vars(resolve(mas.workflow))))
    assert [warning.value.partition("=")[0] for warning in warnings] == [
        "mas.workflow.args.retriever",
        "mas.policies.far.remote.base_url",
    ][: 2 * (nodes - 1)]
    service = {"execution": Execution(executor="sandbox_fusion", url="http://localhost:8080")}
    assert len(list(cluster.check_addresses(Run(config, mas), service))) == 2 * (nodes - 1)
    settings = {"retriever": "http://10.0.0.1:8000/retrieve", "score": "em", "index": "runs/index"}
    assert len(list(cluster.check_addresses(Run(config, mas), settings))) == nodes - 1
