"""verl's stock trainer on the CPU, started as a user does. Its workers are forks."""

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
            tmp_path,
            *SMALL,
            *("trainer.total_training_steps=500", "trainer.save_freq=-1", "trainer.test_freq=-1"),
            alone=True,
        )
    assert ["forked_worker" in parent for parent in killed] == [True], "one engine is killed, which was forked"
    assert trained.exit_code != 0
    assert "transformers_server_main_0" in trained.output


@contextlib.contextmanager
def kill_once(after: str, title: str, killed: list[str]):
    """Kill our descendant with this process title once the file has a line, and note the command of its parent."""
    over = threading.Event()

    def wait_and_kill() -> None:
        while not over.wait(0.2):
            if os.path.exists(after) and os.path.getsize(after):
                for process in psutil.Process().children(recursive=True):
                    with contextlib.suppress(psutil.Error):
                        if any(title in part for part in process.cmdline()):
                            killed.append(" ".join(process.parent().cmdline()))
                            process.kill()
                if killed:
                    return

    watcher = threading.Thread(target=wait_and_kill)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
