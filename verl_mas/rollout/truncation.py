"""Shortens prompts that are too long: drops the oldest messages after the opening, or cuts the longest text."""

from bisect import bisect_right
from collections.abc import Callable, Sequence

from verl_mas.errors import FaultKind, SessionFault
from verl_mas.workflow.client import Message

CUT = "\n[...]\n"
Count = Callable[[Sequence[Message]], int]


def fit(messages: Sequence[Message], limit: int, rule: str, count: Count, opening: int = 0) -> list[Message]:
    """Shorten the messages to at most `limit` tokens. `rule`: error, drop_oldest or middle. `drop_oldest` keeps the
    first `opening` messages, and in any case all messages up to the first user message. Raises SessionFault if the rule
    is error and the messages are too long, or if they cannot be shortened enough."""
    length = count(messages)
    if length <= limit:
        return list(messages)
    fitted = None
    if rule == "drop_oldest":
        fitted = _drop_oldest(list(messages), limit, count, opening)
    elif rule == "middle":
        fitted = _cut_middle(list(messages), limit, count)
    if fitted is None:
        raise SessionFault(
            FaultKind.LIMIT,
            f"a prompt of {length} tokens does not fit in {limit}, truncation is {rule!r}; "
            "raise rollout.prompt_length or the agent's max_prompt_length, or choose another truncation",
        )
    return fitted


def _drop_oldest(messages: list[Message], limit: int, count: Count, opening: int) -> list[Message] | None:
    """Drop messages between the opening and the last one, oldest first."""
    first_user = next((place for place, message in enumerate(messages) if message["role"] == "user"), 0)
    opening = max(opening, first_user + 1)
    kept = messages
    while len(kept) > opening + 1:
        kept = [*kept[:opening], *kept[opening + 1 :]]
        # A template may refuse two consecutive messages of the same role. So a user message that follows the dropped
        # message is dropped, too.
        if len(kept) > opening + 1 and kept[opening]["role"] == "user":
            kept = [*kept[:opening], *kept[opening + 1 :]]
        if count(kept) <= limit:
            return kept
    return None


def _cut_middle(messages: list[Message], limit: int, count: Count) -> list[Message] | None:
    """Cut as little as possible out of the middle of the longest text."""
    place = max(range(len(messages)), key=lambda i: _length(messages[i]))
    text = messages[place]["content"]
    if not isinstance(text, str):
        return None

    def keeping(chars: int) -> list[Message]:
        head, tail = chars - chars // 2, chars // 2
        short = text[:head] + CUT + text[len(text) - tail :]
        return [*messages[:place], {**messages[place], "content": short}, *messages[place + 1 :]]

    lengths = range(max(1, len(text) - len(CUT)))
    fitting = bisect_right(lengths, limit, key=lambda chars: count(keeping(chars)))
    return keeping(fitting - 1) if fitting else None


def _length(message: Message) -> int:
    content = message.get("content")
    return len(content) if isinstance(content, str) else 0
