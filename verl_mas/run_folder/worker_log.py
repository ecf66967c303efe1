"""Output of a run's processes. A file in the run's folder gets every line; the console shows a selection.

The console shows the lines that the trainer logs, the lines that workflows and scorers print, each warning once, and
all errors.
"""

import re
import sys
from pathlib import Path
from typing import TypedDict

import ray
from ray._private.ray_logging import global_worker_stdstream_dispatcher as dispatcher
from ray._private.worker import _post_init_hooks, print_to_stdstream

from verl_mas.run_folder.secrets import clean

FILE = "workers.log"
PRINTER = "ray_print_logs"  # name of Ray's handler that prints lines of workers on the driver
TRAINER, BEGINS = "TaskRunner", "folder of this run"
OF_USER = re.compile(r"AgentLoopWorker|RewardLoopWorker")  # the processes that run workflows and scorers
ERROR = re.compile(
    r"\b(ERROR|CRITICAL|FATAL)\b|^[\w.]*(Error|Exception|Exit|Interrupt)\b|^(Traceback|During handling|The above exc)"
)
LOGGED = re.compile(r"([A-Z]+):\d{4}-\d\d-\d\d ([\d:]{8}),\d+:")  # start of a line of verl's log
STEP = re.compile(LOGGED.pattern + r"step \d")
WARNING = re.compile(r"\b(WARNING|WARN)\b|Warning:|\b[WEF]\d{4} ")
# Lines that verl, Ray and torch print in every run.
NOISE = re.compile(
    r"\d+%\||Generating .* split|engine is not available|Disabled critic|Platform override|blocking ray\.get|set_vital"
    r"|is_fx_tracing|NUMA affinity|(create )?worker group( kwargs:| dict)|^Using dataset class|^dataset len"
)


class Batch(TypedDict):
    """Lines of one process, as Ray sends them."""

    lines: list[str]
    pid: int | str  # a name, such as `raylet`, for Ray's own processes
    ip: str
    is_err: bool
    actor_name: str | None


class WorkerLog:
    """Handles Ray's batches of lines."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / FILE).open("a", encoding="utf-8", errors="replace", buffering=1)
        self._begun = False
        self._known: set[str] = set()
        # (pid, is_err) -> whether the last line was printed. An indented line on stderr is printed only if the
        # unindented line before it was printed.
        self._last: dict[tuple[int | str, bool], bool] = {}

    def __call__(self, batch: Batch) -> None:
        name, pid, lines = batch["actor_name"] or "", batch["pid"], batch["lines"]
        by_trainer, is_err = TRAINER in name, batch["is_err"]
        if not str(pid).isdecimal():
            print_to_stdstream(batch, ignore_prefix=False)
            return
        self._begun |= by_trainer and any(BEGINS in line for line in lines)
        if by_trainer and not is_err and not self._begun:
            return  # skip the configuration, because it contains secrets; run.yaml has it without secrets
        self._file.write(clean("".join(f"({name} pid={pid}, ip={batch['ip']}) {line}\n" for line in lines)))
        if by_trainer and not is_err:
            return  # the trainer's stdout has numbers that are also in metrics.jsonl, so the console does not show them
        source = "" if by_trainer else f"({name} pid={pid}) "
        wanted = [LOGGED.sub(_short, line) for line in lines if self._is_wanted(line, name, pid, is_err)]
        (sys.stderr if is_err else sys.stdout).write("".join(f"{source}{line}\n" for line in wanted))

    def _is_wanted(self, line: str, name: str, pid: int | str, is_err: bool) -> bool:
        if not is_err or (line and line[0] not in " \t"):
            self._last[pid, is_err] = self._is_news(line, name)
        return self._last.get((pid, is_err), False)

    def _is_news(self, line: str, name: str) -> bool:
        if ERROR.search(line) or STEP.match(line):
            return True
        ours = TRAINER in name or OF_USER.search(name) is not None
        if NOISE.search(line) or not (WARNING.search(line) or ours):
            return False
        if not (WARNING.search(line) or LOGGED.match(line)):
            return True  # printed by user code
        text = re.sub(r"\d+", "", line)
        new = text not in self._known
        self._known.add(text)
        return new


def _short(logged: re.Match[str]) -> str:
    level, time = logged.groups()
    return f"{time} " if level == "INFO" else f"{time} {level}: "


def keep_log(folder: Path) -> None:
    """Install the handler when Ray starts, unless Ray prints no lines (`log_to_driver=false`)."""

    def keep() -> None:
        if PRINTER in dict(dispatcher.handlers):
            dispatcher.remove_handler(PRINTER)
            dispatcher.add_handler(PRINTER, WorkerLog(folder))

    _post_init_hooks.append(keep)
    if ray.is_initialized():
        keep()
