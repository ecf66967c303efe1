import pytest
from omegaconf import OmegaConf

from verl_mas.config import load, placement
from verl_mas.config.run import Run

FAR = {"remote": {"base_url": "http://x", "model": "m", "concurrency": 4}}


def nodes(gpus):
    return {"nnodes": 1, "n_gpus_per_node": gpus}


def config(**rollout):
    sizes = {f"{kind}_parallel_size": 1 for kind in ("tensor_model", "data", "pipeline_model")}
    served = {"name": "vllm", "n_gpus_per_node": 8, "engine_kwargs": {}, "custom": None, "max_num_seqs": 256}
    section = {"rollout": {**served, **sizes, "agent": {"num_workers": 8}, **rollout}}
    for role in ("actor", "ref"):
        section[role] = {"fsdp_config": {"param_offload": False, "optimizer_offload": False}}
    return OmegaConf.create(
        {
            "mas": {},
            "trainer": {**nodes(4), "device": "cuda", "v1": {"trainer_mode": "mas"}},
            "reward": {"reward_model": {"enable": False, "enable_resource_pool": True, **nodes(2)}},
            "transfer_queue": {"backend": {"SimpleStorage": {"num_data_storage_units": 1}}},
            "actor_rollout_ref": section,
        }
    )


def team(**policies):
    pools = {"big": {"nnodes": 2, "n_gpus_per_node": 8}, "shared": {"serving": "together"}}
    return load({"policies": policies, "pools": pools})


def view(policy, agents, **rollout):
    return placement.placed(Run(config(**rollout), agents), policy)


def test_resources_are_counted_over_the_pools_with_policies():
    agents = team(a={}, b={}, c={"pool": "big"}, far=FAR)
    assert placement.used_pools(agents) == ["big", "shared"]
    assert placement.gpus_needed(Run(config(), agents)) == 16 + 4
    assert placement.cpus_needed(Run(config(), agents)) == 16 * 2 + 4 * 3 + 3
    with_reward = config()
    with_reward.reward.reward_model.enable = True
    assert placement.gpus_needed(Run(with_reward, agents)) == 16 + 4 + 2
    assert placement.cpus_needed(Run(with_reward, agents)) == 16 * 2 + 4 * 3 + 3 + 2 * 3
    stock = config()
    stock.mas = None
    assert placement.cpus_needed(Run(stock, load(None))) == 4 * 3 + 3, "verl's own trainer reserves three per GPU"


def test_ranks_start_at_multiples_of_every_node():
    agents = team(a={}, b={}, c={"pool": "big"}, far=FAR)
    offsets = [placement.rank_offset(Run(config(), agents), name) for name in "abc"]
    assert offsets == [0, 16, 32]
    placed = view("c", agents)
    assert (placed.trainer.nnodes, placed.trainer.n_gpus_per_node) == (2, 8), "those of its pool"
    rollout = placed.actor_rollout_ref.rollout
    assert (rollout.n_gpus_per_node, rollout.custom.rank_offset) == (8, 32)


def test_policies_that_share_a_pool_are_offloaded_and_a_single_policy_is_not():
    def offloaded(placed):
        return placed.actor_rollout_ref.actor.fsdp_config.optimizer_offload

    assert offloaded(view("a", team(a={}, b={})))
    assert not offloaded(view("a", team(a={}, b={"pool": "big"})))
    agents = team(a={}, b={})
    agents.pools["shared"].offload = False
    assert not offloaded(view("a", agents))


def test_the_profiler_selects_engines_of_every_policy_by_their_own_ranks():
    from verl.utils.profiler import ProfilerConfig, build_rollout_dist_profiler

    agents, settings = team(a={}, b={}), {"profiler": {"enable": True, "ranks": [2]}, "tensor_model_parallel_size": 2}
    for policy, replica in (("a", 1), ("b", 5)):
        profiler = view(policy, agents, **settings).actor_rollout_ref.rollout.profiler
        made = [
            build_rollout_dist_profiler(rank, 2, ProfilerConfig(enable=True, ranks=list(profiler.ranks)))
            for rank in range(8)
        ]
        assert [rank for rank, one in enumerate(made) if one.check_this_rank()] == [replica]
    by_default = view("b", agents, profiler={"enable": True, "ranks": []}).actor_rollout_ref.rollout.profiler
    assert list(by_default.ranks) == [4]


APART = {"pool": "big", "engines": "serve"}


def apart(**policies):
    agents = load({"policies": policies, "pools": {"big": {"nnodes": 2, "n_gpus_per_node": 8}, "serve": {}}})
    agents.pools["serve"].serving = "together"
    return agents


def test_a_policy_that_is_served_elsewhere_has_processes_on_two_pools_and_engines_on_one():
    agents = apart(a=APART, b={"pool": "serve"})
    assert placement.used_pools(agents) == ["big", "serve"]
    assert placement.policies_on(agents, "big") == ["a"] and placement.served_on(agents, "big") == []
    assert placement.policies_on(agents, "serve") == placement.served_on(agents, "serve") == ["a", "b"]
    assert placement.shared_pools(agents) == ["serve"]
    assert placement.gpus_needed(Run(config(), agents)) == 16 + 4
    # Policy `a` has the GPUs of both pools. It is not offloaded, because no engines are on its training pool.
    placed = view("a", agents)
    rollout = placed.actor_rollout_ref.rollout
    assert (placed.trainer.nnodes, placed.trainer.n_gpus_per_node) == (2, 8)
    assert (rollout.nnodes, rollout.n_gpus_per_node) == (1, 4)
    assert not placed.actor_rollout_ref.actor.fsdp_config.param_offload
    # Engines of two policies on a serving pool have ranks of their own.
    agents = apart(a=APART, b=APART)
    assert [placement.rank_offset(Run(config(), agents), name) for name in "ab"] == [0, 16]


# The number of concurrent sessions if `mas.max_sessions` is null.


@pytest.mark.parametrize(
    ("policies", "pools", "requests"),
    [
        ({}, {}, 4 * 256),
        ({"a": {}, "b": {}}, {}, 4 * 256),  # they share the GPUs of one pool
        ({"a": {}, "b": {"pool": "fast"}}, {"fast": {"n_gpus_per_node": 2}}, (4 + 2) * 256),
        ({"a": {"engines": "fast"}}, {"fast": {"n_gpus_per_node": 2}}, 2 * 256),  # no engines on the pool that trains
        ({"a": {}, "b": {"overrides": {"rollout": {"max_num_seqs": 300}}}}, {}, 4 * 300),
        ({"a": {"overrides": {"rollout": {"tensor_model_parallel_size": 2}}}}, {}, 2 * 256),
        ({"a": {"overrides": {"rollout": {"max_num_seqs": 16}}}, "far": FAR}, {}, 4 * 16),
        ({"far": FAR}, {}, 8 * 4),  # no engine runs here: the limit of concurrent requests to the endpoint
    ],
)
def test_the_default_is_what_the_engines_serve_without_a_queue(policies, pools, requests):
    mas = load({"policies": policies, "pools": pools})
    assert placement.requests_at_once(Run(config(), mas)) == placement.sessions_at_once(Run(config(), mas)) == requests
    assert placement.sessions_per_worker(Run(config(), mas)) == requests // 8


def test_candidates_workers_and_a_limit_of_the_user_count():
    assert placement.sessions_at_once(Run(config(), load({"branch": {"k": 4}}))) == 256
    assert placement.sessions_at_once(Run(config(), load({"branch": {"validation_k": 2}}))) == 512
    small, limited = Run(config(max_num_seqs=1), load({})), Run(config(), load({"max_sessions": 100}))
    assert (placement.sessions_at_once(small), placement.sessions_per_worker(small)) == (8, 1), (
        "every worker runs a session"
    )
    assert placement.sessions_at_once(limited) == 100 and placement.sessions_per_worker(limited) * 8 <= 100
