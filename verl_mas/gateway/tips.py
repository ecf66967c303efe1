"""Stores the acts of a session that a request can continue. For each agent and each set of tools, the transcripts of
the acts form a tree with a node per message. A program may send a reply back in a spelling that differs from the
spelling that it received."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from verl_mas.gateway.endpoints.openai import calls_of, text_of
from verl_mas.workflow.client import Continuation, Message, ToolCall
from verl_mas.workflow.reply import Reply

# A chat template may write `<think>` into the prompt. A reply then contains only `</think>`.
THOUGHT = re.compile(r"\A(?:\s*<think>)?.*?</think>\s*", re.DOTALL)


class Canonical(NamedTuple):
    """The parts of a message that chat templates read, in a form that can be compared. The ids of calls and the fields
    that clients add are left out."""

    role: str
    content: str
    calls: tuple[tuple[str, str], ...] = ()
    name: str = ""  # empty unless the role is user


def canonical(message: Message) -> Canonical:
    """Reduce a message to the parts that are compared. Its content is text and, for a user, images."""
    role = str(message["role"])
    calls = tuple((call.name, _plain(call)) for call in calls_of(message))
    name = str(message.get("name") or "") if role == "user" else ""
    return Canonical(role, text_of(message) + _images(message), calls, name)


def _images(message: Message) -> str:
    """Join the data URLs of a message's images."""
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return "".join(part["image_url"]["url"] for part in parts if part.get("type") == "image_url")


def _plain(call: ToolCall) -> str:
    """Return the arguments of a call as JSON with sorted keys. Arguments that are not JSON stay as they are."""
    return call.arguments if call.parameters is None else json.dumps(call.parameters, sort_keys=True)


def spellings(served: Canonical, stopped_by: str | None = None, *, thinking: bool = True) -> Iterator[Canonical]:
    """Yield the spellings in which a program may send a reply back: as it was served, with the stop string that ended
    it, and, if `thinking`, without its thought."""
    ends = [served] if stopped_by is None else [served, served._replace(content=served.content + stopped_by)]
    yield from ends
    if thinking and (thought := THOUGHT.match(served.content)):
        yield from (one._replace(content=one.content[thought.end() :]) for one in ends)


def difference(known: Sequence[Canonical], given: Sequence[Canonical], start: int) -> str:
    """Describe the first difference between two transcripts, to explain why a request started a new row. Both
    transcripts are equal before message `start`; `known` and `given` are their messages from `start` on."""
    if not given:
        return "it was asked before"
    if not known:
        return f"messages[{start}] ({given[0].role}) follows no reply"
    old, new = known[0], given[0]
    if new in known:
        return f"{known.index(new)} messages from messages[{start}] ({old.role}) on were dropped"
    if old in given:
        return f"{given.index(old)} messages were inserted at messages[{start}] ({new.role})"
    if old.role != new.role:
        return f"messages[{start}] is of the {new.role}, and was of the {old.role}"
    if start == 0 and new.role == "system":
        return "the system prompt changed"
    return f"messages[{start}] ({new.role}) was edited"


@dataclass(eq=False)
class Tip:
    """An act that a request can continue."""

    reply: Reply
    found: Found = field(repr=False)  # the act that this act continues
    taken: bool = False  # whether another act has continued the row, or is continuing it now
    place: int = 0  # index of the reply in the transcript
    spellings: frozenset[Canonical] = field(default=frozenset(), repr=False)  # spellings of its reply
    nodes: Sequence[Node] = field(default=(), repr=False)  # nodes of the reply in the tree, one per spelling

    @property
    def messages(self) -> list[Message]:
        """Messages whose tokens are in the row, up to and including the reply of this act."""
        return [*self.reply.messages, *self.reply.steps]

    @property
    def end(self) -> str | None:
        """The reason why no request can continue the row after this act; None if a request can continue it."""
        generation = self.reply.generation
        if generation.full:
            return "its row is full"
        # A reply without an end-of-turn token cannot be continued in the format of the chat template.
        if self.reply.truncated:
            return "its reply was cut at the maximal length"
        return "its reply is empty" if generation.prompt_ids and not generation.sampled else None

    def is_in(self, given: Sequence[Canonical]) -> bool:
        """Check that the request `given` contains the reply of this act and the earlier replies of its row, each in any
        of its spellings. The path through the tree does not prove this, because different replies can have a spelling
        in common, for example if only their reasoning differs."""
        tip: Tip | None = self
        while tip is not None and given[tip.place] in tip.spellings:
            tip = tip.found.tip
        return tip is None


@dataclass(eq=False)
class Node:
    """A message in the tree of transcripts. `tips` are the acts whose reply is this message: several acts may have
    equal replies. `after` maps each next message to its node."""

    tips: list[Tip] = field(default_factory=list)
    after: dict[Canonical, Node] = field(default_factory=dict)

    def last_path(self) -> Iterator[Canonical]:
        """Follow the newest child from this node down to a leaf, and yield the messages on the way."""
        node = self
        while node.after:
            message, node = next(reversed(node.after.items()))
            yield message


@dataclass(frozen=True)
class Found:
    """The act `tip` that a request continues; `tip` is None if the request continues no act.

    The first `known` messages of the request are the messages of `tip`. If `same_row` is true, the request continues
    the row of `tip`. Otherwise it begins a new row, whose prompt begins with the tokens of that row up to the reply of
    `tip`. `origin` says in words why the request continues a row or begins a new row.
    """

    origin: str
    known: int = 0
    tip: Tip | None = None
    same_row: bool = False

    @property
    def continuation(self) -> Continuation | None:
        if self.tip is None:
            return None
        reply = self.tip.reply
        return Continuation(reply.generation, len(self.tip.messages), reply.row if self.same_row else None)

    def messages(self, given: Sequence[Message]) -> list[Message]:
        """The messages of the request, as the engine gets them. The known messages are taken from `tip`, because these
        match the tokens of its row, and the program may have spelled its own copies differently."""
        return [*(self.tip.messages if self.tip else ()), *given[self.known :]]

    @contextmanager
    def reserved(self) -> Iterator[None]:
        """Prevent other requests from continuing the row while the act runs. If the act fails, another request may
        continue the row."""
        if self.tip is None or not self.same_row:
            yield
            return
        self.tip.taken = True
        with ExitStack() as undo:
            undo.callback(setattr, self.tip, "taken", False)
            yield
            undo.pop_all()


class Tips:
    def __init__(self) -> None:
        self._roots: dict[tuple[str, str], Node] = {}

    def find(self, agent: str, tools: str, given: Sequence[Canonical]) -> Found:
        """Find the act that the request `given` continues. The transcript of this act, which includes its reply, is the
        longest known prefix of `given` that can be continued."""
        if given[-1].role == "assistant":
            # The agent replies to the last message, and it cannot reply to a message of an assistant.
            return Found("new: the last message is of the assistant")
        path, ended = _path(self._roots.get((agent, tools)), given), ""
        found = Found("new")
        for known in range(len(path) - 1, 0, -1):
            tips = [tip for tip in path[known].tips if tip.is_in(given)]
            if usable := [tip for tip in tips if tip.end is None]:
                found = _chosen(known, usable)
                break
            ended = ended or (tips[-1].end or "" if tips else "")
        if found.same_row:
            return found
        return replace(found, origin=f"{found.origin}: {ended or self._reason(agent, given, path)}")

    def _reason(self, agent: str, given: Sequence[Canonical], path: Sequence[Node]) -> str:
        """Explain why a request begins a row. `path` has the root and the nodes of the request's known messages."""
        roots = [root for (name, _), root in self._roots.items() if name == agent]
        if not roots:
            return f"the first request of {agent}"
        if max(len(_path(root, given)) for root in roots) > max(len(path), 1):
            return "the tools changed"
        known = len(path) - 1
        if not path:
            return "other tools, and another prompt"
        if known < len(given) and all(message.role != "assistant" for message in given):
            return "another prompt"
        return difference(list(path[-1].last_path()), given[known:], known)

    def add(self, agent: str, tools: str, given: Sequence[Canonical], replies: Iterable[Canonical], tip: Tip) -> None:
        """Add the act `tip` to the tree, below the messages `given`. `replies` are the spellings of its reply."""
        node = self._roots.setdefault((agent, tools), Node())
        for message in given:
            node = node.after.setdefault(message, Node())
        first, *others = replies
        tip.place, tip.spellings = len(given), frozenset([first, *others])
        one = node.after.setdefault(first, Node())
        tip.nodes = list({one, *(node.after.setdefault(other, one) for other in others)})
        for each in tip.nodes:
            each.tips.append(tip)


def remove(tip: Tip) -> None:
    """Remove an act whose reply reached no program. Another request can then continue the act before it."""
    for node in tip.nodes:
        node.tips.remove(tip)
    if tip.found.tip and tip.found.same_row:
        tip.found.tip.taken = False


def _path(root: Node | None, given: Iterable[Canonical]) -> list[Node]:
    """Return the root, and the nodes of the longest known prefix of `given`."""
    nodes = [root] if root else []
    for message in given:
        if not nodes or message not in nodes[-1].after:
            break
        nodes.append(nodes[-1].after[message])
    return nodes


def _chosen(known: int, tips: Sequence[Tip]) -> Found:
    """Choose among acts with equal replies: the last act whose row no request has continued or, if there is none, the
    last act."""
    tip = next((tip for tip in reversed(tips) if not tip.taken), tips[-1])
    if tip.taken:
        return Found(f"branched after {known} messages, as another request continued them", known, tip)
    return Found(f"continued after {known} messages", known, tip, same_row=True)
