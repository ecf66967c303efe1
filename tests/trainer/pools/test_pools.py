"""Pools and nodes on a cluster of two nodes with two counters "GPU" each."""

import os
import time
from importlib.metadata import version

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import remove_placement_group
from verl.single_controller.ray import RayResourcePool

from verl_mas.config.run import Run, load
from verl_mas.engines.platform.cpu import PlatformCPU
from verl_mas.errors import ConfigError
from verl_mas.trainer.pools import nodes
from verl_mas.trainer.pools import pools as placing

FOLDER = os.getcwd()
REMOTE = {"base_url": "http://10.0.0.1/v1", "model": "m", "api_key_env": "A_KEY"}


@pytest.fixture(scope="module")
def cluster():
    """Start two nodes, and connect the test as the driver."""
    made = Cluster(initialize_head=True, head_node_args={"num_gpus": 2, "num_cpus": 8, "include_dashboard": False})
    made.add_node(num_gpus=2, num_cpus=8)
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(placing, "get_platform", PlatformCPU)


@pytest.fixture
def pools(cluster):
    """Make pools with these numbers of GPUs; their GPUs are freed at the end."""
    made = []

    def pools(**gpus: list[int]) -> list[RayResourcePool]:
        new = [RayResourcePool(shape, max_colocate_count=2, name_prefix=name) for name, shape in gpus.items()]
        made.extend(new)
        return new

    yield pools
    for group in [group for pool in made for group in pool.pgs or ()]:
        remove_placement_group(group)


def test_small_large_and_small_pools_fill_two_nodes(pools):
    small, large, other = placed = pools(small=[1], large=[2], other=[1])
    placing.place(placed)
    assert placing.nodes_of([small]) == placing.nodes_of([other]) != placing.nodes_of([large])


def test_a_pool_may_span_nodes(pools):
    placed = pools(wide=[2, 2])
    placing.place(placed)
    assert len(placing.nodes_of(placed)) == 2 and [group.bundle_count for group in placed[0].pgs] == [2, 2]


def test_a_pool_that_does_not_fit_is_refused_with_what_each_node_has(pools, monkeypatch):
    monkeypatch.setattr(placing, "WAIT_S", 0.5)
    with pytest.raises(ConfigError) as refused:
        placing.place(pools(small=[1], large=[3]))
    assert refused.value.value.startswith("pool large needs 3 GPUs and 6 CPUs on one node; ")
    assert refused.value.value.count(" of 2 GPUs and ") == 2
    assert refused.value.rule.endswith("largest first: large 3, small 1")
    assert refused.value.fix.endswith("ray start --num-gpus=3 --num-cpus=22")


def test_what_another_node_lacks_is_found_there_and_names_the_node(cluster, make, tmp_path, monkeypatch):
    # The nodes run in the folder in which the cluster was started.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("")
    (tmp_path / "model").mkdir()
    config = make(
        mas__plugins=["mine.py"],
        mas__policies={"main": {}, "far": {"trainable": False, "remote": REMOTE}},
        actor_rollout_ref__model__path="model",
        actor_rollout_ref__rollout__agent__num_workers=2,
        trainer__val_only=True,
    )
    found = list(nodes.check_nodes(Run.of(config), ()))
    address = cluster.head_node.node_ip_address
    assert [error.value.partition("\n")[0] for error in found] == [
        f"on node {address}: actor_rollout_ref.model.path of policy main: {FOLDER}/model does not exist",
        f"on node {address}: mas.plugins=mine.py",
        f"on node {address}: mas.policies.far.remote.api_key_env=A_KEY",
    ]


def test_nodes_that_do_not_answer_are_waited_for_together_and_each_is_named(cluster, make, monkeypatch):
    @ray.remote(num_cpus=0)
    def hangs(*expected: object) -> None:
        time.sleep(60)

    monkeypatch.setattr(nodes, "_look", hangs)
    monkeypatch.setattr(nodes, "LIMIT_S", 1.0)
    monkeypatch.setattr(nodes, "_nodes", lambda config, pools: {n["NodeID"]: "10.0.0.9" for n in ray.nodes()})
    start = time.monotonic()
    found = list(nodes.check_nodes(Run(make(), load({})), ()))
    assert [error.value for error in found] == ["on node 10.0.0.9: no answer after 1 s"] * 2
    assert time.monotonic() - start < 1.8


def test_a_node_with_reward_workers_alone_is_looked_at(cluster, make, monkeypatch):
    own = ray.get_runtime_context().get_node_id()
    found = sorted(ray.nodes(), key=lambda node: node["NodeID"] != own)
    monkeypatch.setattr(ray, "nodes", lambda: found)

    def looked_at(reward: int) -> int:
        config = make(actor_rollout_ref__rollout__agent__num_workers=1, reward__num_workers=reward)
        return len(nodes._nodes(config, ()))  # noqa: SLF001

    assert (looked_at(0), looked_at(2)) == (0, 1)


def test_another_version_and_a_folder_that_is_not_shared_are_found_with_their_fix(tmp_path):
    assert nodes.look(load({}), {"verl-mas": version("verl-mas")}, {}, None) == []
    error, warning = nodes.look(load({}), {"verl-mas": "0.0.1"}, {}, str(tmp_path / "checkpoints/.lock"))
    assert error.fix == "pip install verl-mas==0.0.1 there"
    assert warning.value == f"trainer.default_local_dir={tmp_path}/checkpoints is not the folder of the trainer's node"


class Recorder:
    """Work that takes a moment, and records what runs at the same time."""

    def __init__(self):
        self.active, self.met = set(), []

    def __call__(self, name):
        self.active.add(name)
        self.met.append(self.active.copy())
        time.sleep(0.02)
        self.active.remove(name)


def made(**where):
    """Pools without Ray."""
    instance = placing.Pools.__new__(placing.Pools)
    policies = {name: {"pool": pool} for name, pool in where.items()}
    instance.mas = load({"policies": policies, "pools": {"big": {"nnodes": 2, "n_gpus_per_node": 8}}})
    return instance


def test_pools_work_at_the_same_time_and_policies_of_one_pool_in_turn():
    work = Recorder()
    made(a="shared", b="big", c="shared").each(["a", "b", "c"], work)
    assert any({"b"} < met for met in work.met)
    assert not any({"a", "c"} <= met for met in work.met)


def test_a_failure_on_one_pool_reaches_the_caller():
    with pytest.raises(KeyError, match="b"):
        made(a="shared", b="big").each(["a", "b"], {"a": 1}.__getitem__)
