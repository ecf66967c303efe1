"""The number of concurrent sessions if `mas.max_sessions` is null."""

import pytest
from omegaconf import OmegaConf

from verl_mas.config import load
from verl_mas.config.placement import requests_at_once, sessions_at_once, sessions_per_worker
from verl_mas.config.run import Run

REMOTE = {"remote": {"base_url": "http://x", "model": "m", "concurrency": 4}}


def config(workers=8, **rollout):
    sizes = {f"{kind}_parallel_size": 1 for kind in ("tensor_model", "data", "pipeline_model")}
    section = {"rollout": {**sizes, "max_num_seqs": 256, "agent": {"num_workers": workers}, **rollout}}
    return OmegaConf.create({"trainer": {"nnodes": 1, "n_gpus_per_node": 4}, "actor_rollout_ref": section})


@pytest.mark.parametrize(
    ("policies", "pools", "requests"),
    [
        ({}, {}, 4 * 256),
        ({"a": {}, "b": {}}, {}, 4 * 256),  # they share the GPUs of one pool
        ({"a": {}, "b": {"pool": "fast"}}, {"fast": {"n_gpus_per_node": 2}}, (4 + 2) * 256),
        ({"a": {"engines": "fast"}}, {"fast": {"n_gpus_per_node": 2}}, 2 * 256),  # no engines on the pool that trains
        ({"a": {}, "b": {"overrides": {"rollout": {"max_num_seqs": 300}}}}, {}, 4 * 300),
        ({"a": {"overrides": {"rollout": {"tensor_model_parallel_size": 2}}}}, {}, 2 * 256),
        ({"a": {"overrides": {"rollout": {"max_num_seqs": 16}}}, "far": REMOTE}, {}, 4 * 16),
        ({"far": REMOTE}, {}, 8 * 4),  # nothing is served here: what the endpoint is sent at once
    ],
)
def test_the_default_is_what_the_engines_serve_without_a_queue(policies, pools, requests):
    mas = load({"policies": policies, "pools": pools})
    assert requests_at_once(Run(config(), mas)) == sessions_at_once(Run(config(), mas)) == requests
    assert sessions_per_worker(Run(config(), mas)) == requests // 8


def test_candidates_workers_and_a_limit_of_the_user_count():
    assert sessions_at_once(Run(config(), load({"branch": {"k": 4}}))) == 256
    assert sessions_at_once(Run(config(), load({"branch": {"validation_k": 2}}))) == 512
    small, limited = Run(config(max_num_seqs=1), load({})), Run(config(), load({"max_sessions": 100}))
    assert (sessions_at_once(small), sessions_per_worker(small)) == (8, 1), "every worker runs a session"
    assert sessions_at_once(limited) == 100 and sessions_per_worker(limited) * 8 <= 100
