"""The task of a session: one row of the dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from verl_mas.config.registry import KnownNames
from verl_mas.verl_ import row as names
from verl_mas.workflow.client import DatasetFields, Message


@dataclass(frozen=True)
class Task(KnownNames):
    """One row of the dataset: its `messages`, `ground_truth`, `extra_info` and other `fields`."""

    messages: Sequence[Message]
    ground_truth: Any = None
    data_source: str | None = None
    extra_info: DatasetFields = field(default_factory=dict)
    uid: str = "task"
    session: int = 0
    step: int = 0
    # Finished share of the training, from 0 at the first step to almost 1 at the last step. None outside of training.
    progress: float | None = None
    validate: bool = False
    greedy: bool = False  # greedy decoding, which overrides the sampling settings of the agents
    fields: DatasetFields = field(default_factory=dict)

    @classmethod
    def of(cls, task: Task | str | Sequence[Message]) -> Task:
        """Make a task from a question or a list of messages."""
        if isinstance(task, Task):
            return task
        return cls(messages=[{"role": "user", "content": task}] if isinstance(task, str) else list(task))

    @classmethod
    def of_row(cls, row: DatasetFields, *, validate: bool, greedy: bool) -> Task:
        """Make the task of a session from a row of verl's dataset."""
        return cls(
            messages=list(row[names.RAW_PROMPT]),
            ground_truth=(row.get(names.REWARD_MODEL) or {}).get(names.GROUND_TRUTH),
            data_source=row.get(names.DATA_SOURCE),
            extra_info=row.get(names.EXTRA_INFO) or {},
            uid=str(row[names.UID]),
            session=row[names.SESSION_ID],
            step=int(row[names.GLOBAL_STEPS]),
            progress=None if validate else row.get(names.PROGRESS),
            validate=validate,
            greedy=greedy,
            fields=row,
        )

    @property
    def question(self) -> str:
        """The text of the last user message."""
        for message in reversed(self.messages):
            if message["role"] == "user":
                return text_of(message)
        return ""

    def opening(self, messages: Sequence[Message]) -> int:
        """Count the leading system prompts, and the messages right after them that equal the messages of the task."""
        of_task = [message for message in self.messages if message["role"] != "system"]
        count = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
        for message, original in zip(messages[count:], of_task, strict=False):
            if message != original:
                break
            count += 1
        return count

    @property
    def key(self) -> str:
        """The name of the session. The keys of its rows start with it."""
        return names.session_key(self.uid, self.session)


def text_of(message: Message) -> str:
    """Return the text of a message without other parts, such as images."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content if part.get("type") == "text")


def with_instruction(messages: Sequence[Message], instruction: str) -> list[Message]:
    """Copy the messages, and append `instruction` to the last message."""
    *before, last = messages
    content = last.get("content") or ""
    if isinstance(content, str):
        return [*before, {**last, "content": f"{content}\n\n{instruction}"}]
    return [*before, {**last, "content": [*content, {"type": "text", "text": f"\n\n{instruction}"}]}]
