"""A trained team in Python: `verl_mas.load(DIR)`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from verl_mas.config.values import load_dataclass
from verl_mas.gateway.streaming import Listener
from verl_mas.results.serve.endpoints import Endpoint, EngineSettings
from verl_mas.util.loop_thread import LoopThread
from verl_mas.workflow.run import CONCURRENCY, Question, finished, many, refuse_in_loop
from verl_mas.workflow.session import Session, SessionResult
from verl_mas.workflow.task import Task

if TYPE_CHECKING:
    from verl_mas.results.serve.runtime import Runtime


def load(
    folder: str | Path,
    *,
    engine: Mapping[str, object] | None = None,
    endpoints: Mapping[str, Endpoint] | None = None,
    sampling: Mapping[str, object] | str = "",
    trust_remote_code: bool = False,
) -> TrainedTeam:
    """Load the team in a folder that `verl-mas export` wrote.

    Its policies run in this process, unless `endpoints` has the URL of an OpenAI-compatible server for them. `engine`:
    settings of the engine of this process, such as `{"threads": 2}`. By default, agents sample as in validation.
    `sampling`: `training` to sample as in training, or settings that override the settings of every agent.
    `trust_remote_code`: run the code that the folder and its models name.
    """
    # Runtime is imported here because it loads torch and verl.
    from verl_mas.results.serve.runtime import Runtime

    settings = load_dataclass(EngineSettings, engine, "engine")
    return TrainedTeam(Runtime(Path(folder), settings, endpoints, sampling=sampling, trust=trust_remote_code))


class TrainedTeam:
    """A team that `verl_mas.load` returned. It acts as in validation, and is a context manager that frees its engines.

    It runs in a thread of its own, so it can be used from blocking code and from any event loop.
    """

    def __init__(self, runtime: Runtime):
        self.runtime = runtime
        self._loop = LoopThread("trained team")

    @property
    def folder(self) -> Path:
        return self.runtime.folder

    @property
    def agents(self) -> tuple[str, ...]:
        return tuple(self.runtime.agents)

    def run(self, task: Question, *, listener: Listener | None = None) -> Session:
        """Run a session and return it. Raises SessionFault if its last attempt failed."""
        refuse_in_loop("team.run", "await team.arun(...)")
        return finished(self._loop.result(self._session(task, listener)))

    async def arun(self, task: Question, *, listener: Listener | None = None) -> Session:
        """Same as `run`, for async code. Cancelling it cancels the session."""
        return finished(await self._loop.aresult(self._session(task, listener)))

    def run_many(
        self, tasks: Iterable[Question], concurrency: int = CONCURRENCY, *, ordered: bool = True
    ) -> Iterator[SessionResult]:
        """Yield the results of sessions, one per task. A task is read only when its session can start. The result of a
        failed session is also yielded."""
        return self._loop.iterate(many(tasks, self._session, concurrency, ordered=ordered))

    def arun_many(
        self, tasks: Iterable[Question], concurrency: int = CONCURRENCY, *, ordered: bool = True
    ) -> AsyncIterator[SessionResult]:
        """Same as `run_many`, for async code."""
        return self._loop.aiterate(many(tasks, self._session, concurrency, ordered=ordered))

    def close(self) -> None:
        """End running sessions, and free the engines."""
        if self._loop.running:
            self._loop.result(self.runtime.aclose())
            self._loop.close()

    def __enter__(self) -> TrainedTeam:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    async def __aenter__(self) -> TrainedTeam:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await asyncio.to_thread(self.close)

    def __repr__(self) -> str:
        file = self.runtime.file
        return f"<TrainedTeam {self.runtime.name}: {file.workflow.name} of {', '.join(self.agents)}>"

    async def _session(self, task: Question, listener: Listener | None = None) -> SessionResult:
        return (await self.runtime.session(Task.of(task), listener=listener)).result
