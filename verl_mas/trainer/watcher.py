"""Ends a run that has lost a process or that its user interrupts, and prints the cause and how to resume.

Without the watcher, a run waits indefinitely for an agent-loop worker or a TransferQueue that is gone. The watcher is a
thread of the driver, which can end Ray whatever the other processes wait for. It asks Ray which actors of the run are
dead and calls none of them, so it never mistakes a busy actor for a lost one.

Nothing is restarted: rows, weights and requests in flight were in the lost process, and the other processes wait for
them. The user resumes from the last checkpoint, which has all parts of the run as of one step.
"""

from __future__ import annotations

import _thread
import asyncio
import atexit
import json
import os
import re
import shlex
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

import ray
from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from ray._private import worker
from ray.exceptions import RayActorError, RpcError

from verl_mas.config.modes import mode_of
from verl_mas.errors import ConfigError
from verl_mas.run_folder.checkpoints import begun, latest
from verl_mas.run_folder.worker_log import keep_log
from verl_mas.trainer.starting import send_times

if TYPE_CHECKING:
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled
    from ray.core.generated.gcs_pb2 import ActorTableData  # type: ignore[attr-defined]  # generated

    from verl_mas.verl_.types import Actor

# Interval at which the watcher polls.
SECONDS_BETWEEN_LOOKS = 2.0
# Timeout of a request to Ray's GCS.
SECONDS_FOR_AN_ANSWER = 5.0
# Ray's own limit for an unreachable GCS, which may be restarted if it keeps its data in Redis.
SECONDS_WITHOUT_GCS = 60.0
# Time to wait, after a call has failed, until Ray declares an actor dead. Calls to a lost node fail at once, but Ray
# takes some seconds to declare the node dead.
SECONDS_TO_BE_SURE = 20.0

# The watcher's thread simulates this signal, so that the main thread sets the handler of SIGTERM. No process sends it.
SET_SIGTERM = signal.SIGUSR2

NAMESPACE = b"verl-mas"
# Pattern of an actor's name or class in Ray -> its name in messages. `name_actors` names the actors of a policy.
NAMES = {
    r"TaskRunner.*": "task runner",
    r"agent_loop_worker_(\d+)_.*": r"agent-loop worker \1",
    r"reward_loop_worker_(\d+)": r"reward worker \1",
    r"TransferQueueController": "TransferQueue controller",
    r"TransferQueueStorageUnit#(\d+)": r"TransferQueue storage unit \1",
}
# Ray's reasons for an actor's death that count as a loss. With other reasons, the actor was killed through Ray, its
# owner died, or nothing referred to it any more.
LOSSES = ("UNSPECIFIED", "WORKER_DIED", "NODE_DIED")
RAY_PROCESSES = {"gcs_server": "Ray's GCS", "raylet": "Ray's raylet on the node of the driver"}


@dataclass(frozen=True)
class Lost:
    """A process that ended while the run needed it."""

    name: str
    cause: str


class Watcher(Callback):
    """Hydra callback that watches a run. Every `mas/<team>.yaml` names it in `hydra.callbacks`."""

    def __init__(self) -> None:
        self._over = threading.Event()
        # Lock of the thread that ends the process.
        self._ending = threading.Lock()
        self._signal = signal.SIGINT

    def on_run_start(self, config: DictConfig, **kwargs: object) -> None:
        self._config, self._otherwise = config, sys.excepthook
        sys.excepthook = self._excepthook

    def on_job_start(self, config: DictConfig, **kwargs: object) -> None:
        self._config = config
        if mode_of(config):
            signal.signal(SET_SIGTERM, lambda *_: signal.signal(signal.SIGTERM, self.stop))
            threading.Thread(target=self._watch, name="watcher", daemon=True).start()
            send_times()
            # An evaluation has no run folder. Its result is printed by verl.
            if not config.trainer.val_only and not config.ray_kwargs.ray_init.get("log_to_driver"):
                keep_log(Path(config.trainer.default_local_dir))

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: object) -> None:
        """Report a lost process if the job failed before the watcher noticed the loss. Hydra would only print the stack
        of the call that failed."""
        self._over.set()
        with self._ending:
            lost = _lost_behind(job_return) if job_return.status == JobStatus.FAILED else None
            if lost:
                self._end(lost)

    def _excepthook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Handle Ctrl-C and SIGTERM. Without this hook Python would print a stack, and `python -m` would exit with code
        1."""
        if not issubclass(kind, KeyboardInterrupt):
            self._otherwise(kind, error, trace)
            return
        number, how = self._signal, "interrupted" if self._signal == signal.SIGINT else "stopped"
        signal.signal(number, signal.SIG_IGN)
        self._over.set()
        ray.shutdown()
        saved, resume = ending(self._config)
        print(f"\nverl-mas: {how}; saved: {saved}; to resume: {resume}", file=sys.stderr, flush=True)  # noqa: T201
        sys.stdout.flush()
        # A loop in a shell stops only if the command dies of the signal, with exit code 130 or 143.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        os._exit(128 + number)  # reached in the first process of a container, which survives the signal

    def stop(self, *_: object) -> NoReturn:
        """End the run on SIGTERM in the same way as on Ctrl-C. Schedulers send SIGTERM."""
        # Ray's own handler for SIGTERM would raise another exception.
        self._signal = signal.SIGTERM
        raise KeyboardInterrupt

    def _watch(self) -> None:
        while not ray.is_initialized():
            if self._over.wait(SECONDS_BETWEEN_LOOKS):
                return
        # By now Ray has set its own handler, which prints a C++ stack. Only the main thread may replace a handler, so
        # this thread interrupts the main thread.
        _thread.interrupt_main(SET_SIGTERM)
        # Stop watching before Ray's exit handler runs, because it ends Ray's processes, which would then look lost.
        atexit.register(self._over.set)
        answered = time.monotonic()
        while not self._over.wait(SECONDS_BETWEEN_LOOKS):
            try:
                lost = find_lost()
                answered = time.monotonic()
            except RpcError as error:
                gone = time.monotonic() - answered > SECONDS_WITHOUT_GCS
                lost = Lost("Ray's GCS", str(error)) if gone else None
            with self._ending:
                if lost and not self._over.is_set():
                    self._end(lost)

    def _end(self, lost: Lost) -> NoReturn:
        """Print the message and end the process. Later output is silenced, so that neither Ray nor Hydra prints after
        the message."""
        sys.stdout.flush()
        print(message(lost, self._config), file=sys.stderr, flush=True)  # noqa: T201
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        # Kill processes only after the message, since Ray may end this process when it notices that the raylet is gone.
        if worker._global_node:  # noqa: SLF001
            # Kill the processes that the driver started. In an existing cluster, Ray ends the actors of a driver that
            # is gone.
            worker._global_node.kill_all_processes(check_alive=False, allow_graceful=True)  # noqa: SLF001
        os._exit(1)


def name_actors(names: Mapping[str, list[Actor]]) -> None:
    """Store readable names of actors for the watcher; called in the task runner. `{}` in a name becomes the actor's
    index."""
    by_id = {actor._actor_id.hex(): name.format(i) for name, actors in names.items() for i, actor in enumerate(actors)}  # noqa: SLF001
    _gcs().internal_kv_put(_key(), json.dumps(by_id).encode(), True, NAMESPACE)


def find_lost() -> Lost | None:
    """Return the process of the run that was lost first, if any."""
    node = worker._global_node  # noqa: SLF001
    ended: Sequence[tuple[str, Popen[bytes]]] = node.dead_processes() if node else ()
    for kind, process in ended:
        if kind in RAY_PROCESSES:
            return Lost(f"{RAY_PROCESSES[kind]} (pid {process.pid})", f"it ended with {process.returncode}")
    dead = [actor for actor in asyncio.run(_dead_actors()) if _was_lost(actor)]
    if not dead:
        return None
    first = min(dead, key=lambda actor: actor.end_time)
    return Lost(f"{_name(first)} (pid {first.pid} on {first.address.ip_address})", _cause(first))


async def _dead_actors() -> list[ActorTableData]:
    job = worker.global_worker.current_job_id
    return list((await _gcs().async_get_all_actor_info(None, job, "DEAD", SECONDS_FOR_AN_ANSWER)).values())


def _was_lost(actor: ActorTableData) -> bool:
    """Whether an actor was lost: it ended neither on purpose nor because another actor ended."""
    cause = actor.death_cause
    if cause.WhichOneof("context") != "actor_died_error_context":
        return True
    died = cause.actor_died_error_context
    return died.Reason.Name(died.reason) in LOSSES and "INTENDED" not in died.error_message


def _name(actor: ActorTableData) -> str:
    given = _gcs().internal_kv_get(_key(), NAMESPACE, SECONDS_FOR_AN_ANSWER)
    return json.loads(given or "{}").get(actor.actor_id.hex()) or called(actor.name or actor.class_name)


def called(name: str) -> str:
    """Convert Ray's name of an actor to its name in messages."""
    return next((re.sub(pattern, text, name) for pattern, text in NAMES.items() if re.fullmatch(pattern, name)), name)


def _key() -> bytes:
    return f"actors of job {worker.global_worker.current_job_id.hex()}".encode()


def _gcs() -> GcsClient:
    return worker.global_worker.gcs_client  # type: ignore[attr-defined]  # set by Ray when the process connects


def _cause(actor: ActorTableData) -> str:
    context = actor.death_cause.WhichOneof("context")
    if context is None:
        return "Ray does not know it"
    died = getattr(actor.death_cause, context)
    text: str = died.formatted_exception_string if context == "creation_task_failure_context" else died.error_message
    # Cut Ray's list of possible causes.
    return text.partition(" Some common causes include")[0].strip()


def _lost_behind(job: JobReturn) -> Lost | None:
    """Find the lost process that caused the exception with which a run ended."""
    until = time.monotonic() + (SECONDS_TO_BE_SURE if isinstance(job._return_value, RayActorError) else 0)  # noqa: SLF001
    lost = find_lost() if ray.is_initialized() else None
    while lost is None and time.monotonic() < until:
        time.sleep(SECONDS_BETWEEN_LOOKS)
        lost = find_lost()
    return lost


def ending(config: DictConfig) -> tuple[str, str]:
    """Return a description of the last checkpoint of a run that has ended, and of the command that resumes the run."""
    folder = Path(config.trainer.default_local_dir).absolute()
    try:
        last = latest(folder)
        saved = f"step {last.step}, in {last.folder}" if last else f"nothing yet, in {folder}"
        # A save may still end after this message, since the remaining processes live on for a moment.
        if newer := [step for step in begun(folder) if not last or step > last.step]:
            saved += f"; the save of step {newer[-1]} had not ended"
    except (OSError, ConfigError) as error:
        saved = f"unknown: {error}"
    command = list(sys.orig_argv)
    if config.trainer.resume_mode != "auto":
        command.append("trainer.resume_mode=auto")
    return saved, f"run the same command again: {shlex.join(command)}"


def message(lost: Lost, config: DictConfig) -> str:
    saved, resume = ending(config)
    if lost.name.startswith(tuple(RAY_PROCESSES.values())):
        # The run's actors notice this loss later than the driver.
        saved += ", or a later step: the task runner continues for a moment"
    return f"verl-mas: lost: {lost.name}\n  cause:  {lost.cause}\n  saved:  {saved}\n  resume: {resume}"
