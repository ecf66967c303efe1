"""Policies that train on separate GPUs while their engines keep serving."""

import json
import os
from pathlib import Path

import pytest
import watched_engines
from watched_engines import fingerprints

from verl_mas import read_sessions

pytestmark = pytest.mark.e2e
SUPPORT = Path(watched_engines.__file__).parent
APART = (
    "trainer.v1.trainer_mode=mas_separate_async actor_rollout_ref.rollout.checkpoint_engine.backend=ray",
    "trainer.v1.separate_async.parameter_sync_step=1 trainer.v1.separate_async.num_warmup_batches=1",
    "trainer.v1.sampler.max_off_policy_strategy=wait trainer.v1.sampler.max_off_policy_threshold=2",
)
ON_THREE_POOLS = (
    "+mas.agents.writer.policy=a +mas.agents.copier.policy=b +mas.policies.a={pool:left,engines:serve}",
    "+mas.policies.b={pool:right,engines:serve} +mas.pools={left:{},right:{},serve:{}}",
)
STEPS = 3


@pytest.fixture(scope="module")
def run(train_team, tmp_path_factory):
    """Two policies on two trainer pools and one serving pool."""
    folder = tmp_path_factory.mktemp("separate")
    watched = folder / "watched.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VERL_USE_EXTERNAL_MODULES", "watched_engines")
        patch.setenv("PYTHONPATH", str(SUPPORT), prepend=os.pathsep)
        patch.setenv("WATCHED_FILE", str(watched))
        steps = f"trainer.total_training_steps={STEPS} trainer.save_freq=1"
        lengths = "data.max_response_length=64 data.max_prompt_length=256"
        done = train_team(folder, "Pair", *APART, *ON_THREE_POOLS, steps, lengths)
    return done, [json.loads(line) for line in watched.read_text().splitlines()]


def test_every_sync_gives_each_policys_engines_the_weights_of_its_trainer_and_no_others(run, weights_of):
    done, records = run
    syncs = [record for record in records if record["kind"] == "sync"]
    expected = [(step, policy) for step in range(STEPS + 1) for policy in "ab"]
    assert sorted((sync["step"], sync["policy"]) for sync in syncs) == expected
    for sync in syncs:
        if sync["step"]:
            trained = fingerprints(weights_of(done.checkpoint(sync["step"]) / sync["policy"]))
            assert trained and trained.items() <= sync["weights"].items()
    last = {sync["policy"]: sync["weights"] for sync in syncs}
    assert last["a"] != last["b"]


def test_engines_generate_while_policies_are_trained_and_a_batch_is_of_the_weights_of_one_step_before(run):
    done, records = run
    during = [sum(record["sampled"].values()) for record in records if record["kind"] == "train"]
    assert sum(during) > 0
    stale = {step: values["training/off_policy/trajectory_staleness/max"] for step, values in done.steps.items()}
    # The first two batches are sampled with the initial weights.
    assert stale == {1: 0, 2: 1, 3: 1}
    # Tasks have the progress of the step that dispatched them.
    sessions = read_sessions(done.folder / "checkpoints" / "trajectories")
    assert {one["step"]: one["outcome"]["info"]["progress"] for one in sessions} == {0: 0, 1: 0, 2: 1 / 3}
