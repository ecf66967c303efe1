"""Write the events of a proof as a page in Markdown, to post with a report: `python page.py proof.jsonl`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Event = Mapping[str, Any]
SHOWN = ("python", "verl-mas", "verl", "torch", "transformers", "vllm", "sglang", "flash-attn")


def page(events: Sequence[Event]) -> str:
    parts = (_head, _stages, _failures, _runs, _paths, _stock, _memory, _curve)
    return "\n".join(line for part in parts for line in part(events)) + "\n"


def _head(events: Sequence[Event]) -> Iterator[str]:
    yield "# GPU proof of verl-mas"
    for event in _of(events, "machine"):
        yield f"\n{event['gpus'] or 'CPU'}, {event['cores']} cores, {event['date']}"
    for event in _of(events, "versions"):
        yield f"\n{', '.join(f'{name} {event[name]}' for name in SHOWN if event.get(name))}"


def _stages(events: Sequence[Event]) -> Iterator[str]:
    yield from ("", "| stage | | checks | seconds |", "|---|---|---|---|")
    titles = {event["stage"]: event["title"] for event in _of(events, "start")}
    for event in _of(events, "end"):
        number = event["stage"]
        yield f"| {number} {titles[number]} | {event['status']} | {event['passed']} | {event['seconds']} |"


def _failures(events: Sequence[Event]) -> Iterator[str]:
    failed = [event for event in _of(events, "check") if event["passed"] is False]
    left_out = [event for event in _of(events, "check") if event["passed"] is None]
    yield from ["", "## Failed", ""] if failed else []
    for event in failed:
        yield f"- stage {event['stage']}: {event['what']}: `{str(event['value']).strip().splitlines()[-1][:300]}`"
    yield from ["", "## Not looked at", ""] if left_out else []
    for event in left_out:
        yield f"- stage {event['stage']}: {event['what']}: {event['skipped']}"


def _runs(events: Sequence[Event]) -> Iterator[str]:
    """Yield the seconds of the run's start, and a table with the seconds of each step's parts."""
    for event in _of(events, "run"):
        steps = event["steps"]
        yield from ("", f"## {event['name']}: seconds", "")
        if event["start"]:
            yield from ("; ".join(f"{name} {seconds}" for name, seconds in event["start"].items()), "")
        yield from (f"| step | {' | '.join(steps)} |", f"|---|{'---|' * len(steps)}")
        for part in sorted({key for step in steps.values() for key in step if "timing" in key}):
            yield f"| {part} | {' | '.join(_seconds(step.get(part)) for step in steps.values())} |"


def _paths(events: Sequence[Event]) -> Iterator[str]:
    for event in _of(events, "paths"):
        yield from (
            "",
            "## Paths of the trainer: seconds in each step",
            "",
            "| path | log-probs | update |",
            "|---|---|---|",
        )
        for name, parts in event["seconds"].items():
            yield f"| {name} | {' | '.join(', '.join(map(_seconds, seconds)) for seconds in parts.values())} |"
        shares = ", ".join(map(_seconds, event.get("shared_tokens", [])))
        yield from ("", f"Share of the tokens that trees do not compute: {shares}")


def _stock(events: Sequence[Event]) -> Iterator[str]:
    for event in _of(events, "beside stock"):
        seconds = ", ".join(f"{name} {_seconds(value)}" for name, value in event["seconds_without_rollout"].items())
        yield from ("", f"A step without rollout, in turn: {seconds} s; ratio {_seconds(event['ratio'])}")


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _memory(events: Sequence[Event]) -> Iterator[str]:
    for event in _of(events, "beside the plan"):
        yield from ("", f"## Memory beside `verl-mas plan` ({event['unit']})", "")
        yield from ("| moment | measured | planned | factor |", "|---|---|---|---|")
        for phase, row in event["moments"].items():
            factor = row["measured"] / row["planned"]
            yield f"| {phase} | {row['measured']} | {row['planned']} | {factor:.2f} |"


def _curve(events: Sequence[Event]) -> Iterator[str]:
    for event in _of(events, "curve"):
        steps = event["right"]
        yield from ("", "## The pretrained LLM, right of the held-out tasks", "")
        yield from (f"| step | {' | '.join(steps)} |", f"|---|{'---|' * len(steps)}")
        for title, values in (("the team", steps), ("messages of other tasks", event["with_messages_of_other_tasks"])):
            yield f"| {title} | {' | '.join(f'{values[step]:.2f}' if step in values else '-' for step in steps)} |"


def _of(events: Sequence[Event], kind: str) -> list[Event]:
    return [event for event in events if event["event"] == kind]


if __name__ == "__main__":
    lines = Path(sys.argv[1]).read_text().splitlines()
    sys.stdout.write(page([json.loads(line) for line in lines]))
