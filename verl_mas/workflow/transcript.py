"""A session record as a transcript, for terminals and notebooks.

Model-written text is hostile: what a terminal would obey, and marks that reorder text, are shown as `\\x1b`.
"""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verl_mas.run_folder.records import Record
from verl_mas.util.text import printable
from verl_mas.workflow.task import text_of

if TYPE_CHECKING:
    from rich.text import Text

MOST = 4000  # longer texts are cut: the record has all of it
# Of each kind of part: its style in terminals, and in HTML.
STYLES = {
    "session": ("bold", "font-weight:600"),
    "act": ("bold cyan", "font-weight:600;color:#0b7285"),
    "candidate": ("dim cyan", "color:#868e96"),
    "facts": ("dim", "color:#868e96"),
    "prompt": ("dim", "color:#868e96;white-space:pre-wrap"),
    "reply": ("", "white-space:pre-wrap"),
    "call": ("yellow", "color:#e67700;white-space:pre-wrap"),
    "board": ("", "font-family:monospace;white-space:pre;line-height:1.1"),
    "fault": ("red", "color:#c92a2a;white-space:pre-wrap"),
    "outcome": ("bold green", "font-weight:600;color:#2b8a3e"),
}


@dataclass(frozen=True)
class Paragraph:
    """What it is, its text, of which every character prints, and how far it is indented."""

    kind: str
    text: str
    level: int = 0

    @property
    def indented(self) -> str:
        margin = "  " * self.level
        return margin + self.text.replace("\n", f"\n{margin}")


def paragraphs_of(record: Record) -> Iterator[Paragraph]:
    """The transcript: acts in order, each with the messages of its prompt that no act before it had."""
    yield Paragraph("session", _heading(record))
    seen: set[str] = set()
    yield from _boards(record, None)
    among = Counter(map(_place, record["acts"]))
    for number, act in enumerate(record["acts"]):
        yield from _act(act, seen, among[_place(act)])
        yield from _boards(record, number)
    for fault in record["faults"]:
        yield Paragraph("fault", _shown(f"{fault['kind']}: {fault['cause']}\n{fault.get('traceback') or ''}".rstrip()))
    yield Paragraph("outcome", _outcome(record["outcome"]))


def as_text(record: Record) -> str:
    return "\n".join(part.indented for part in paragraphs_of(record))


def as_rich(record: Record) -> Text:
    """Styled text for a terminal; nothing in it is read as markup."""
    from rich.text import Text

    return Text("\n").join(Text(part.indented, style=STYLES[part.kind][0]) for part in paragraphs_of(record))


def as_html(record: Record) -> str:
    """For notebooks."""
    lines = [
        f'<div style="margin-left:{2 * part.level}em;{STYLES[part.kind][1]}">{html.escape(part.text)}</div>'
        for part in paragraphs_of(record)
    ]
    return f'<div style="font-family:sans-serif;max-width:60em">{"".join(lines)}</div>'


def _heading(record: Record) -> str:
    status = f"{record['partition']} · {record['status']} · " if record.get("status") else ""
    acts = sum(not act["probe"] for act in record["acts"])
    return _shown(f"Session {record['uid']}_{record['session']} · step {record['step']} · {status}acts {acts}")


def _place(act: Record) -> tuple[object, ...]:
    """Candidates of one prompt have the same."""
    return act["agent"], act["instance"], act["turn"], act["line"]


def _act(act: Record, seen: set[str], among: int) -> Iterator[Paragraph]:
    kind = "act" if act["committed"] or act["probe"] else "candidate"
    for message in act["messages"]:
        text = json.dumps(message, sort_keys=True, default=str)
        if text not in seen:
            seen.add(text)
            yield Paragraph("prompt", _shown(f"{message.get('role')}: {_content(message)}"), 1)
    yield Paragraph(kind, _shown(_title(act, among)))
    yield Paragraph("facts", _shown(_facts(act)), 1)
    yield Paragraph("reply", _shown(act["text"] or "(empty)"), 1)
    for call in act["tool_calls"]:
        result = call["result"] if call["error"] is None else f"error: {call['error']}"
        yield Paragraph("call", _shown(f"{call['name']}({call['arguments']}) -> {result}"), 2)


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
    return _shown(f"{answer} · {'no team reward' if reward is None else f'team reward {reward:.4g}'}{info}")


def _boards(record: Record, after: int | None) -> Iterator[Paragraph]:
    for board in record["boards"]:
        if board["after"] == after:
            yield Paragraph("board", _shown(f"{board['title']}\n{board['text']}".strip("\n")), 1)


def _content(message: Mapping[str, object]) -> str:
    content = message.get("content")
    others = [part.get("type") for part in content if part.get("type") != "text"] if isinstance(content, list) else []
    return text_of(dict(message)) + "".join(f" [{kind}]" for kind in others)


def _shown(text: str) -> str:
    cut = text if len(text) <= MOST else f"{text[:MOST]}... ({len(text)} characters)"
    return printable(cut)
