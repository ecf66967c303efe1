"""Sessions on disk: JSON lines, one file per step, attempt and worker. Advantages are in a file of their own.

<dir>/<train|val>/<step>-<attempt>-<worker>.jsonl        one session per line, `schema` 1
<dir>/<train|val>/<step>-<attempt>-advantages.jsonl      {key: advantage}, from the trainer

The step is the one in which a session was started; in the asynchronous modes it is trained later.

A run that resumes is a new attempt. It repeats steps under the same keys, so what two attempts have of a session is not
joined. Sessions that a checkpoint of an asynchronous mode kept are the exception: a later attempt trains on them, and
has their advantages and no record.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast
from uuid import uuid4

from verl_mas.config.schema import TrajectorySpec
from verl_mas.errors import DataError, DiskError
from verl_mas.run_folder.disk import append_line, free_space
from verl_mas.workflow.client import Message, ToolCall
from verl_mas.workflow.reply import Reply
from verl_mas.workflow.rewards import Row
from verl_mas.workflow.session import Session, SessionResult

SCHEMA = 1
# A session as plain data.
Record: TypeAlias = dict[str, Any]
Attempts: TypeAlias = Literal["last", "all"]
ADVANTAGES = "advantages"
logger = logging.getLogger(__name__)


def new_attempt() -> str:
    """A name that sorts after those of earlier attempts, on every machine whose clock is right."""
    return datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S%fZ")


class TrajectoryWriter:
    """Writes the sessions of one worker. Threads may share it."""

    def __init__(self, spec: TrajectorySpec, directory: str | Path, attempt: str):
        self._spec, self._directory, self._attempt = spec, directory, attempt
        self._worker = uuid4().hex[:8]
        self._lock = threading.Lock()
        # Not the loop's own threads: each has a memory arena of its own, and all of them grow.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="session-records")

    async def awrite(self, finished: SessionResult, status: str) -> None:
        """`write`, without blocking the other sessions on a slow disk."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self.write, finished, status)

    def write(self, finished: SessionResult, status: str) -> None:
        """`status`: finished, dropped or cancelled. Raises DiskError when the disk is full."""
        session = finished.session
        if not self._chosen(session):
            return
        record = session_record(finished, status, self._spec.max_text_chars)
        path = file_of(self._directory, session.task.validate, session.task.step, self._attempt, self._worker)
        with self._lock:
            _append(path, record)

    def _chosen(self, session: Session) -> bool:
        """The same sessions in every run, whatever the order in which they end."""
        task = session.task
        draw = zlib.crc32(f"{task.extra_info.get('index')}/{task.step}/{task.session}".encode()) / 2**32
        return draw < self._spec.sampling_rate


def folder_of(spec: TrajectorySpec, default_local_dir: str) -> Path:
    return Path(spec.dir) if spec.dir else Path(default_local_dir) / "trajectories"


def file_of(directory: str | Path, validate: bool, step: int, attempt: str, worker: str) -> Path:
    """Tasks that are dispatched before the first step have numbers below 0; they are filed with those of step 0."""
    return Path(directory) / ("val" if validate else "train") / f"{max(step, 0):06d}-{attempt}-{worker}.jsonl"


def write_advantages(directory: str | Path, step: int, attempt: str, advantages: Mapping[str, float]) -> None:
    """Called by the trainer; keys are those of the rows. Raises DiskError when the disk is full."""
    _append(file_of(directory, False, step, attempt, ADVANTAGES), dict(advantages))


def read_sessions(
    directory: str | Path, validate: bool = False, step: int | None = None, attempts: Attempts = "last"
) -> Iterator[Record]:
    """Sessions in the order of their steps, their acts with advantages where the trainer has written them.

    A run that was resumed may have repeated steps. Of each step the last attempt is read, with the sessions of earlier
    ones that it trained on; or all attempts, in order. `attempt` in a session names its own. A line that is damaged is
    skipped with a warning.
    """
    if attempts not in ("last", "all"):
        raise DataError(f"attempts={attempts!r}", rule="it is last or all", fix='give attempts="last"')
    folder = Path(directory) / ("val" if validate else "train")
    if not folder.is_dir():
        raise DataError(
            f"{folder} is not a folder",
            rule="a run writes its sessions to <trainer.default_local_dir>/trajectories, or to mas.trajectories.dir",
            fix="give that folder",
        )
    for number, by_attempt in sorted(_files(folder).items()):
        if step is None or step == number:
            yield from _of_step(by_attempt, everything=attempts == "all")


def _files(folder: Path) -> dict[int, dict[str, list[Path]]]:
    """By step and attempt. Earlier versions named no attempt, which is the first one here."""
    found: dict[int, dict[str, list[Path]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(folder.glob("*.jsonl")):
        step, _, rest = path.stem.partition("-")
        if step.isdecimal():
            found[int(step)][rest.rpartition("-")[0]].append(path)
    return found


def _of_step(by_attempt: Mapping[str, Sequence[Path]], everything: bool) -> Iterator[Record]:
    """The sessions of one step, attempt by attempt."""
    found: list[list[Record]] = []
    later: dict[str, float] = {}  # by later attempts, of sessions that none of them has a record of
    for attempt in sorted(by_attempt, reverse=True):
        sessions = [path for path in by_attempt[attempt] if not _is_of_advantages(path)]
        known = _advantages(by_attempt[attempt]) | later
        if sessions and (everything or later or not found):
            own = [session for path in sessions for session in _lines(path)]
            whole = everything or not found
            found.append([session for session in own if whole or any(act["key"] in later for act in session["acts"])])
            for session in own:
                session["attempt"] = attempt or None
                for act in session["acts"]:
                    act["advantage"] = known.get(act["key"])
            recorded = {act["key"] for session in own for act in session["acts"]}
            later = {key: value for key, value in known.items() if key not in recorded}
        else:
            later = known
    for wanted in reversed(found):
        yield from wanted


def _advantages(paths: Sequence[Path]) -> dict[str, float]:
    lines = (line for path in paths if _is_of_advantages(path) for line in _lines(path))
    return {key: value for line in lines for key, value in line.items()}


def _is_of_advantages(path: Path) -> bool:
    return path.stem.endswith(f"-{ADVANTAGES}")


def _lines(path: Path) -> Iterator[Record]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield json.loads(line)
            except ValueError as error:
                kind = "is damaged" if line.endswith(b"\n") else "was not finished"
                logger.warning("%s, line %d %s and is skipped: %s", path, number, kind, error)


def _append(path: Path, record: Mapping[str, object]) -> None:
    try:
        line = json.dumps(record, ensure_ascii=False, default=_plain)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"a session record for {path}: {error}",
            rule="Outcome.info and the data of a task are stored as JSON",
            fix="use text as keys in every mapping, and no mapping that contains itself",
        ) from error
    try:
        append_line(path, line)
    except OSError as error:
        raise DiskError(
            f"{path} cannot be written: {error.strerror}; {free_space(path)}",
            rule="every session is recorded, so a run that cannot do so ends",
            fix="make room, or set mas.trajectories.dir to another disk or mas.trajectories.enabled=false",
        ) from error


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
                "traceback": fault.traceback,
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
        "instance": reply.instance,
        "turn": reply.turn,
        "branch": reply.branch,
        "committed": reply.committed,
        "trainable": reply.trainable,
        "probe": reply.probe,
        "line": reply.line,
        "messages": clip.messages(reply.messages),
        "text": clip.text(reply.text),
        # Without calls the text is all there is.
        "steps": clip.messages(reply.steps) if reply.tool_calls else [],
        "tool_calls": [_call(call, clip) for call in reply.tool_calls],
        "prompt_tokens": len(generation.prompt_ids),
        "response_tokens": len(generation.response_ids),
        "sampled_tokens": generation.sampled,
        "stop_reason": generation.stop_reason,
        "temperature": generation.temperature,
        "versions": generation.versions,
        "aborts": generation.aborts,
        "parses": [clip.text(parse) for parse in reply.parses],
        "malformed": reply.malformed,
        "reward": {"team": reward.team, "local": reward.local, "penalty": reward.penalty, "score": reward.score},
        "advantage": None,
        "started": reply.started,
        "seconds": reply.seconds,
    }


def _call(call: ToolCall, clip: _Clip) -> Record:
    return {
        "name": call.name,
        "arguments": clip.text(call.arguments),
        "result": clip.text(call.result),
        "error": clip.text(call.error),
        "reward": call.reward,
        "seconds": call.seconds,
    }


class _Clip:
    def __init__(self, limit: int | None):
        self.limit = limit

    def text(self, text: str | None) -> str | None:
        if text is None or self.limit is None or len(text) <= self.limit:
            return text
        return f"{text[: self.limit]}... ({len(text)} characters)"

    def messages(self, messages: Sequence[Message]) -> list[Message]:
        return [self._message(message) for message in messages]

    def _message(self, message: Message) -> Message:
        clipped = {**message, "content": self._content(message.get("content"))}
        if self.limit is not None and message.get("tool_calls"):
            clipped["tool_calls"] = [self._called(call) for call in message["tool_calls"]]
        return clipped

    def _called(self, call: Record) -> Record:
        """Its arguments as they are if they are short, else as a text that is cut."""
        function = call["function"]
        text = json.dumps(function["arguments"], ensure_ascii=False, default=_plain)
        clipped = self.text(text)
        return call if clipped == text else {**call, "function": {**function, "arguments": clipped}}

    def _content(self, content: object) -> object:
        if content is None or isinstance(content, str):
            return self.text(content)
        # An image has no place in a line of JSON; that there was one does.
        return [
            part if part.get("type") == "text" else {"type": part.get("type")}
            for part in cast("list[Message]", content)
        ]


def _plain(value: object) -> object:
    return value.tolist() if hasattr(value, "tolist") else str(value)
