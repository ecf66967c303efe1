"""Starts policies and workers in parallel, and writes every part of a start into the timeline.

The imports of training processes, agent-loop workers and reward workers take long and need no GPU memory, so all these
processes start at once. Loading a model and starting engines need GPU memory, so the policies of a pool take turns for
both. There are two reasons: an engine needs more memory while it starts than afterwards, and vLLM fails if another
process frees memory while vLLM measures the free memory. Different pools start in parallel. Engines that do not measure
free memory start in parallel, too (`engines.serving.start_together`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import as_completed
from threading import Event, Thread
from typing import TYPE_CHECKING

import psutil
import ray
from ray._private.worker import _post_init_hooks
from ray.exceptions import RayError
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put

from verl_mas.config.placement import local_policies, policies_on, used_pools
from verl_mas.config.run import Run
from verl_mas.engines.serving import start_together
from verl_mas.trainer.timeline import Timeline
from verl_mas.util.threads import begun
from verl_mas.workflow import clock

if TYPE_CHECKING:
    from verl_mas.verl_.types import Actor

# A child of verl's logger. In the trainer's process, verl's logger has the handler.
logger = logging.getLogger(f"verl.{__name__}")
NAMESPACE = "verl-mas"


class Turn:
    """The start of one policy. `before`: pool -> events that are set when the earlier starts on the pool are over."""

    def __init__(self, name: str, timeline: Timeline, before: Mapping[str, Sequence[Event]]):
        self.name, self.over = name, Event()
        self._timeline, self._before, self._since = timeline, before, clock.now()

    def take(self, start: Callable[[Turn], None]) -> None:
        """Start the policy. If this fails, the policies after it wait until the run ends."""
        start(self)
        self.over.set()

    def wait(self, pool: str) -> None:
        """Return once the earlier policies of the pool have taken their memory."""
        for earlier in self._before.get(pool, ()):
            earlier.wait()
        self._since = clock.now()

    def ended(self, part: str) -> None:
        """Write the span of a part of the start. A part begins when the previous one ends."""
        self._timeline.add(part, self._since, now := clock.now(), self.name)
        self._since = now


def turns(run: Run, timeline: Timeline) -> dict[str, Turn]:
    """Make the turn of every policy. A policy waits for policies on the same pool that are configured before it."""
    in_turn = {pool: policies_on(run.mas, pool) for pool in used_pools(run.mas) if not start_together(run, pool)}
    made: dict[str, Turn] = {}
    for name in local_policies(run.mas):
        before = {
            pool: [made[one].over for one in made if one in names] for pool, names in in_turn.items() if name in names
        }
        made[name] = Turn(name, timeline, before)
    return made


def side_by_side(work: Mapping[str, Callable[[], None]]) -> None:
    """Run all work in parallel. The first error is raised at once and ends the run, so other work goes on."""
    started = {begun(one, f"start {name}"): name for name, one in work.items()}
    for ended in as_completed(started):
        if error := ended.exception():
            logger.error("the start of %s has failed", started[ended])
            raise error


def note_when_ready(actors: Sequence[Actor], event: str, timeline: Timeline) -> None:
    """Write a span from now until all actors have started. The watcher ends the run if an actor cannot start."""
    begin = clock.now()

    def wait() -> None:
        try:
            ray.get([actor.__ray_ready__.remote() for actor in actors])
        except RayError as error:
            logger.error("%s: %s", event, error)
        else:
            timeline.add(event, begin, clock.now())

    Thread(target=wait, name=event, daemon=True).start()


def send_times() -> None:
    """Send the times of the command to the task runner, whose timeline begins with the command. The driver calls this
    when all checks have passed."""
    times = [psutil.Process().create_time(), clock.now()]
    _post_init_hooks.append(lambda: _internal_kv_put(_key(), json.dumps([*times, clock.now()]), namespace=NAMESPACE))


def sent_times() -> list[float]:
    """Return the times when the command began, its checks ended and Ray had started; empty without `send_times`."""
    times: list[float] = json.loads(_internal_kv_get(_key(), namespace=NAMESPACE) or "[]")
    return times


def _key() -> str:
    return f"start of job {ray.get_runtime_context().get_job_id()}"
