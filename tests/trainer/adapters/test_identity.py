"""Resuming a run with adapters: checkpoints that are accepted and refused."""

import shutil

import pytest
import torch
from safetensors.torch import save_file

from verl_mas.config.run import Run
from verl_mas.run_folder.checkpoints import RUN_FILE, complete, read
from verl_mas.trainer.checkpoint import differences, run_identity

TEAM = {"solver": {"adapter_of": "main"}, "verifier": {"adapter_of": "main"}}
AGENTS = {"solver": {"policy": "solver"}, "verifier": {"policy": "verifier"}}


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 8, "transformers_version": "5.9"}')
    save_file({"w": torch.zeros(4)}, folder / "model.safetensors")
    return folder


@pytest.fixture
def run(make, model, tmp_path):
    """The configuration of a run with two adapters, and its checkpoint."""

    def configured(team=None, path=model, **more):
        return make(
            mas__policies=TEAM if team is None else team,
            mas__agents=AGENTS,
            actor_rollout_ref__model={"path": str(path), "lora_rank": 8, "lora_alpha": 16},
            trainer__default_local_dir=str(tmp_path / "run"),
            **more,
        )

    config = configured()
    folder = tmp_path / "run" / "global_step_2"
    for name in ("main", "solver", "verifier"):
        (folder / name).mkdir(parents=True)
    complete(folder, run_identity(Run.of(config)))
    return configured, read(folder)


@pytest.fixture
def problems(run):
    """Return why a run with other settings cannot resume from the checkpoint."""
    configured, checkpoint = run

    def problems(*team, checkpoint=checkpoint, **more):
        config = configured(*team, **more, trainer__resume_mode="resume_path")
        found = differences(checkpoint, run_identity(Run.of(config)), config)
        return [error.value + error.fix for error in found]

    return problems


def test_a_run_resumes_with_its_own_adapters_also_where_the_base_has_moved(problems, model, tmp_path):
    assert problems() == []
    moved = tmp_path / "elsewhere" / "model"
    shutil.copytree(model, moved)
    (moved / "config.json").write_text('{"transformers_version": "5.10", "hidden_size": 8}')
    # A name on the hub is not compared, because its files are not on this machine.
    assert problems(path=moved) == problems(path="hub/model") == problems(actor_rollout_ref__actor__optim__lr=1.0) == []


def of_solver(**model):
    return {**TEAM, "solver": {**TEAM["solver"], "overrides": {"model": model}}}


@pytest.mark.parametrize(
    ("team", "words"),
    [
        (of_solver(lora_rank=4), "lora_rank=8, lora_alpha=16"),
        (of_solver(lora_alpha=4), "lora_alpha=4"),
        (of_solver(target_modules=["q_proj"]), "['q_proj']"),
        (of_solver(exclude_modules=["k_proj"]), "['k_proj']"),
        ({"solver": {"adapter_of": "main"}}, "verifier with adapter_of=main, lora_rank=8"),
        ({"solver": {"adapter_of": "main"}, "verifier": {}}, "and this run with processes=1, strategy=fsdp"),
    ],
)
def test_another_rank_alpha_target_or_set_of_adapters_is_refused_and_can_start_from_the_weights(problems, team, words):
    (problem,) = problems(team)
    assert words in problem and "lora_adapter_path=" in problem


def test_another_base_is_refused(problems, model):
    other = {**TEAM, "main": {"trainable": False, "overrides": {"model": {"path": "/models/other"}}}}
    (problem,) = problems(other)
    assert "model=model" in problem and "base main of this run is model=other" in problem
    save_file({"w": torch.ones(4)}, model / "model.safetensors")
    (problem,) = problems()
    assert "fingerprint=" in problem, "the same name and sizes, with other weights"


def test_a_checkpoint_with_full_weights_is_not_resumed_with_adapters_nor_the_reverse(run, problems):
    configured, checkpoint = run
    full = {"solver": {}, "verifier": {}}
    assert len(problems(full)) == 2
    (checkpoint.folder / RUN_FILE).unlink()
    complete(checkpoint.folder, run_identity(Run.of(configured(full))))
    assert len(problems(checkpoint=read(checkpoint.folder))) == 2
