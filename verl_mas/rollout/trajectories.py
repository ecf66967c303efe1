"""Sessions on disk: JSON lines, one file per step and worker. Advantages are in a file of their own.

<dir>/<train|val>/<step>-<worker>.jsonl            one session per line, `schema` 1
<dir>/<train|val>/<step>-advantages.jsonl          {key: advantage}, from the trainer
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

from verl_mas.config.schema import TrajectorySpec
from verl_mas.errors import DataError
from verl_mas.workflow.client import Message
from verl_mas.workflow.reply import Reply
from verl_mas.workflow.rewards import Row
from verl_mas.workflow.session import Session, SessionResult

SCHEMA = 1
# A session as plain data.
Record: TypeAlias = dict[str, Any]
ADVANTAGES = "advantages"
logger = logging.getLogger(__name__)


class TrajectoryWriter:
    """Writes in a thread of its own; `write` returns at once."""

    def __init__(self, spec: TrajectorySpec, directory: str | Path, worker: str):
        self._spec, self._directory, self._worker = spec, Path(directory), worker
        self._waiting: queue.SimpleQueue[tuple[SessionResult, str] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="trajectories", daemon=True)
        self._thread.start()

    def write(self, finished: SessionResult, status: str) -> None:
        """`status`: finished, dropped or cancelled."""
        if self._chosen(finished.session):
            self._waiting.put((finished, status))

    def close(self) -> None:
        """Wait until everything is on disk."""
        self._waiting.put(None)
        self._thread.join()

    def _chosen(self, session: Session) -> bool:
        """The same sessions in every run, whatever the order in which they end."""
        task = session.task
        draw = zlib.crc32(f"{task.extra_info.get('index')}/{task.step}/{task.session}".encode()) / 2**32
        return draw < self._spec.sampling_rate

    def _work(self) -> None:
        while (item := self._waiting.get()) is not None:
            try:
                self._append(*item)
            except (OSError, TypeError, ValueError):
                # A full disk must not stop a training run, so the log is the only place where this is reported.
                logger.exception("a trajectory was not written")

    def _append(self, finished: SessionResult, status: str) -> None:
        record = session_record(finished, status, self._spec.max_text_chars)
        line = json.dumps(record, ensure_ascii=False, default=_plain)
        path = file_of(self._directory, finished.session.task.validate, finished.session.task.step, self._worker)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(line + "\n")


def folder_of(spec: TrajectorySpec, default_local_dir: str) -> Path:
    return Path(spec.dir) if spec.dir else Path(default_local_dir) / "trajectories"


def file_of(directory: str | Path, validate: bool, step: int, worker: str) -> Path:
    return Path(directory) / ("val" if validate else "train") / f"{step:06d}-{worker}.jsonl"


def write_advantages(directory: str | Path, step: int, advantages: Mapping[str, float]) -> None:
    """Called by the trainer; keys are those of the rows."""
    path = file_of(directory, validate=False, step=step, worker=ADVANTAGES)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(dict(advantages)) + "\n")


def read_sessions(directory: str | Path, validate: bool = False, step: int | None = None) -> Iterator[Record]:
    """Sessions in the order of their steps, their acts with advantages where the trainer has written them."""
    folder = Path(directory) / ("val" if validate else "train")
    if not folder.is_dir():
        raise DataError(
            f"{folder} is not a folder",
            rule="a run writes its sessions to <trainer.default_local_dir>/trajectories, or to mas.trajectories.dir",
            fix="give that folder",
        )
    steps = sorted({path.name.split("-")[0] for path in folder.glob("*.jsonl")})
    for name in steps if step is None else [f"{step:06d}"]:
        known: dict[str, float] = {}
        for line in _lines(folder / f"{name}-{ADVANTAGES}.jsonl"):
            known.update(line)
        for path in sorted(folder.glob(f"{name}-*.jsonl")):
            if path.stem.endswith(ADVANTAGES):
                continue
            for session in _lines(path):
                for act in session["acts"]:
                    act["advantage"] = known.get(act["key"])
                yield session


def session_record(finished: SessionResult, status: str, max_text_chars: int | None = None) -> Record:
    """One session as plain data."""
    session, task = finished.session, finished.session.task
    rows = session.rows()
    by_act = {id(reply): row for row in rows for reply in row.replies}
    clip = _Clip(max_text_chars)
    return {
        "schema": SCHEMA,
        "uid": task.uid,
        "session": task.session,
        "step": task.step,
        "partition": "val" if task.validate else "train",
        "status": status,
        "task": {
            "messages": clip.messages(task.messages),
            "ground_truth": task.ground_truth,
            "data_source": task.data_source,
            "index": task.extra_info.get("index"),
        },
        "acts": [_act(reply, by_act[id(reply)], clip) for reply in session.replies],
        "outcome": {
            "answer": clip.text(session.answer),
            "reward": session.team_reward,
            "info": session.reported,
        },
        "faults": [
            {
                "attempt": attempt,
                "kind": fault.kind.value,
                "agent": fault.agent,
                "turn": fault.turn,
                "cause": fault.cause,
            }
            for attempt, fault in enumerate(finished.faults)
        ],
        "started": session.started,
        "seconds": session.seconds,
    }


def _act(reply: Reply, row: Row, clip: _Clip) -> Record:
    generation, reward = reply.generation, row.reward
    return {
        "key": None if row.key is None else str(row.key),
        "agent": reply.agent,
        "role": reply.role,
        "policy": reply.policy,
        "turn": reply.turn,
        "branch": reply.branch,
        "committed": reply.committed,
        "trainable": reply.trainable,
        "messages": clip.messages(reply.messages),
        "text": clip.text(reply.text),
        "prompt_tokens": len(generation.prompt_ids),
        "response_tokens": len(generation.response_ids),
        "sampled_tokens": generation.sampled,
        "stop_reason": generation.stop_reason,
        "temperature": generation.temperature,
        "parses": [clip.text(parse) for parse in reply.parses],
        "malformed": reply.malformed,
        "reward": {"team": reward.team, "local": reward.local, "penalty": reward.penalty, "score": reward.score},
        "advantage": None,
        "started": reply.started,
        "seconds": reply.seconds,
    }


class _Clip:
    def __init__(self, limit: int | None):
        self.limit = limit

    def text(self, text: str | None) -> str | None:
        if text is None or self.limit is None or len(text) <= self.limit:
            return text
        return f"{text[: self.limit]}... ({len(text)} characters)"

    def messages(self, messages: Sequence[Message]) -> list[Message]:
        return [{**message, "content": self._content(message.get("content"))} for message in messages]

    def _content(self, content: object) -> object:
        if content is None or isinstance(content, str):
            return self.text(content)
        # An image has no place in a line of JSON; that there was one does.
        return [
            part if part.get("type") == "text" else {"type": part.get("type")}
            for part in cast("list[Message]", content)
        ]


def _lines(path: Path) -> Iterator[Record]:
    if path.exists():
        with path.open(encoding="utf-8") as file:
            yield from map(json.loads, file)


def _plain(value: object) -> object:
    return value.tolist() if hasattr(value, "tolist") else str(value)
