"""Harbor's trajectories, ATIF: a file per session."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path

from verl_mas.formats.sessions import act_messages
from verl_mas.run_folder.disk import replaced
from verl_mas.run_folder.records import Record, question_of
from verl_mas.util import installed_version
from verl_mas.workflow.client import ToolCall


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
