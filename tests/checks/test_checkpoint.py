import json
import shutil

from omegaconf import open_dict

from verl_mas.checks.examined import ExaminedRun
from verl_mas.checks.run_folder import check_checkpoint
from verl_mas.config.compose import compose
from verl_mas.run_folder import about, lock
from verl_mas.run_folder.checkpoints import POINTER, complete
from verl_mas.run_folder.lock import RunLock
from verl_mas.trainer.checkpoint import run_identity


def test_another_runs_checkpoint_is_refused_before_ray_unless_nothing_is_trained(tmp_path, monkeypatch):
    base = ["+mas=solver_verifier", "algorithm.adv_estimator=agent_grpo", f"trainer.default_local_dir={tmp_path}"]

    def composed(*more: str):
        return ExaminedRun.of(compose([*base, f"actor_rollout_ref.model.path={tmp_path}/m", *more]))

    def errors(*more: str):
        return list(check_checkpoint(composed(*more)))

    assert errors() == []
    folder = tmp_path / "global_step_3"
    folder.mkdir()
    complete(folder, run_identity(composed()))
    tuned = (
        "data.train_batch_size=8",
        "++mas.workflow.args.max_rounds=3",
        f"actor_rollout_ref.model.path={tmp_path}/moved/m",
    )
    assert errors(*tuned) == []
    assert "the run has ended" in errors("trainer.total_training_steps=3")[0].reason
    other = "algorithm.adv_estimator=team_grpo"
    by_path = (f"trainer.resume_from_path={folder}", "trainer.resume_mode=resume_path")
    for same in (["trainer.val_only=true"], ["trainer.resume_mode=disable"], by_path):
        assert errors(other, *same) == []
    (error,) = errors(other)
    assert "adv_estimator=agent_grpo, and this run has team_grpo" in error.value
    # Weights that cannot be loaded are refused in any case.
    for changed in (
        "trainer.n_gpus_per_node=2",
        "actor_rollout_ref.actor.strategy=fsdp2",
        "actor_rollout_ref.model.lora_rank=8",
    ):
        for mode in ([], ["trainer.val_only=true"], by_path):
            (error,) = errors(changed, *mode)
            assert "main with processes=8" in error.value and "same strategy" in error.rule
    running = RunLock(tmp_path)
    monkeypatch.setattr(lock, "WAIT_S", 0)
    (error,) = errors()
    running.close()
    assert "is in use by pid" in error.value
    (tmp_path / POINTER).write_text("4")
    (error,) = errors()
    assert "names step 4, but" in error.value and "global_step_4 is not there" in error.value


def test_a_resumed_run_is_compared_with_its_last_start_without_the_settings_of_hydra(tmp_path):
    """The check runs in a callback of Hydra, whose configuration also has Hydra's own settings. Some of these settings
    have no value."""
    settings = [f"trainer.default_local_dir={tmp_path}", "data.seed=2", "data.train_files=a.parquet"]
    config = compose(["+mas=solver_verifier", *settings])
    with open_dict(config):
        config.hydra = {"sweep": {"subdir": "${hydra.job.num}"}, "job": {"num": "???"}}
    (tmp_path / about.FILE).write_text("{format: 1, config: {data: {seed: 1, shuffle: true, train_files: a.parquet}}}")
    folder = tmp_path / "global_step_3"
    folder.mkdir()
    run = ExaminedRun.of(config)
    complete(folder, run_identity(run))
    (warning,) = check_checkpoint(run)
    assert warning.value == "data.seed=2, and 1 before"


def test_other_tokens_are_refused_and_other_data_is_said(make, letters, tmp_path):
    model = shutil.copytree(letters / "model", tmp_path / "model")

    def said(**more):
        run = ExaminedRun.of(make(**{"actor_rollout_ref__model__path": str(model), **places, **more}))
        return [problem.value for problem in check_checkpoint(run)]

    places = {"trainer__default_local_dir": str(tmp_path / "run")}
    folder = tmp_path / "run" / "global_step_3"
    (folder / "main").mkdir(parents=True)
    run = ExaminedRun.of(make(actor_rollout_ref__model__path=str(model), **places))
    complete(folder, run_identity(run))
    (tmp_path / "run" / about.FILE).write_text("{format: 1, config: {data: {shuffle: true, train_files: a.parquet}}}")
    assert said(data__train_files="b.parquet") == ["data.train_files=b.parquet, and a.parquet before"]
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    (model / "tokenizer.json").write_text(json.dumps({**tokenizer, "version": "2.0"}, indent=1))
    assert said(data__train_files="a.parquet") == []
    tokenizer["model"]["vocab"]["new"] = 6_000
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    (refused,) = said(data__train_files="a.parquet")
    assert "has policy main with " in refused and refused.count("vocabulary=") == 2
