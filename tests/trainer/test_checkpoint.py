import random
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from broken import full_disk
from omegaconf import OmegaConf
from ray.exceptions import RayActorError, RayTaskError

from verl_mas.advantage import RunningScores
from verl_mas.advantage.record import Moments, Owner
from verl_mas.config.compose import compose
from verl_mas.config.run import Run
from verl_mas.errors import ConfigError, DiskError
from verl_mas.run_folder.checkpoints import POINTER, Checkpoint, latest, read, whole_checkpoints
from verl_mas.trainer import checkpoint as module
from verl_mas.trainer.checkpoint import RUNNING_FILE, Checkpoints, RunningState, run_identity
from verl_mas.trainer.trainer import TeamTrainer
from verl_mas.workflow.agents import QUEUE


class Policy:
    """Saves and loads like a policy's workers, whose errors arrive as RayTaskError."""

    def __init__(self, name, log):
        self.name, self.log, self.size = name, log, 100

    def save(self, folder, remote, step, keep):
        self.log.append(("save", self.name, step, keep))
        (Path(folder) / self.name).mkdir(parents=True)
        self._remote(lambda: torch.save(torch.zeros(self.size), Path(folder) / self.name / "model.pt"))

    def load(self, folder, delete):
        self.log.append(("load", self.name, delete))
        self._remote(lambda: torch.load(Path(folder) / self.name / "model.pt", weights_only=True))

    def _remote(self, call):
        try:
            call()
        except (OSError, RuntimeError) as error:
            raise RayTaskError("save_checkpoint", "the worker's traceback", error) from error


RUN = {"estimator": "agent_grpo", "models": {"a": "m"}}


@pytest.fixture
def checkpoints(tmp_path):
    trainer = {"default_local_dir": str(tmp_path), "default_hdfs_dir": None, "max_actor_ckpt_to_keep": 2}
    made = Checkpoints({}, OmegaConf.create(trainer), RUN)
    made.log = []
    made.policies = {name: Policy(name, made.log) for name in ("a", "b")}
    return made


@pytest.fixture
def saved(checkpoints):
    return checkpoints, checkpoints.save(3, {"position": 7}), checkpoints.log


def load_from(checkpoints, folder):
    checkpoints.load_checkpoint(str(folder / "actor"))


def steps(folder):
    return [checkpoint.step for checkpoint in whole_checkpoints(folder)]


def test_every_policy_is_saved_under_its_name_and_one_old_checkpoint_more_is_kept(saved, tmp_path):
    checkpoints, folder, log = saved
    assert log == [("save", "a", 3, 3), ("save", "b", 3, 3)]
    assert {path.name for path in folder.iterdir()} == {"a", "b", "data.pt", "driver_rng.pt", "run.json"}
    assert (tmp_path / POINTER).read_text() == "3" and latest(tmp_path).run["models"] == {"a": "m"}
    checkpoints.trainer = OmegaConf.merge(checkpoints.trainer, {"remove_previous_ckpt_in_save": True})
    checkpoints.save(4, {})
    assert log[-1] == ("save", "b", 4, 2)


class Queue:
    def __init__(self, tasks=5):
        self.tasks = tasks

    def save(self, folder):
        folder.mkdir()
        (folder / "state.pkl").write_text(str(self.tasks))
        return self.tasks

    def restore(self, folder):
        self.tasks = int((folder / "state.pkl").read_text())


def test_tasks_in_flight_are_a_part_of_a_checkpoint_and_old_ones_lose_all_parts(checkpoints, tmp_path):
    checkpoints.queue = Queue()
    folders = [checkpoints.save(step, {}) for step in (1, 2, 3, 4)]
    for part in ("a", "b", QUEUE):
        assert [(folder / part).exists() for folder in folders] == [False, True, True, True]
    assert steps(tmp_path) == [2, 3, 4]
    checkpoints.queue.tasks = 0
    load_from(checkpoints, folders[3])
    assert checkpoints.queue.tasks == 5
    (folders[3] / QUEUE / "state.pkl").write_text("cut")
    with pytest.raises(DiskError, match=f"{QUEUE} cannot be read"):
        load_from(checkpoints, folders[3])
    (folders[3] / QUEUE / "state.pkl").unlink()
    assert steps(tmp_path) == [2, 3]


def test_a_run_that_resumes_counts_the_checkpoints_of_its_earlier_starts(checkpoints, tmp_path):
    for step in (1, 2, 3, 9):
        checkpoints.save(step, {})
    checkpoints.save(4, {})
    assert steps(tmp_path) == [3, 4, 9]
    again = replace(checkpoints)
    load_from(again, tmp_path / "global_step_4")
    again.save(5, {})
    assert steps(tmp_path) == [3, 4, 5, 9], "one of a later step is not of this run"
    again.save(6, {})
    assert steps(tmp_path) == [4, 5, 6, 9]


def test_a_kill_while_the_oldest_is_removed_leaves_nothing_that_looks_like_a_checkpoint(
    checkpoints, tmp_path, monkeypatch
):
    for step in (1, 2, 3):
        checkpoints.save(step, {})
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            checkpoints.save(4, {})
    assert steps(tmp_path) == [2, 3, 4] and (tmp_path / "removed_global_step_1" / "a").is_dir()
    checkpoints.save(5, {})
    assert not list(tmp_path.glob("removed_*"))


@pytest.mark.parametrize("tasks", [None, 0, 5])
def test_a_synchronous_run_says_how_many_tasks_in_flight_it_does_not_take(checkpoints, tmp_path, tasks):
    checkpoints.queue = None if tasks is None else Queue(tasks)
    checkpoints.policies = {"main": Policy("main", [])}
    checkpoints.save(1, {})
    checkpoint = latest(tmp_path)

    def said(*settings):
        run = Run.of(compose(["+mas=solver_verifier", *settings]))
        return [problem.value for problem in module.resume_problems(checkpoint, run, checkpoint.run)]

    warning = f"{checkpoint.folder} has 5 tasks in flight, and this run is synchronous"
    assert said() == ([warning] if tasks else []) and said("+mas/mode=colocate_async") == []


def test_loading_restores_every_policy_and_the_drivers_random_numbers(saved):
    checkpoints, folder, log = saved
    expected = [random.random(), float(np.random.rand()), float(torch.rand(()))]
    load_from(checkpoints, folder)
    assert log[2:] == [("load", "a", False), ("load", "b", False)]
    assert [random.random(), float(np.random.rand()), float(torch.rand(()))] == expected
    checkpoints.policies["a"].load = Mock(side_effect=RayActorError)
    with pytest.raises(RayActorError):  # A lost process is not reported as a damaged file.
        load_from(checkpoints, folder)


def test_the_random_state_of_a_checkpoint_executes_nothing(saved):
    checkpoints, folder, _ = saved
    ran = folder / "ran"

    class Payload:
        def __reduce__(self):
            return Path.touch, (ran,)

    torch.save({"python": Payload()}, folder / module.RNG_FILE)
    with pytest.raises(DiskError, match=r"driver_rng\.pt cannot be read: UnpicklingError: Weights only load failed"):
        load_from(checkpoints, folder)
    assert not ran.exists()


@pytest.mark.parametrize(("place", "size", "data"), [("/b", 100_000, 1), ("", 100, 100_000)], ids=["policy", "trainer"])
def test_a_full_disk_names_the_part_its_free_space_and_the_last_checkpoint(place, size, data, saved, tmp_path):
    checkpoints, folder, _ = saved
    checkpoints.policies["b"].size = size
    with full_disk(50_000), pytest.raises(DiskError) as refused:
        checkpoints.save(4, {"state": torch.zeros(data)})
    assert refused.value.value.startswith(f"{tmp_path}/global_step_4{place} cannot be written: ")
    assert "GB are free on the disk at" in refused.value.value and "\n" not in refused.value.value
    assert "run the command again" in refused.value.fix and f"resume_from_path={folder};" in refused.value.fix
    assert latest(tmp_path).step == 3 and steps(tmp_path) == [3]


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_checkpoint_that_cannot_be_read_names_policy_file_and_the_one_before(damage, saved):
    checkpoints, before, _ = saved
    folder = checkpoints.save(4, {})
    model = folder / "b" / "model.pt"
    data = model.read_bytes()
    model.write_bytes(data[: len(data) // 2] if damage == "cut" else b"x" * len(data))
    with pytest.raises(DiskError) as refused:
        load_from(checkpoints, folder)
    assert refused.value.value.startswith(f"{folder}/b cannot be read: model.pt: ")
    assert "there of step 3; resume from one with trainer.resume_mode=resume_path" in refused.value.fix
    assert f"trainer.resume_from_path={before};" in refused.value.fix


def test_the_data_loaders_state_is_part_of_what_is_read(saved):
    checkpoints, folder, _ = saved
    (folder / "data.pt").write_bytes(b"nothing")
    trainer = object.__new__(TeamTrainer)
    trainer.actor_rollout_wg, trainer.resumed = checkpoints, SimpleNamespace(folder=folder, step=3)
    config = {"resume_mode": "auto", "del_local_ckpt_after_load": False, **checkpoints.trainer}
    trainer.config, trainer.use_critic = OmegaConf.create({"trainer": config}), False
    with pytest.raises(DiskError, match=r"global_step_3/data\.pt cannot be read: UnpicklingError"):
        trainer._load_checkpoint()


def test_a_checkpoint_of_another_team_or_another_run_is_refused(saved, tmp_path):
    _, folder, _ = saved
    (error,) = module.other_policies(folder, ["a", "c"])
    assert error.value == f"{folder} has no policy c; it has a, b"
    auto = OmegaConf.create({"trainer": {"resume_mode": "auto", "val_only": False}})
    assert list(module.differences(latest(tmp_path), RUN | {"of a later version": 1}, auto)) == []
    (error,) = module.differences(latest(tmp_path), RUN | {"models": {"a": "n"}}, auto)
    assert "was trained with models={'a': 'm'}, and this run has {'a': 'n'}" in error.value
    assert f"trainer.resume_from_path={folder}" in error.fix


def test_the_identity_of_a_run_names_its_estimator_workflow_policies_and_models():
    config = compose(["+mas=solver_verifier", "algorithm.adv_estimator=agent_grpo", "actor_rollout_ref.model.path=m"])
    names = {"algorithm.adv_estimator": "agent_grpo", "mas.workflow.name": "solver_verifier", "models": {"main": "m"}}
    agents = {"policy of agents": {"solver": "main", "verifier": "main"}, "mas.swap.agents": [], "snapshots": {}}
    loaders = {"data.dataloader_num_workers": 8}
    stored = {"main": {"processes": 8, "strategy": "fsdp", "lora_rank": 0, "optimizer": "AdamW"}}
    weights = {module.STORED: stored, module.BASES: {}}
    assert run_identity(Run.of(config)) == {**names, **agents, **loaders, **weights}


OF = {"algorithm.adv_estimator": "agent_rae", "mas.advantage.weighting": "per_session", "roles": ["solver", "verifier"]}
SCORES = {
    Owner("math", "solver"): Moments(12.345678901234567, 1 / 3, 2e-17),
    Owner("", "verifier"): Moments(1.0, -1e300, 5e-324),
}


def test_running_scores_are_restored_to_the_bit_and_a_run_that_remembers_nothing_resumes_from_them(checkpoints):
    checkpoints.running = RunningState(OF, RunningScores(SCORES))
    folder = checkpoints.save(3, {})
    resumed = replace(checkpoints, running=RunningState(OF))
    load_from(resumed, folder)
    assert resumed.running.scores.scores == SCORES and list(resumed.running.problems(folder)) == []
    load_from(replace(checkpoints, running=None), folder)
    (folder / RUNNING_FILE).write_text("{")
    (error,) = resumed.running.problems(folder)
    assert error.value == f"{folder / RUNNING_FILE} cannot be read"


@pytest.mark.parametrize(
    ("key", "other"),
    [("roles", ["solver"]), ("algorithm.adv_estimator", "agent_grpo"), ("mas.advantage.weighting", "per_act")],
)
def test_scores_of_another_team_estimator_or_weighting_are_refused(key, other, checkpoints):
    checkpoints.running = RunningState({**OF, key: other}, RunningScores(SCORES))
    folder = checkpoints.save(3, {})
    (error,) = RunningState(OF).problems(folder)
    assert error.value == f"{folder / RUNNING_FILE} is of {key}={other}, and this run has {OF[key]}"


def test_a_checkpoint_without_scores_restarts_them_with_a_warning(checkpoints, caplog):
    checkpoints.policies = {"main": Policy("main", [])}
    folder = checkpoints.save(3, {})
    run = Run.of(compose(["+mas=solver_verifier", "algorithm.adv_estimator=agent_rae"]))
    checkpoints.running = module.running_state(run)
    load_from(checkpoints, folder)
    module.check_resume(read(folder), run, {})
    assert f"{folder} has no {RUNNING_FILE}" in caplog.text and not checkpoints.running.scores.scores


GAE = "algorithm.adv_estimator=gae"


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ([GAE, "critic.strategy=fsdp"], [GAE, "critic.strategy=fsdp2"], "critic strategy=fsdp2"),
        ([GAE, "critic.optim.optimizer=AdamW"], [GAE, "critic.optim.optimizer=SGD"], "critic optimizer=SGD"),
        (["algorithm.adv_estimator=agent_grpo"], [GAE], "critic="),
    ],
)
def test_a_critic_resumes_from_a_critic_of_its_strategy_and_optimiser(tmp_path, before, now, words):
    saved, config = (compose(["+mas=solver_verifier", *settings]) for settings in (before, now))
    checkpoint = Checkpoint(tmp_path, 1, run_identity(Run.of(saved)))
    assert list(module.differences(checkpoint, checkpoint.run, saved)) == []
    error, *_ = module.differences(checkpoint, run_identity(Run.of(config)), config)
    assert words in error.value.partition("and this run with")[2]


def test_a_run_with_other_policies_does_not_resume(saved):
    _, folder, _ = saved
    run = Run.of(compose(["+mas=solver_verifier", "mas.policies={main:{},past:{snapshot:{of:main,every:2}}}"]))
    with pytest.raises(ConfigError, match="has no policy main, past; it has a, b"):
        module.check_resume(read(folder), run, {})
