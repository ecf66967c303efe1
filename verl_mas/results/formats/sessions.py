"""Sessions of a run and messages of their acts, prepared for the formats of other tools."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence

from verl_mas.errors import DataError
from verl_mas.results.sessions.reader import SessionIndex
from verl_mas.results.sessions.run import RunFolder
from verl_mas.run_folder.records import Record


def records_of(run: RunFolder, part: str, steps: tuple[int, int] | None, counts: Counter[str]) -> Iterator[Record]:
    """Yield the records of a run. `counts` gets the number of yielded sessions and, per reason, the number of skipped
    sessions."""
    first, last = steps or (0, float("inf"))
    index = SessionIndex(run.trajectories, partitions=(part,)) if run.trajectories else None
    entries = [entry for entry in index.entries if first <= max(entry.step, 0) <= last] if index else []
    if index is None or not entries:
        value = f"{run.folder} has no sessions of {part}" + (f" in --steps {first}-{last}" if steps else "")
        rule = "mas.trajectories.enabled=true writes them to trajectories/ of its run, or to mas.trajectories.dir"
        raise DataError(value, rule=rule, fix="set it, wait for the first step, or give other --steps or --validation")
    counts["sessions skipped: the run did not record them (sampling_rate, max_gib)"] = index.left_out
    for record in index.records(entries):
        counts["sessions"] += 1
        yield record
    counts["sessions skipped: damaged records"] = len(entries) - counts["sessions"]


def act_messages(act: Record) -> tuple[list[Record], list[Record]]:
    """Return the prompt of an act and the messages that it added, in OpenAI's form: contents are text, calls have ids,
    and their arguments are JSON."""
    messages, waiting = list[Record](), list[str]()
    added = act.get("steps") or [{"role": "assistant", "content": act["text"]}]
    for number, message in enumerate([*act["messages"], *added]):
        one: Record = {"role": message["role"], "content": as_text(message.get("content"))}
        for place, call in enumerate(message.get("tool_calls") or []):
            function, arguments = call["function"], call["function"].get("arguments") or {}
            text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            made = {"id": call.get("id") or f"call_{number}_{place}", "type": "function"}
            one.setdefault("tool_calls", []).append({**made, "function": {"name": function["name"], "arguments": text}})
        waiting = [call["id"] for call in one.get("tool_calls", [])] or waiting
        if message["role"] == "tool" and (call := message.get("tool_call_id") or next(iter(waiting), None)):
            one["tool_call_id"], waiting = call, [other for other in waiting if other != call]
        messages.append(one)
    return messages[: len(act["messages"])], messages[len(act["messages"]) :]


def as_text(content: str | Sequence[Record] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.get("text") or f"[{part['type']}]" for part in content)
