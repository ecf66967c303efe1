"""The transcript of a session that was run without verl, for terminals and notebooks.

Text written by a model may be hostile, so control characters and marks that reorder text are escaped. The escape
character, for example, becomes `\\x1b`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from textwrap import indent

from verl_mas.run_folder.records import Record
from verl_mas.util.text import printable
from verl_mas.workflow.task import text_of

MOST = 4000  # limit of a text in a transcript; the record has the whole text


def as_text(record: Record) -> str:
    """Format the acts in order, each with the messages of its prompt that are in no earlier prompt."""
    seen: set[str] = set()
    among = Counter(map(_place, record["acts"]))
    lines = [*_boards(record, None)]
    for number, act in enumerate(record["acts"]):
        lines += [*_act(act, seen, among[_place(act)]), *_boards(record, number)]
    return "\n".join([*lines, _shown(_outcome(record["outcome"]))])


def _place(act: Record) -> tuple[object, ...]:
    """Key that all candidates of one prompt share."""
    return act["agent"], act["instance"], act["turn"], act["line"]


def _act(act: Record, seen: set[str], among: int) -> Iterator[str]:
    for message in act["messages"]:
        text = json.dumps(message, sort_keys=True, default=str)
        if text not in seen:
            seen.add(text)
            yield _shown(f"{message['role']}: {text_of(message)}", 1)
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
    probe = f", continuation {act['line']}" if act["probe"] else ""
    return f"{act['agent']}{instance}, turn {act['turn']}{candidate}{mark}{probe}"


def _facts(act: Record) -> str:
    reward = act["reward"]
    parts = [f"{name} {reward[name]:.4g}" for name in ("team", "local", "penalty") if reward[name]]
    split = f" ({', '.join(parts)})" if len(parts) > 1 else ""
    facts = [
        f"reward {reward['score']:.4g}{split}",
        f"{act['sampled_tokens']} tokens",
        *filter(None, [act.get("origin")]),
    ]
    if act["malformed"] is not None:
        facts.append(f"malformed: {act['malformed']}")
    if act["stop_reason"] == "length":
        facts.append("cut at its maximal length")
    return " · ".join(facts)


def _outcome(outcome: Record) -> str:
    reward, info = outcome["reward"], "".join(f" · {name} {value}" for name, value in outcome["info"].items())
    answer = "no answer" if outcome["answer"] is None else f"answer {outcome['answer']}"
    return f"{answer} · {'no team reward' if reward is None else f'team reward {reward:.4g}'}{info}"


def _boards(record: Record, after: int | None) -> Iterator[str]:
    for board in record["boards"]:
        if board["after"] == after:
            yield _shown(f"{board['title']}\n{board['text']}".strip("\n"), 1)


def _shown(text: str, level: int = 0) -> str:
    """Cut and indent a text, with unprintable characters escaped."""
    cut = text if len(text) <= MOST else f"{text[:MOST]}... ({len(text)} characters)"
    return indent(printable(cut), "  " * level, lambda line: True)
