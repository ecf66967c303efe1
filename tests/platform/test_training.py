"""verl's stock trainer on the CPU, started as a user starts it."""

import contextlib
import os
import threading

import psutil
import pytest
import torch

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

SMALL = ("data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.rollout.n=2")
# verl then names requests alike in every run and the engine draws by name: two runs sample the same tokens.
REPEATABLE = "actor_rollout_ref.rollout.full_determinism=true"
# verl orders rows by random names, and a sum in another order rounds otherwise.
ROUNDING = 1e-6


def weights(trained, step: int) -> dict[str, torch.Tensor]:
    (file,) = (trained.checkpoint(step) / "actor").glob("model_world_size_1_rank_0.pt")
    return {name: _whole(tensor) for name, tensor in torch.load(file, weights_only=False).items()}


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


@pytest.fixture(scope="module")
def unbroken(main_ppo, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    steps = ("trainer.total_training_steps=4", "trainer.save_freq=2", "trainer.test_freq=4")
    trained = main_ppo(folder, *SMALL, REPEATABLE, *steps, alone=True)
    assert trained.exit_code == 0, trained.output[-4000:]
    return trained


def test_stock_grpo_trains_and_both_log_probs_agree(unbroken):
    assert sorted(unbroken.steps) == [1, 2, 3, 4]
    for values in unbroken.steps.values():
        assert values["rollout_corr/log_ppl_abs_diff"] < 1e-5
        assert values["training/rollout_actor_probs_pearson_corr"] > 0.9999
    before, after = weights(unbroken, 2), weights(unbroken, 4)
    assert any(not torch.equal(before[name], after[name]) for name in before)


@pytest.mark.nightly  # it is verl's own; that of a team is in tests/trainer/test_resume.py
def test_a_resumed_run_ends_with_the_weights_of_an_unbroken_one(unbroken, main_ppo, tmp_path):
    resumed = main_ppo(
        tmp_path,
        *SMALL,
        REPEATABLE,
        "trainer.total_training_steps=4",
        "trainer.save_freq=2",
        "trainer.test_freq=-1",
        "trainer.resume_mode=resume_path",
        f"trainer.resume_from_path={unbroken.checkpoint(2)}",
    )
    assert resumed.exit_code == 0, resumed.output[-4000:]
    assert sorted(resumed.steps) == [3, 4]
    expected, found = weights(unbroken, 4), weights(resumed, 4)
    assert expected.keys() == found.keys()
    assert max((expected[name] - found[name]).abs().max() for name in expected) < ROUNDING
    moved = weights(unbroken, 2)
    assert max((expected[name] - moved[name]).abs().max() for name in expected) > 100 * ROUNDING


def test_a_run_whose_engine_dies_stops_and_names_it(main_ppo, tmp_path):
    killed = []
    with kill_once(f"{tmp_path}/metrics.jsonl", "ray::TransformersServer", killed):
        trained = main_ppo(
            tmp_path, *SMALL, "trainer.total_training_steps=500", "trainer.save_freq=-1", "trainer.test_freq=-1"
        )
    assert killed, "the engine was never there to be killed"
    assert trained.exit_code != 0
    assert "transformers_server_main_0" in trained.output


@contextlib.contextmanager
def kill_once(after: str, title: str, killed: list[int]):
    """Kill our descendant with this process title once the file has a line."""
    over = threading.Event()

    def wait_and_kill() -> None:
        while not over.wait(0.2):
            if os.path.exists(after) and os.path.getsize(after):
                for process in psutil.Process().children(recursive=True):
                    with contextlib.suppress(psutil.Error):
                        if any(title in part for part in process.cmdline()):
                            process.kill()
                            killed.append(process.pid)
                if killed:
                    return

    watcher = threading.Thread(target=wait_and_kill)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
