"""The loggers of a run: those of `trainer.logger`, and `metrics.jsonl` in its folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, cast

from verl.trainer.ppo.v1 import trainer_base
from verl.utils.tracking import FileLogger, Tracking

from verl_mas.run_folder import metrics
from verl_mas.run_folder.metrics import MetricsFile

TRACKING = "Tracking"  # the class of verl that its trainer makes its loggers with


class Logger(Protocol):
    """As verl calls its loggers."""

    def log(self, data: Mapping[str, object], step: int) -> None: ...


class KeptFile(FileLogger):
    """verl's logger overwrites its file at every start. This one keeps the lines of the steps up to `until`."""

    def __init__(self, project_name: str, experiment_name: str, until: float):
        path = metrics.file_of_verl(project_name, experiment_name)
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        kept, _ = metrics.split(text, until)
        super().__init__(project_name, experiment_name)
        self.fp.write("".join(f"{line}\n" for line in kept).encode())


@contextmanager
def logging_to(own: MetricsFile | None, until: float | None) -> Iterator[None]:
    """The loggers that verl's trainer makes inside. `until`: the step up to which verl's file keeps its lines; None
    in a run that starts at the beginning, where it is overwritten."""

    def made(
        project_name: str, experiment_name: str, default_backend: str | list[str], config: Mapping[str, object]
    ) -> Tracking:
        names = [default_backend] if isinstance(default_backend, str) else list(default_backend)
        theirs = [name for name in names if until is None or name != metrics.LOGGER]
        tracking = Tracking(project_name, experiment_name, theirs, config)
        loggers = cast(dict[str, Logger], tracking.logger)
        if until is not None and metrics.LOGGER in names:
            loggers[metrics.LOGGER] = KeptFile(project_name, experiment_name, until)
        if own is not None:
            # First, so that it has a step that another logger fails at.
            others = dict(loggers)
            loggers.clear()
            loggers.update({metrics.FILE: own, **others})
        return tracking

    verls = getattr(trainer_base, TRACKING)
    setattr(trainer_base, TRACKING, made)
    try:
        yield
    finally:
        setattr(trainer_base, TRACKING, verls)
