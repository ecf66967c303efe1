"""Policies that train on GPUs of their own while their engines serve on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import verl.trainer.ppo.v1  # noqa: F401  # imports our trainers itself
import watched_engines
from watched_engines import fingerprints

from verl_mas.trainer.modes.asynchronous import SeparateAsyncTrainer
from verl_mas.trainer.policies.separate import SeparatePolicy

SUPPORT = Path(watched_engines.__file__).parent
APART = (
    "trainer.v1.trainer_mode=mas_separate_async",
    "actor_rollout_ref.rollout.checkpoint_engine.backend=ray",
    "trainer.v1.separate_async.parameter_sync_step=1",
    "trainer.v1.separate_async.num_warmup_batches=1",
    "trainer.v1.sampler.max_off_policy_strategy=wait",
    "trainer.v1.sampler.max_off_policy_threshold=2",
)
ON_THREE_POOLS = (
    "+mas.agents.writer.policy=a",
    "+mas.agents.copier.policy=b",
    "+mas.policies.a={pool: left, engines: serve}",
    "+mas.policies.b={pool: right, engines: serve}",
    "+mas.pools={left: {}, right: {}, serve: {}}",
)
STEPS = 3


class Separate(SeparatePolicy):
    """Without its processes."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def wake(self, step):
        self.log.append(f"send {self.name} {step}")


class Frozen:
    def __init__(self, name, log):
        self.name, self.log = name, log

    def wake(self, step):
        self.log.append(f"wake {self.name}")


@pytest.fixture
def trainer():
    made, log = object.__new__(SeparateAsyncTrainer), []
    made.members = {"a": Separate("a", log), "guide": Frozen("guide", log), "b": Separate("b", log)}
    made.pools = SimpleNamespace(each=lambda names, work: [work(name) for name in names])
    made.agent_loop_manager = SimpleNamespace(
        pause=lambda names: log.append(f"close {names}"), resume=lambda names: log.append(f"open {names}")
    )
    made.log, made.global_steps, made.curr_step_profile, made.timing_raw = log, 3, False, {}
    return made


def test_at_the_start_every_engine_gets_its_memory_or_its_weights(trainer):
    trainer.on_init_end()
    assert trainer.log == ["send a 3", "wake guide", "send b 3"]


def test_no_engine_notices_the_end_of_sampling(trainer):
    trainer.on_sample_end()
    assert trainer.log == []


def test_a_policy_gets_its_weights_behind_its_own_gate_and_a_frozen_one_serves_on(trainer):
    trainer.on_step_end()
    assert trainer.log == ["close ['a']", "send a 3", "open ['a']", "close ['b']", "send b 3", "open ['b']"]


@pytest.fixture(scope="module")
def run(train_team, tmp_path_factory):
    """Two policies on two trainer pools and one serving pool."""
    folder = tmp_path_factory.mktemp("separate")
    watched = folder / "watched.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VERL_USE_EXTERNAL_MODULES", "watched_engines")
        patch.setenv("PYTHONPATH", str(SUPPORT), prepend=os.pathsep)
        patch.setenv("WATCHED_FILE", str(watched))
        steps = (
            f"trainer.total_training_steps={STEPS}",
            "trainer.save_freq=1",
            "data.max_response_length=64",
            "data.max_prompt_length=256",
        )
        done = train_team(folder, "Pair", *APART, *ON_THREE_POOLS, *steps)
    return done, [json.loads(line) for line in watched.read_text().splitlines()]


@pytest.mark.e2e
def test_every_sync_gives_each_policys_engines_the_weights_of_its_trainer_and_no_others(run, weights_of):
    done, records = run
    syncs = [record for record in records if record["kind"] == "sync"]
    assert [(one["policy"], one["step"]) for one in sorted(syncs, key=lambda one: (one["step"], one["policy"]))] == [
        (policy, step) for step in range(STEPS + 1) for policy in "ab"
    ]
    for one in syncs:
        if one["step"]:
            trained = fingerprints(weights_of(done.checkpoint(one["step"]) / one["policy"]))
            assert trained and trained.items() <= one["weights"].items()
    last = {one["policy"]: one["weights"] for one in syncs}
    assert last["a"] != last["b"]


@pytest.mark.e2e
def test_engines_generate_while_policies_are_trained(run):
    _, records = run
    during = [sum(record["sampled"].values()) for record in records if record["kind"] == "train"]
    assert sum(during) > 0


@pytest.mark.e2e
def test_a_batch_is_of_the_weights_of_one_step_before_its_own(run):
    done, _ = run
    stale = {step: values["training/off_policy/trajectory_staleness/max"] for step, values in done.steps.items()}
    # The first batch and that of the warm-up are both of the first weights.
    assert stale == {1: 0, 2: 1, 3: 1}
