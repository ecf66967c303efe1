"""Session records as Harbor's trajectories (ATIF), as chats to fine-tune on, and as pairs of replies to one prompt."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path

from verl_mas.errors import DataError
from verl_mas.run_folder.disk import replaced, whole_file
from verl_mas.run_folder.records import Record, question_of
from verl_mas.sessions.reader import SessionIndex
from verl_mas.sessions.run import RunFolder
from verl_mas.util import installed_version
from verl_mas.workflow.client import ToolCall

CUT = re.compile(r"\.\.\. \(\d+ characters\)$")  # How a text ends that `mas.trajectories.max_text_chars` cut


def records_of(run: RunFolder, part: str, steps: tuple[int, int] | None, counts: Counter[str]) -> Iterator[Record]:
    """`counts`: how many sessions there were, and what is left out, by reason."""
    first, last = steps or (0, float("inf"))
    index = SessionIndex(run.trajectories, partitions=(part,)) if run.trajectories else None
    entries = [entry for entry in index.entries if first <= max(entry.step, 0) <= last] if index else []
    if index is None or not entries:
        value = f"{run.folder} has no sessions of {part}" + (f" in --steps {first}-{last}" if steps else "")
        rule = "mas.trajectories.enabled=true writes them to trajectories/ of its run, or to mas.trajectories.dir"
        raise DataError(value, rule=rule, fix="set it, wait for the first step, or give other --steps or --validation")
    counts["sessions left out that the run did not record (sampling_rate, max_gib)"] = index.left_out
    for entry in entries:
        try:
            record = index.read(entry)
        except DataError:
            counts["sessions left out with a damaged record"] += 1
        else:
            counts["sessions"] += 1
            yield record


def act_messages(act: Record) -> tuple[list[Record], list[Record]]:
    """The prompt of an act, and what it added, as texts in OpenAI's form: calls have ids, and arguments in JSON."""
    messages, waiting = list[Record](), list[str]()
    added = act.get("steps") or [{"role": "assistant", "content": act["text"]}]
    for number, message in enumerate([*act["messages"], *added]):
        parts = message.get("content") or ""
        content = parts if isinstance(parts, str) else "".join(p.get("text") or f"[{p['type']}]" for p in parts)
        one: Record = {"role": message["role"], "content": content}
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


def chats(records: Iterable[Record], counts: Counter[str], min_reward: float | None = None) -> Iterator[Record]:
    for act in _acts_of_whole_texts(records, counts):
        if min_reward is not None and act["reward"] < min_reward:
            counts[f"acts left out with a reward below {min_reward:g}"] += 1
        else:
            yield {"messages": act.pop("prompt") + act.pop("reply"), **act}


def preferences(records: Iterable[Record], counts: Counter[str]) -> Iterator[Record]:
    """A pair for each prompt that acts of one agent share within the sessions of a task: its best and its worst."""
    by_prompt = defaultdict(list)
    for act in _acts_of_whole_texts(records, counts):
        by_prompt[act["step"], act["task"], act["agent"], json.dumps(act["prompt"])].append(act)
    for acts in by_prompt.values():
        best, worst = (choose(acts, key=lambda act: act["reward"]) for choose in (max, min))
        if best["reward"] == worst["reward"] or best["reply"] == worst["reply"]:
            counts["acts left out as no other one of agent and task has the prompt and another reward"] += len(acts)
        else:
            counts["acts left out between the best and the worst of their prompt"] += len(acts) - 2
            pair = {"chosen": best["reply"], "rejected": worst["reply"]}
            pair |= {"reward_chosen": best["reward"], "reward_rejected": worst["reward"]}
            yield pair | {name: best[name] for name in ("prompt", "agent", "policy", "step", "task")}


def _acts_of_whole_texts(records: Iterable[Record], counts: Counter[str]) -> Iterator[Record]:
    for record in records:
        place = {"step": record["step"], "session": f"{record['uid']}_{record['session']}", "task": record["uid"]}
        for act in record["acts"]:
            prompt, reply = act_messages(act)
            texts = [message["content"] for message in prompt + reply]
            if record["status"] != "finished":
                counts[f"acts left out of sessions that were {record['status']}"] += 1
            elif act["probe"]:
                counts["acts left out that only tell how a candidate ends"] += 1
            elif any("[image]" in text for text in texts):
                counts["acts left out with an [image]"] += 1
            elif any(map(CUT.search, texts)):
                counts["acts left out with a text that mas.trajectories.max_text_chars cut"] += 1
            else:
                numbers = {"agent": act["agent"], "policy": act["policy"], "reward": float(act["reward"]["score"])}
                yield {"prompt": prompt, "reply": reply, **numbers, **place}


def write_table(rows: Iterable[Record], out: Path, counts: Counter[str]) -> None:
    import pyarrow.parquet

    if not (found := list(rows)):
        rule = "a row is an act, or two acts with one prompt and different rewards"
        raise DataError(f"no rows: {dict(counts)}", rule=rule, fix="use other --steps, or a lower --min-reward")
    with whole_file(out) as new:
        # Calls are a field only if a message has one: some chat templates take an empty field for a call.
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(found), new)
    counts["rows"] = len(found)


def write_trajectories(records: Iterable[Record], out: Path, counts: Counter[str], team: str) -> None:
    with replaced(out) as folder:
        for number, record in enumerate(records):
            name = f"{max(record['step'], 0):06d}-{number:06d}-{record['uid']}_{record['session']}.json"
            text = json.dumps(_of_team(record, team))
            (folder / re.sub(r"[^\w.-]", "_", name)).write_text(text)
            counts["images left out, with [image] in their place"] += text.count("[image]")


def _of_team(record: Record, team: str) -> Record:
    """A trajectory that has a step for each act, and embeds those of the agents. Rewards are in `extra` of a step."""
    key, steps = f"{record['uid']}_{record['session']}", [Record(source="user", message=question_of(record))]
    of_agents, known = defaultdict[str, list[Record]](list), defaultdict[str, list[Record]](list)
    for act in record["acts"]:
        (prompt, reply), agent, own = act_messages(act), act["agent"], of_agents[act["agent"]]
        time = datetime.fromtimestamp(record["started"] + act["started"], timezone.utc).isoformat()
        # A prompt that continues the agent's last act is written from its end.
        before = len(known[agent])
        for message in prompt[before:] if prompt[:before] == known[agent] else prompt:
            _add(own, message, is_copied_context=True)
        for message in reply:
            _add(own, message, timestamp=time, model_name=act["policy"])
        own[-1] |= _numbers(act, sum(message["role"] == "assistant" for message in reply))
        known[agent] = prompt + reply
        result = {"content": act["text"], "subagent_trajectory_ref": [{"trajectory_id": f"{key}_{agent}"}]}
        step = {"source": "agent", "message": "", "timestamp": time, "llm_call_count": 0, "extra": {"agent": agent}}
        steps.append({**step, "observation": {"results": [result]}})
    parts = [_trajectory(agent, f"{key}_{agent}", own) for agent, own in of_agents.items()]
    made = _trajectory(team, key, steps) | {"session_id": key, "subagent_trajectories": parts}
    return made | {"extra": {name: record[name] for name in record.keys() - {"acts"}}}


def _trajectory(name: str, place: str, steps: list[Record]) -> Record:
    agent = {"name": name, "version": installed_version("verl-mas") or "unknown"}
    numbered = [{"step_id": number, **step} for number, step in enumerate(steps, 1)]
    return {"schema_version": "ATIF-v1.7", "trajectory_id": place, "agent": agent, "steps": numbered}


def _add(steps: list[Record], message: Record, **of_reply: object) -> None:
    """A step of the message; the result of a tool is an observation of the step that called it."""
    role, content = message["role"], message["content"]
    if role == "tool" and steps and steps[-1]["source"] == "agent":
        known = message.get("tool_call_id") in [call["tool_call_id"] for call in steps[-1].get("tool_calls", [])]
        result = {"content": content, **({"source_call_id": message["tool_call_id"]} if known else {})}
        steps[-1].setdefault("observation", {"results": []})["results"].append(result)
        return
    step = {"source": {"assistant": "agent", "user": "user"}.get(role, "system"), "message": content}
    for call in message.get("tool_calls", []):
        name, text = call["function"]["name"], call["function"]["arguments"]
        arguments = {"unreadable": text} if (read := ToolCall(name, text).parameters) is None else read
        called = {"tool_call_id": call["id"], "function_name": name, "arguments": arguments}
        step.setdefault("tool_calls", []).append(called)
    steps.append(step | (of_reply if role == "assistant" else {}))


def _numbers(act: Record, requests: int) -> Record:
    """Of all requests of the act. Records have the text of a token, and not its id."""
    sampled, tokens = act["sampled_tokens"], act["tokens"] or []
    log_probs = [log_prob for _, log_prob in tokens if log_prob is not None]
    metrics = {"prompt_tokens": act["prompt_tokens"] + act["response_tokens"] - sampled, "completion_tokens": sampled}
    if log_probs and len(log_probs) == sampled:
        metrics |= {"logprobs": log_probs, "extra": {"tokens": [text for text, _ in tokens]}}
    rest = act.keys() - {"messages", "text", "steps", "tokens"}
    return {"llm_call_count": requests, "metrics": metrics, "extra": {name: act[name] for name in rest}}
