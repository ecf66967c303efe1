"""Session records: the acts and faults of a session as plain data, and a record as a transcript for terminals."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import indent
from typing import TypeAlias, cast

from verl_mas.errors import SessionFault
from verl_mas.run_folder.records import Record, plain
from verl_mas.util.text import printable
from verl_mas.workflow.client import Message, ToolCall
from verl_mas.workflow.reply import Reply
from verl_mas.workflow.rewards import Row
from verl_mas.workflow.task import text_of

# Maps a message part with an image to the part that replaces it in the record.
Images: TypeAlias = Callable[[Message], Message]
# Returns one text per token. Joined, the texts are the text of all tokens.
TokenTexts: TypeAlias = Callable[[Sequence[int]], Sequence[str]]


@dataclass(frozen=True)
class Recording:
    """Options of session records."""

    max_text_chars: int | None = None
    images: Images = lambda part: {"type": part.get("type")}
    tokens: Mapping[str, TokenTexts] = field(default_factory=dict)  # by policy; other policies record no tokens


# Fields of a generation that are copied unchanged into the record of its act.
OF_GENERATION = ("stop_reason", "temperature", "versions", "aborts", "forged_tokens")


def fault_record(attempt: int, fault: SessionFault) -> Record:
    facts = {name: getattr(fault, name) for name in ("agent", "turn", "cause", "traceback")}
    return {"attempt": attempt, "kind": fault.kind.value, **facts}


def act_record(reply: Reply, row: Row, clip: Clip) -> Record:
    generation = reply.generation
    return {
        "key": None if row.key is None else str(row.key),
        **vars(reply.act),
        **{name: getattr(reply, name) for name in ("committed", "trainable", "probe", "line")},
        "messages": clip.messages(reply.messages),
        "text": clip.text(reply.text),
        # Only acts with tool calls have `steps`, because without calls `text` is the whole reply.
        "steps": clip.messages(reply.steps) if reply.tool_calls else [],
        "tool_calls": [_call(call, clip) for call in reply.tool_calls],
        "prompt_tokens": len(generation.prompt_ids),
        "response_tokens": len(generation.response_ids),
        "sampled_tokens": generation.sampled,
        "tokens": clip.tokens(reply),
        **{name: getattr(generation, name) for name in OF_GENERATION},
        **({"origin": reply.origin} if reply.origin else {}),
        "parses": [clip.text(parse) for parse in reply.parses],
        "malformed": reply.malformed,
        # The local reward is split into parts only if tools gave a reward.
        "reward": {
            **vars(row.reward),
            "parts": {} if reply.tool_reward is None else {"act": reply.reward or 0.0, "tools": reply.tool_reward},
        },
        "advantage": None,
        "started": round(reply.started, 4),
        "seconds": round(reply.seconds, 4),
    }


def _call(call: ToolCall, clip: Clip) -> Record:
    return {
        "name": call.name,
        "arguments": clip.text(call.arguments),
        "result": clip.text(call.result),
        "error": clip.text(call.error),
        "reward": call.reward,
        "left_out": call.left_out,
        "seconds": round(call.seconds, 4),
    }


class Clip:
    """Shortens long texts in messages, and converts messages to plain data."""

    def __init__(self, how: Recording):
        self.how, self.limit = how, how.max_text_chars
        # Candidates and turns share messages, so each message is shortened once.
        self._known: dict[int, tuple[Message, Message]] = {}

    def text(self, text: str | None) -> str | None:
        if text is None or self.limit is None or len(text) <= self.limit:
            return text
        return f"{text[: self.limit]}... ({len(text)} characters)"

    def messages(self, messages: Sequence[Message]) -> list[Message]:
        return [self._message(message) for message in messages]

    def tokens(self, reply: Reply) -> list[list[object]] | None:
        """List the sampled tokens of an act with their log-probs, but at most `max_text_chars` tokens. None if tokens
        are not recorded."""
        texts = self.how.tokens.get(reply.policy)
        if texts is None or not reply.generation.sampled:
            return None
        ids, log_probs = sampled_of(reply)
        tokens: list[list[object]] = list(map(list, zip(texts(ids), log_probs, strict=True)))
        # A token usually has at least one character, so a limit of characters also limits tokens.
        return tokens[: self.limit]

    def _message(self, message: Message) -> Message:
        known = self._known.get(id(message))
        if known is not None:
            return known[1]
        clipped = {**message, "content": self._content(message.get("content"))}
        if self.limit is not None and message.get("tool_calls"):
            clipped["tool_calls"] = [self._called(call) for call in message["tool_calls"]]
        self._known[id(message)] = (message, clipped)
        return clipped

    def _called(self, call: Record) -> Record:
        """Return a tool call with its arguments, as a shortened text if they are long."""
        function = call["function"]
        text = json.dumps(function["arguments"], ensure_ascii=False, default=plain)
        clipped = self.text(text)
        return call if clipped == text else {**call, "function": {**function, "arguments": clipped}}

    def _content(self, content: object) -> object:
        if content is None or isinstance(content, str):
            return self.text(content)
        return [self._part(part) for part in cast("list[Message]", content)]

    def _part(self, part: Message) -> Message:
        kind = part.get("type")
        if kind == "text":
            return {**part, "text": self.text(part.get("text"))}
        return self.how.images(part) if kind in ("image", "image_url") else {"type": kind}


def sampled_of(reply: Reply) -> tuple[list[int], list[float | None]]:
    """Return the sampled tokens of an act and their log-probs. They are the last `generation.sampled` sampled tokens of
    its row."""
    generation = reply.generation
    ids, mask, log_probs = generation.response_ids, generation.response_mask, generation.log_probs
    places = [place for place, sampled in enumerate(mask) if sampled] if mask else range(len(ids))
    last = places[len(places) - generation.sampled :]
    if log_probs is None or len(log_probs) < len(ids):
        return [ids[place] for place in last], [None] * len(last)
    return [ids[place] for place in last], [log_probs[place] for place in last]


# -- transcripts: control characters, and marks that reorder text, are escaped, because model-written text is hostile --

MOST = 4000  # limit of a text in a transcript; the record has the whole text


def as_text(record: Record) -> str:
    """Format the acts in order, each with the messages of its prompt that no earlier act had."""
    return "\n".join(_paragraphs(record))


def _paragraphs(record: Record) -> Iterator[str]:
    yield _shown(_heading(record))
    seen: set[str] = set()
    yield from _boards(record, None)
    among = Counter(map(_place, record["acts"]))
    for number, act in enumerate(record["acts"]):
        yield from _act(act, seen, among[_place(act)])
        yield from _boards(record, number)
    for fault in record["faults"]:
        yield _shown(f"{fault['kind']}: {fault['cause']}\n{fault.get('traceback') or ''}".rstrip())
    yield _shown(_outcome(record["outcome"]))


def _heading(record: Record) -> str:
    status = f"{record['partition']} · {record['status']} · " if record.get("status") else ""
    acts = sum(not act["probe"] for act in record["acts"])
    return f"Session {record['uid']}_{record['session']} · step {record['step']} · {status}acts {acts}"


def _place(act: Record) -> tuple[object, ...]:
    """Key that all candidates of one prompt share."""
    return act["agent"], act["instance"], act["turn"], act["line"]


def _act(act: Record, seen: set[str], among: int) -> Iterator[str]:
    for message in act["messages"]:
        text = json.dumps(message, sort_keys=True, default=str)
        if text not in seen:
            seen.add(text)
            yield _shown(f"{message.get('role')}: {_content(message)}", 1)
    yield _shown(_title(act, among))
    yield _shown(_facts(act), 1)
    yield _shown(act["text"] or "(empty)", 1)
    for call in act["tool_calls"]:
        result = call["result"] if call["error"] is None else f"error: {call['error']}"
        yield _shown(f"{call['name']}({call['arguments']}) -> {result}", 2)


def _title(act: Record, among: int) -> str:
    instance = f" #{act['instance']}" if act["instance"] else ""
    candidate = f", candidate {act['branch']} of {among}" if among > 1 else ""
    mark = " (committed)" if candidate and act["committed"] else ""
    probe = f", continued: {act['line']}" if act["probe"] else ""
    return f"{act['agent']}{instance}, turn {act['turn']}{candidate}{mark}{probe}"


def _facts(act: Record) -> str:
    reward = act["reward"]
    parts = {name: reward[name] for name in ("team", "local", "penalty") if reward[name]} | reward["parts"]
    facts = [f"reward {reward['score']:.4g}"]
    if len(parts) > 1:
        facts[0] += f" ({', '.join(f'{name} {value:.4g}' for name, value in parts.items())})"
    if act["advantage"] is not None:
        facts.append(f"advantage {act['advantage']:+.3f}")
    facts.append(f"{act['sampled_tokens']} tokens")
    if act.get("origin"):
        facts.append(act["origin"])
    if act.get("forged_tokens"):
        facts.append(f"{act['forged_tokens']} forged tokens in the prompt")
    if act["malformed"] is not None:
        facts.append(f"malformed: {act['malformed']}")
    if act["stop_reason"] == "length":
        facts.append("cut at its maximal length")
    return " · ".join(facts)


def _outcome(outcome: Mapping[str, object]) -> str:
    reward = outcome["reward"]
    info = "".join(f" · {name} {value}" for name, value in (outcome["info"] or {}).items())  # type: ignore[attr-defined]
    answer = "no answer" if outcome["answer"] is None else f"answer {outcome['answer']}"
    return f"{answer} · {'no team reward' if reward is None else f'team reward {reward:.4g}'}{info}"


def _boards(record: Record, after: int | None) -> Iterator[str]:
    for board in record["boards"]:
        if board["after"] == after:
            yield _shown(f"{board['title']}\n{board['text']}".strip("\n"), 1)


def _content(message: Mapping[str, object]) -> str:
    content = message.get("content")
    others = [part.get("type") for part in content if part.get("type") != "text"] if isinstance(content, list) else []
    return text_of(dict(message)) + "".join(f" [{kind}]" for kind in others)


def _shown(text: str, level: int = 0) -> str:
    """Cut and indent a text, with unprintable characters escaped."""
    cut = text if len(text) <= MOST else f"{text[:MOST]}... ({len(text)} characters)"
    return indent(printable(cut), "  " * level, lambda line: True)
