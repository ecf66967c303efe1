"""A session record as a transcript, for terminals and notebooks.

Model-written text is hostile, so control characters, and marks that reorder text, are escaped, for example to `\\x1b`.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from textwrap import indent

from verl_mas.run_folder.records import Record
from verl_mas.util.text import printable
from verl_mas.workflow.task import text_of

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
    probe = f", played on: {act['line']}" if act["probe"] else ""
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
