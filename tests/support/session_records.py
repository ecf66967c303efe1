"""Session records of scripted sessions, in a folder."""

from pathlib import Path
from typing import Any

import verl_mas
from verl_mas.config.schema import TrajectorySpec
from verl_mas.rollout.trajectories import TrajectoryWriter
from verl_mas.workflow.session import SessionResult


class Recorder:
    """A writer of session records: `record(step, attempt, session)` writes a session whose text names the attempt."""

    def __init__(self, folder: Path, **spec: Any):
        self.folder, self.spec = folder, TrajectorySpec(**spec)
        self.writers: dict[str, TrajectoryWriter] = {}

    def __call__(
        self,
        step: int,
        attempt: str = "a",
        session: int = 0,
        text: str = "",
        reward: float | None = None,
        validate: bool = False,
        number: int = 0,
    ) -> None:
        task = verl_mas.Task(
            [{"role": "user", "content": "long question"}],
            extra_info={"index": number},
            uid=f"{step}-{number}",
            session=session,
            step=step,
            validate=validate,
        )
        played = verl_mas.run("single", task, verl_mas.ScriptedLLM(text or f"text of {attempt}"))
        if reward is not None:
            played.outcome = verl_mas.Outcome(text, reward=reward)
        self.writer(attempt).write(SessionResult(played), "finished")

    def writer(self, attempt: str = "a") -> TrajectoryWriter:
        if attempt not in self.writers:
            self.writers[attempt] = TrajectoryWriter(self.spec, self.folder, attempt)
        return self.writers[attempt]

    def compress(self) -> None:
        for writer in self.writers.values():
            writer.compress()
