"""A run that dispatches tasks one step ahead, with two trained policies and a frozen one: killed in the middle of a
rollout, and resumed."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from verl_mas.run_folder.checkpoints import latest
from verl_mas.trainer.checkpoint import IN_FLIGHT

# The synchronous mode is killed and resumed in every run of the tests.
pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
HERE = Path(__file__).parent
STEPS, TASKS, SESSIONS, CANDIDATES = 5, 4, 4, 2
SAVED, DIES = 2, 4
FROZEN = "rock"


@pytest.fixture(scope="module")
def run(train_team, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ahead") / "run"
    overrides = [
        f"mas.policies={{mini:{{}},other:{{pool:fast}},{FROZEN}:{{trainable:false}}}}",
        f"mas.agents={{writer:{{policy:mini}},reader:{{policy:{FROZEN}}},copier:{{policy:other}}}}",
        "mas.pools={fast:{n_gpus_per_node:1}} ray_kwargs.ray_init.num_gpus=2 algorithm.adv_estimator=at_grpo",
        f"mas.branch.k={CANDIDATES} mas.branch.commit=uniform trainer.v1.trainer_mode=mas_colocate_async",
        "trainer.v1.sampler.max_off_policy_strategy=wait trainer.v1.colocate_async.num_warmup_batches=1",
        "trainer.v1.sampler.max_off_policy_threshold=2 actor_rollout_ref.rollout.calculate_log_probs=true",
        "algorithm.rollout_correction.rollout_is=token data.shuffle=false data.max_response_length=48",
        f"trainer.total_training_steps={STEPS} trainer.save_freq={SAVED} trainer.test_freq={SAVED}",
    ]

    def train(name, exit_code, **environment):
        with pytest.MonkeyPatch.context() as patch:
            for key, value in {"VERL_USE_EXTERNAL_MODULES": "recorded_batches", **environment}.items():
                patch.setenv(key, value)
            patch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
            patch.setenv("BATCHES", f"{folder}/{name}.jsonl")
            return train_team(folder, "Late", *overrides, exit_code=exit_code)

    train("killed", 1, DIE_AT=str(DIES))
    saved = latest(folder / "checkpoints")
    assert saved.step == SAVED and saved.run[IN_FLIGHT] == TASKS
    return train("resumed", 0)


@pytest.fixture(scope="module")
def batches(run):
    """The rows of every step, of the killed run and of the resumed run."""
    read = {name: (run.folder / f"{name}.jsonl").read_text().splitlines() for name in ("killed", "resumed")}
    found = {name: {batch["step"]: batch["rows"] for batch in map(json.loads, lines)} for name, lines in read.items()}
    assert list(found["killed"]) == [1, 2, 3] and list(found["resumed"]) == [3, 4, 5]
    return found


@pytest.fixture(scope="module")
def trained(batches):
    """The rows of every step on which the final weights were trained."""
    return {**{step: batches["killed"][step] for step in range(1, SAVED + 1)}, **batches["resumed"]}


def test_the_batch_of_a_step_is_the_one_that_was_dispatched_a_step_before(trained, batches):
    for step, rows in trained.items():
        assert {row["global_steps"] for row in rows} == {step - 1}
    tasks = ({row["key"].rsplit("_", 2)[0] for row in batches[name][3]} for name in ("killed", "resumed"))
    assert next(tasks) == next(tasks), "also of a step that is repeated"


def test_no_task_is_left_out_or_trained_twice_and_groups_are_complete_whatever_the_versions_of_their_rows(trained):
    for step, rows in trained.items():
        assert {row["index"] for row in rows} == set(range(TASKS * (step - 1), TASKS * step))
        sessions = Counter(row["key"].rsplit("_", 1)[0] for row in rows)
        assert len(sessions) == TASKS * SESSIONS
        assert set(sessions.values()) == {(1 if step % 2 else 6) + 1 + CANDIDATES}, "drafts, a reading and the copies"


def test_rows_span_versions_and_none_is_older_than_the_threshold_allows(trained):
    spans = 0
    for step, rows in trained.items():
        for row in rows:
            if row["policy"] == FROZEN:
                continue
            versions = row["versions"]
            assert sum(tokens for tokens, _ in versions) == row["response_len"] == len(row["responses"])
            numbers = [version for _, version in versions]
            assert numbers == sorted(set(numbers)), "of every policy, also one without an update"
            assert (row["min_global_steps"], row["max_global_steps"]) == (numbers[0], numbers[-1])
            assert step - 2 <= numbers[0] <= numbers[-1] <= step - 1
            spans += len(versions) > 1
    assert spans, "no reply was cut by an update and continued"


def test_verls_numbers_of_staleness_are_those_of_the_rows_and_a_validation_ends_with_tasks_in_flight(run, trained):
    assert [step for step, metrics in run.steps.items() if "val-core/letters/pass@1" in metrics] == [SAVED, 4, STEPS]
    for step in run.steps:
        ages = [step - 1 - row["max_global_steps"] for row in trained[step] if row["policy"] != FROZEN]
        assert run.steps[step]["training/off_policy/trajectory_staleness/max"] == max(ages)
