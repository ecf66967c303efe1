"""The line that stores a session record, and the entry that lists it.

A record repeats messages: each act has its whole prompt. A line stores each message once, in `messages`, and replaces
each list of messages by pairs of start and stop indices into it. So the candidates of a branch share their prompt, and
the turns of a conversation share the earlier turns.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, pairwise
from math import isfinite
from typing import TypeAlias

from verl_mas.errors import DataError
from verl_mas.util.text import encodable
from verl_mas.verl_.row import session_key
from verl_mas.verl_.types import Fields

SCHEMA = 2
Record: TypeAlias = Fields  # a session as plain data
MESSAGES, LEFT_OUT = "messages", "left_out"
EXCERPT = 80  # characters of the question and the answer in a list


@dataclass(frozen=True)
class Listed:
    """A session in a list. `left_out`: the session was not recorded."""

    uid: str
    session: int
    step: int
    partition: str  # train or val
    left_out: bool = False
    status: str = ""
    reward: float | None = None  # the team's reward; None if only acts have rewards
    scores: Mapping[str, Sequence[float]] | None = None  # agent -> lowest and highest score of its acts
    agents: Sequence[str] = ()
    policies: Sequence[str] = ()
    acts: int = 0
    malformed: int = 0
    faults: Sequence[str] = ()  # kinds of the session's faults
    index: object = None  # index of the task in its dataset
    source: str | None = None
    question: str = ""
    answer: str = ""
    started: float = 0.0
    seconds: float = 0.0

    @property
    def key(self) -> str:
        """The session's key, which is the beginning of the keys of its rows."""
        return session_key(self.uid, self.session)


# Fields that are copied from the record, where they have the same names.
COPIED = ("uid", "session", "step", "partition", "status", "started", "seconds")
LISTED = tuple(item.name for item in fields(Listed))


def listed(record: Record) -> Listed:
    """Make the list entry of a record. Other data raises KeyError, TypeError, ValueError or AttributeError."""
    if record.get(LEFT_OUT):
        return Listed(*(record[name] for name in LISTED[:5]))
    acts, task, outcome = record["acts"], record["task"], record["outcome"]
    scores: dict[str, list[float]] = {}
    for act in acts:
        if not act.get("probe"):
            score = act["reward"]["score"]
            low, high = scores.get(act["agent"], (score, score))
            scores[act["agent"]] = [min(low, score), max(high, score)]
    return Listed(
        **{name: record[name] for name in COPIED},
        reward=outcome["reward"],
        scores=scores,
        agents=list(dict.fromkeys(act["agent"] for act in acts)),
        policies=list(dict.fromkeys(act["policy"] for act in acts)),
        acts=len(acts),
        malformed=sum(act["malformed"] is not None for act in acts),
        faults=[fault["kind"] for fault in record["faults"]],
        index=task["index"],
        source=task["data_source"],
        question=question_of(record)[:EXCERPT],
        answer=(outcome["answer"] or "")[:EXCERPT],
    )


def question_of(record: Record) -> str:
    """Return the text of the last user message, as `Task.question` does."""
    for message in reversed(record["task"][MESSAGES]):
        if message.get("role") == "user":
            content = message.get("content") or ""
            return content if isinstance(content, str) else "".join(part.get("text") or "" for part in content)
    return ""


def left_out(uid: str, session: int, step: int, partition: str) -> Record:
    """Make the stand-in for a session that is not recorded. Without it, the record of an earlier attempt would be
    read."""
    return {"schema": SCHEMA, "uid": uid, "session": session, "step": step, "partition": partition, LEFT_OUT: True}


def packed(record: Record) -> bytes:
    """Return the line of a record. Raises DataError if JSON cannot express it."""
    try:
        line = json.dumps(_shared(record), ensure_ascii=False, default=plain, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        value = f"the record of session {record['uid']}_{record['session']}: {error}"
        fix = "use text as keys in every mapping, and no mapping that contains itself"
        raise DataError(value, rule="Outcome.info and the data of a task are stored as JSON", fix=fix) from error
    return encodable(f"{line}\n").encode()


def unpacked(line: bytes) -> Record:
    """Return the record of a line. Raises ValueError if the line is not JSON, and the errors of `listed`."""
    record: Record = json.loads(line)
    if record.get(LEFT_OUT):
        return record
    table = record.pop(MESSAGES, None)
    if table is not None:
        for owner, name in _lists_of(record):
            ends = iter(owner[name])
            owner[name] = [table[i] for start, stop in zip(ends, ends, strict=True) for i in range(start, stop)]
    for act in record["acts"]:
        if isinstance(tokens := act["tokens"], dict):
            stops = list(accumulate(tokens["lengths"], initial=0))
            log_probs = [None if hundredths is None else hundredths / 100 for hundredths in tokens["log_probs"]]
            texts = [tokens["text"][start:stop] for start, stop in pairwise(stops)]
            act["tokens"] = [list(pair) for pair in zip(texts, log_probs, strict=True)]
    return record


def _shared(record: Record) -> Record:
    """Return the record with each message once, and with its tokens in a compact form."""
    if LEFT_OUT in record:
        return record
    table: list[object] = []
    places: dict[str, int] = {}
    by_id: dict[int, int] = {}

    def place(message: object) -> int:
        if id(message) not in by_id:
            text = json.dumps(message, ensure_ascii=False, default=plain)
            if text not in places:
                places[text] = len(table)
                table.append(message)
            by_id[id(message)] = places[text]
        return by_id[id(message)]

    shared = {**record, "task": dict(record["task"]), "acts": [dict(act) for act in record["acts"]]}
    for owner, name in _lists_of(shared):
        runs: list[int] = []  # the indices 4, 5, 6 and 9 become [4, 7, 9, 10]
        for number in map(place, owner[name]):
            if runs and runs[-1] == number:
                runs[-1] += 1
            else:
                runs += [number, number + 1]
        owner[name] = runs
    for act in shared["acts"]:
        if act["tokens"] is not None:
            # Store one string, the lengths of the tokens, and the log-probs in hundredths. They take less space than a
            # pair of text and log-prob for each token.
            texts = [text for text, _ in act["tokens"]]
            log_probs = [None if p is None or not isfinite(p) else round(100 * p) for _, p in act["tokens"]]
            act["tokens"] = {"text": "".join(texts), "lengths": list(map(len, texts)), "log_probs": log_probs}
    return {**shared, MESSAGES: table}


def _lists_of(record: Record) -> Iterable[tuple[Record, str]]:
    """Yield the mapping and the key under which each list of messages in a record is found."""
    yield record["task"], MESSAGES
    for act in record["acts"]:
        yield act, MESSAGES
        yield act, "steps"


def plain(value: object) -> object:
    """Convert a value that JSON lacks: an array to a list, anything else to text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
