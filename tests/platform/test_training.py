"""verl's stock trainer on the CPU. tests/trainer/test_identity.py starts it as a user does."""

import contextlib
import os
import threading

import psutil
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

SMALL = ("data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.rollout.n=2")


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
