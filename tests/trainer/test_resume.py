"""Two policies of different sizes, tokenizers, learning rates, FSDP versions and GPUs, and a snapshot of one of them:
trained, killed, resumed and exported."""

import os
import re
from itertools import combinations
from pathlib import Path

import pytest
import torch

from verl_mas import cli
from verl_mas.results.sessions.run import open_run
from verl_mas.run_folder import worker_log
from verl_mas.run_folder.about import attempts
from verl_mas.run_folder.checkpoints import latest, whole_checkpoints
from verl_mas.run_folder.metrics.file import DROPPED, read_steps
from verl_mas.testing.tiny_model import byte_tokenizer, tiny_model
from verl_mas.trainer.checkpoint import RNG_FILE, RUNNING_FILE
from verl_mas.trainer.policies.weight_folder import read
from verl_mas.workflow.team_file import read_team

pytestmark = pytest.mark.e2e
HERE = Path(__file__).parent
POLICIES = ("mini", "other")


@pytest.fixture(scope="module")
def overrides(tmp_path_factory):
    words = ["a b c d aaaa bbbb cccc dddd"] * 9
    other = tiny_model(tmp_path_factory.mktemp("other"), hidden=48, layers=1, tokenizer=byte_tokenizer(words), seed=1)
    return [
        "mas.policies={mini:{},other:{pool:fast},past:{snapshot:{of:mini,every:2,first:1}}}",
        "+mas.policies.mini.overrides.actor.optim.lr=1e-3 +mas.policies.other.overrides.actor.optim.lr=5e-3",
        f"+mas.policies.other.overrides.actor.strategy=fsdp +mas.policies.other.overrides.model.path={other}",
        "mas.agents={writer:{policy:mini},earlier:{policy:past},copier:{policy:other}}",
        "mas.pools={fast:{n_gpus_per_node:1}} ray_kwargs.ray_init.num_gpus=2",
        "actor_rollout_ref.rollout.full_determinism=true",
        # With shrinkage, the estimator's memory of earlier steps is part of every advantage.
        "++mas.advantage.shrinkage=2 trainer.total_training_steps=4 trainer.save_freq=2",
    ]


@pytest.fixture(scope="module")
def unbroken(train_team, overrides, tmp_path_factory):
    return train_team(tmp_path_factory.mktemp("unbroken") / "run", "Rehearsed", *overrides)


@pytest.fixture(scope="module")
def broken(train_team, overrides, tmp_path_factory):
    """The same run, ended between the two policies' saves of step 4."""
    folder = tmp_path_factory.mktemp("broken") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VERL_USE_EXTERNAL_MODULES", "kill_between_saves")
        patch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
        patch.setenv("DIE_BEFORE", "other")
        patch.setenv("DIE_AT", "4")
        return train_team(folder, "Rehearsed", *overrides, exit_code=1)


@pytest.fixture(scope="module")
def colocated(train_team, overrides, tmp_path_factory):
    """The same run in the asynchronous mode, with no task dispatched ahead."""
    return train_team(
        tmp_path_factory.mktemp("colocated") / "run",
        "Rehearsed",
        *overrides,
        "+mas/mode=colocate_async trainer.v1.colocate_async.num_warmup_batches=0",
        "trainer.v1.sampler.max_off_policy_threshold=1 algorithm.rollout_correction.rollout_is=null",
    )


@pytest.fixture(scope="module")
def resumed(train_team, overrides, broken):
    return train_team(broken.folder, "Rehearsed", *overrides, "trainer.val_before_train=true")


def test_each_policy_trains_at_its_own_rate_and_the_run_says_so(unbroken, weights_of):
    for step, metrics in unbroken.steps.items():
        assert metrics["policy/mini/actor/lr"] == pytest.approx(1e-3)
        assert metrics["policy/other/actor/lr"] == pytest.approx(5e-3)
        for policy in POLICIES:
            assert metrics[f"policy/{policy}/rows/real"] == 16
            assert all(metrics[f"policy/{policy}/timing/{part}"] > 0 for part in ("old_log_prob", "update"))
            assert step > 2 or metrics[f"policy/{policy}/training/rollout_actor_probs_pearson_corr"] > 0.999
        assert f"step {step} | rollout" in unbroken.output
    for policy in POLICIES:
        first, last = (weights_of(unbroken.checkpoint(step) / policy) for step in (2, 4))
        assert any(not torch.equal(first[name], last[name]) for name in first)


def test_a_run_killed_between_two_saves_keeps_the_last_complete_checkpoint(broken):
    assert (broken.checkpoint(4) / "mini").is_dir() and not (broken.checkpoint(4) / "other").exists()
    folder = broken.folder / "checkpoints"
    assert latest(folder).step == 2 and [checkpoint.step for checkpoint in whole_checkpoints(folder)] == [2]


def test_a_resumed_run_ends_where_the_unbroken_one_does_bit_for_bit(unbroken, resumed, weights_of):
    assert sorted(resumed.steps) == [1, 2, 3, 4], "those of the checkpoint and later ones, in one file"
    scores, found = ((run.checkpoint(4) / RUNNING_FILE).read_text() for run in (unbroken, resumed))
    assert scores == found != (unbroken.checkpoint(2) / RUNNING_FILE).read_text()
    # The driver's next random numbers are the same, although a start uses some for the iterator and the validation.
    same(*(torch.load(run.checkpoint(4) / RNG_FILE, weights_only=True)["torch"] for run in (unbroken, resumed)))
    assert resumed.steps[4]["agent/writer/group/running_count"] == pytest.approx(16 * (1 + 0.9 + 0.9**2 + 0.9**3))
    for policy in POLICIES:
        same(*(weights_of(run.checkpoint(4) / policy) for run in (unbroken, resumed)))
        for part, select in (("optim", lambda state: state), ("extra_state", lambda state: state["lr_scheduler"])):
            name = f"{part}_world_size_1_rank_0.pt"
            states = (torch.load(run.checkpoint(4) / policy / name, weights_only=False) for run in (unbroken, resumed))
            same(*map(select, states))


def test_the_folder_of_a_run_says_what_it_was_started_with_and_has_the_metrics_by_step(resumed):
    run = open_run(resumed.folder / "checkpoints")
    first, second = attempts(run.about)
    assert "ended" not in first and second["ended"]["by"] == "finished", "the first was killed"
    assert (first["resumed_from"], second["resumed_from"], second["ended"]["step"]) == (None, 2, 4)
    assert "verl.trainer.main_ppo" in second["command"] and "mas.workflow.name=Rehearsed" in second["command"]
    assert second["changed"]["trainer.val_before_train"] == [False, True]
    assert second["versions"]["verl"] == "0.9.1" and second["host"]["cpus"] > 0
    assert run.config.mas.policies.other.pool == "fast"
    steps = run.steps()
    assert [step.number for step in steps] == [1, 2, 3, 4]
    for step in steps:
        logged = {key: value for key, value in resumed.steps[step.number].items() if value is not None}
        assert {key: step.values[key] for key in logged} == pytest.approx(logged, nan_ok=True)
    assert len(read_steps(run.folder / DROPPED)) == 1, "step 3 of the killed run"
    assert resumed.output.count(f"folder of this run: {run.folder}") == 1
    assert re.search(rf"finished \| step 4 \| letters/.*\n  report verl-mas report {run.folder}\n", resumed.output)
    assert "Before FSDP" in (run.folder / worker_log.FILE).read_text() and "Before FSDP" not in resumed.output


@pytest.mark.nightly  # another whole run; tests/trainer/modes has shorter ones of this mode
def test_with_no_task_ahead_the_colocated_mode_is_the_synchronous_one_bit_for_bit(unbroken, colocated, weights_of):
    for policy in (*POLICIES, "past"):
        load = (lambda folder: dict(read(folder))) if policy == "past" else weights_of
        same(*(load(run.checkpoint(4) / policy) for run in (unbroken, colocated)))


def test_a_snapshot_has_the_weights_of_its_step_also_after_a_resume(unbroken, resumed, weights_of):
    ages = [[run.steps[step]["policy/past/snapshot/step"] for step in (3, 4)] for run in (unbroken, resumed)]
    assert ages == [[1, 3], [1, 3]], "step 3 is played against the snapshot that the checkpoint of step 2 has"
    used = {step: dict(read(unbroken.checkpoint(step) / "past")) for step in (2, 4)}
    same(dict(read(resumed.checkpoint(4) / "past")), used[4])
    # `past` has the weights after steps 1 and 3, which differ from each other and from those of steps 2 and 4.
    others = [weights_of(unbroken.checkpoint(step) / "mini") for step in (2, 4)]
    name = next(name for name in used[2] if name.endswith("q_proj.weight"))
    different = [used[2][name], used[4][name], *(other[name] for other in others)]
    assert not any(torch.equal(one, other) for one, other in combinations(different, 2))


def same(left, right):
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            same(left[key], right[key])
    elif isinstance(left, list | tuple):
        for one, other in zip(left, right, strict=True):
            same(one, other)
    elif isinstance(left, torch.Tensor):
        assert torch.equal(getattr(left, "_local_tensor", left), getattr(right, "_local_tensor", right))
    elif hasattr(left, "tolist"):
        assert left.tolist() == right.tolist()
    else:
        assert left == right


def test_each_policy_becomes_a_hugging_face_model_that_generates(unbroken, weights_of, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert cli.main(["export", str(unbroken.checkpoint(4)), "--out", str(tmp_path)]) == 0
    team = read_team(tmp_path)
    assert {agent.policy for agent in team.agents.values()} == {"mini", "other", "past"} and team.step == 4
    for policy in (*POLICIES, "past"):
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / policy)
        model = AutoModelForCausalLM.from_pretrained(tmp_path / policy)
        prompt = tokenizer("a", return_tensors="pt")
        assert model.generate(**prompt, max_new_tokens=4, do_sample=False).shape[1] > prompt["input_ids"].shape[1]
        saved = unbroken.checkpoint(4) / policy
        expected = dict(read(saved)) if policy == "past" else weights_of(saved)
        same({name: model.state_dict()[name] for name in expected}, expected)
