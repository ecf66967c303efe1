import time
from threading import Event, Thread
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from verl.single_controller.ray import RayWorkerGroup
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from verl_mas.config.run import Run
from verl_mas.engines.serving import resolve_serving
from verl_mas.trainer.policies import local_policy as module
from verl_mas.trainer.policies.local_policy import LocalPolicy
from verl_mas.trainer.starting import Turn, side_by_side, turns
from verl_mas.trainer.timeline import LAUNCH, LOAD, PROCESSES, Timeline, read_timeline

SIZED = {"vllm": {"kv_cache_memory_bytes": 2**30}}


def overrides(engine, kwargs):
    return {"overrides": {"rollout": {"name": engine, "engine_kwargs": kwargs}}}


def waits(config, pool, tmp_path):
    """Whether the second policy waits for the first policy before it allocates memory on the pool."""
    one, other = turns(resolve_serving(Run.of(config)), Timeline(tmp_path)).values()
    done = Event()
    Thread(target=lambda: (other.wait(pool), done.set()), daemon=True).start()
    waited = not done.wait(0.1)
    one.take(lambda turn: turn.ended(LAUNCH))
    assert done.wait(5)
    assert [event.policy for event in read_timeline(tmp_path)] == [one.name]
    return waited


@pytest.mark.parametrize(
    ("a", "b", "waited"),
    [
        (("vllm", {}), ("vllm", {}), True),
        (("vllm", SIZED), ("vllm", {}), True),
        (("vllm", SIZED), ("vllm", SIZED), False),
        (("sglang", {}), ("transformers", {}), True),
        (("transformers", {}), ("transformers", {}), False),
    ],
)
def test_engines_of_one_gpu_start_in_turn_where_one_measures_its_memory(make, tmp_path, a, b, waited):
    config = make(
        mas__policies={"a": overrides(*a), "b": overrides(*b)}, actor_rollout_ref__rollout__gpu_memory_utilization=0.3
    )
    assert waits(config, "shared", tmp_path) is waited


def test_engines_that_are_awake_in_turn_start_in_turn(make, tmp_path):
    sized = overrides("vllm", SIZED)
    config = make(mas__policies={"a": sized, "b": sized}, mas__pools={"shared": {"serving": "phases"}})
    assert waits(config, "shared", tmp_path)


@pytest.mark.parametrize(("pool", "waited"), [("left", False), ("right", False), ("serve", True)])
def test_policies_on_different_pools_wait_only_for_the_engines_on_a_common_one(make, tmp_path, pool, waited):
    policies = {
        name: {"pool": own, "engines": "serve", **overrides("vllm", {})}
        for name, own in (("a", "left"), ("b", "right"))
    }
    config = make(mas__policies=policies, mas__pools={"left": {}, "right": {}, "serve": {}})
    assert waits(config, pool, tmp_path) is waited


def test_a_start_that_fails_is_raised_at_once_while_another_one_never_ends():
    def fail():
        raise ValueError("no such model")

    began = time.monotonic()
    with pytest.raises(ValueError, match="no such model") as raised:
        side_by_side({"policy a": Event().wait, "policy b": fail})
    assert time.monotonic() - began < 5 and raised.traceback[-1].name == "fail"


def test_training_processes_import_at_once_and_load_their_model_in_turn(monkeypatch, tmp_path):
    """The phases are detected when verl's set-up sets these attributes."""

    def init(self):
        self.actor_rollout_wg = object.__new__(RayWorkerGroup)
        log.append("loads")
        self.reward_loop_manager = "none of its own"

    log, earlier, timeline = [], Event(), Timeline(tmp_path, {"a": "main"})
    monkeypatch.setattr(PPOTrainer, "init", init)
    monkeypatch.setattr(RayWorkerGroup, "workers", [SimpleNamespace(__ray_ready__=Mock())])
    monkeypatch.setattr(module.ray, "get", lambda answers: log.append("imported"))
    policy = object.__new__(LocalPolicy)
    policy.pool, policy.use_reference_policy = SimpleNamespace(name_prefix="main"), False
    policy.use_critic = False
    started = Thread(target=policy.start, args=[Turn("a", timeline, {"main": [earlier]})], daemon=True)
    started.start()
    started.join(0.1)
    assert log == ["imported"]
    earlier.set()
    started.join(5)
    assert log == ["imported", "loads"]
    assert [event.event for event in read_timeline(tmp_path)] == [PROCESSES, LOAD, LAUNCH]
