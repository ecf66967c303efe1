import json
import shutil

import pytest
from omegaconf import OmegaConf

from verl_mas.errors import ConfigError
from verl_mas.run_folder import checkpoints
from verl_mas.run_folder.checkpoints import POINTER, RUN_FILE, latest, to_resume


@pytest.fixture
def save(tmp_path):
    def save(step, finish=True):
        folder = checkpoints.folder_of_step(tmp_path, step)
        (folder / "main").mkdir(parents=True)
        (folder / "main" / "model.pt").write_bytes(f"weigh{step:02}".encode())
        (folder / "data.pt").write_bytes(b"data")
        if finish:
            checkpoints.complete(folder, {"models": {"main": "m"}})
        return folder

    return save


def steps(folder):
    return [checkpoint.step for checkpoint in checkpoints.whole_checkpoints(folder)]


def test_the_pointer_names_the_last_complete_checkpoint(save, tmp_path):
    assert latest(tmp_path) is None and latest(tmp_path / "none") is None
    for step in (2, 10, 4):
        save(step)
    save(12, finish=False)
    assert steps(tmp_path) == [2, 4, 10]
    found = latest(tmp_path)
    assert (found.step, found.folder, found.run["models"]) == (4, tmp_path / "global_step_4", {"main": "m"})
    assert not list(tmp_path.rglob("*.new"))


def cut(path):
    path.write_bytes(path.read_bytes()[:-2])


def mix(folder):
    """Restore a part of another checkpoint, whose files have the same sizes."""
    shutil.copytree(folder.parent / "global_step_2" / "main", folder / "main", dirs_exist_ok=True)


DAMAGE = {
    "no model": (lambda folder: (folder / "main" / "model.pt").unlink(), "main/model.pt is missing"),
    "cut model": (lambda folder: cut(folder / "main" / "model.pt"), "main/model.pt has 5 bytes"),
    "model of another step": (mix, "main/model.pt has 7 bytes and the hash"),
    "no data": (lambda folder: (folder / "data.pt").unlink(), "data.pt is missing"),
    "no run.json": (lambda folder: (folder / RUN_FILE).unlink(), "it has no run.json"),
    "cut run.json": (lambda folder: cut(folder / RUN_FILE), "run.json cannot be read as JSON"),
    "folder run.json": (lambda folder: ((folder / RUN_FILE).unlink(), (folder / RUN_FILE).mkdir()), "Is a directory"),
    "list in run.json": (lambda folder: (folder / RUN_FILE).write_text("[]"), "holds no JSON object"),
    "a name without end": (
        lambda folder: (folder / RUN_FILE).write_text(json.dumps({"files": {"x" * 5000: 1}})),
        f"not complete: {'x' * 200} is missing",
    ),
    "no files in run.json": (lambda folder: (folder / RUN_FILE).write_text("{}"), "its run.json lists no files"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_checkpoint_is_not_resumed_from_and_the_one_before_is_named(kind, save, tmp_path):
    damage, reason = DAMAGE[kind]
    before, folder = save(2), save(4)
    damage(folder)
    with pytest.raises(ConfigError) as refused:
        latest(tmp_path)
    assert reason in refused.value.value and "names step 4" in refused.value.value
    assert f"trainer.resume_mode=resume_path trainer.resume_from_path={before}" in refused.value.fix
    assert steps(tmp_path) == [2]


def test_a_pointer_of_endless_digits_is_refused_in_few_words(save, tmp_path):
    save(2)
    (tmp_path / POINTER).write_text("1" * 5000)
    with pytest.raises(ConfigError, match=r"holds '1{40}', which is no step"):
        latest(tmp_path)


def test_without_a_complete_checkpoint_the_fix_is_to_start_again(save, tmp_path):
    save(2, finish=False)
    assert latest(tmp_path) is None
    (tmp_path / POINTER).write_text("2")
    with pytest.raises(ConfigError, match=r"no complete checkpoint; trainer\.resume_mode=disable starts from step 0"):
        latest(tmp_path)


def test_the_configuration_says_where_a_run_resumes_from(save, tmp_path):
    first, last, _ = save(2), save(4), save(6, finish=False)

    def resumed(mode, path=None):
        trainer = {"default_local_dir": str(tmp_path), "resume_mode": mode, "resume_from_path": path}
        return to_resume(OmegaConf.create({"trainer": trainer}))

    assert resumed("disable") is None
    assert resumed("auto").folder == last
    assert resumed("resume_path", f"{first}/").folder == first
