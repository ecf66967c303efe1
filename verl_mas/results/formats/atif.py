"""Harbor's trajectories (ATIF): one file per session. Trajectories that other tools wrote can be read as well."""

import json
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path

from verl_mas.errors import DataError
from verl_mas.results.formats.sessions import act_messages, as_text
from verl_mas.run_folder.disk import replaced
from verl_mas.run_folder.records import SCHEMA, Record, question_of
from verl_mas.util import installed_version
from verl_mas.workflow.client import ToolCall

PLACE = "messages"
VERSION = "ATIF-v1.7"
# Source of a step -> role of the message in OpenAI's form.
ROLES = {"user": "user", "agent": "assistant", "system": "system"}


def write_trajectories(records: Iterable[Record], out: Path, counts: Counter[str], team: str) -> None:
    with replaced(out) as folder:
        for number, record in enumerate(records):
            name = f"{max(record['step'], 0):06d}-{number:06d}-{record['uid']}_{record['session']}.json"
            text = json.dumps(_of_team(record, team))
            (folder / re.sub(r"[^\w.-]", "_", name)).write_text(text)
            counts["images replaced by [image]"] += text.count("[image]")


def _of_team(record: Record, team: str) -> Record:
    """Make a trajectory with a step for each act. It embeds a trajectory per agent; rewards are in the `extra` of a
    step."""
    key, steps = f"{record['uid']}_{record['session']}", [Record(source="user", message=question_of(record))]
    of_agents, written = defaultdict[str, list[Record]](list), defaultdict[str, list[Record]](list)
    starts = defaultdict[str, int](int)
    for act in record["acts"]:
        (prompt, reply), agent, own = act_messages(act), act["agent"], of_agents[act["agent"]]
        time = datetime.fromtimestamp(record["started"] + act["started"], timezone.utc).isoformat()
        # If a prompt continues the agent's last act, write only the messages after that act.
        known = written[agent][starts[agent] :]
        new = prompt[len(known) :] if prompt[: len(known)] == known else prompt
        written[agent] += new + reply
        starts[agent] = len(written[agent]) - len(prompt + reply)
        for message in new:
            _add(own, message, is_copied_context=True)
        for message in reply:
            _add(own, message, timestamp=time, model_name=act["policy"])
        own[-1] |= _numbers(act, sum(message["role"] == "assistant" for message in reply))
        # Indices in the messages of the agent: start of the prompt, start of the reply, end of the reply.
        own[-1]["extra"][PLACE] = [starts[agent], len(written[agent]) - len(reply), len(written[agent])]
        result = {"content": act["text"], "subagent_trajectory_ref": [{"trajectory_id": f"{key}_{agent}"}]}
        step = {"source": "agent", "message": "", "timestamp": time, "llm_call_count": 0, "extra": {"agent": agent}}
        steps.append({**step, "observation": {"results": [result]}})
    parts = [_trajectory(agent, f"{key}_{agent}", own) for agent, own in of_agents.items()]
    made = _trajectory(team, key, steps) | {"session_id": key, "subagent_trajectories": parts}
    return made | {"extra": {name: record[name] for name in record.keys() - {"acts"}}}


def _trajectory(name: str, place: str, steps: list[Record]) -> Record:
    agent = {"name": name, "version": installed_version("verl-mas") or "unknown"}
    numbered = [{"step_id": number, **step} for number, step in enumerate(steps, 1)]
    return {"schema_version": VERSION, "trajectory_id": place, "agent": agent, "steps": numbered}


def _add(steps: list[Record], message: Record, **of_reply: object) -> None:
    """Add a message as a step. The result of a tool is an observation of the step that called it."""
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
    """Return token counts and log-probs of an act, with the texts of its tokens, because records have no token ids."""
    sampled, tokens = act["sampled_tokens"], act["tokens"] or []
    log_probs = [log_prob for _, log_prob in tokens if log_prob is not None]
    metrics = {"prompt_tokens": act["prompt_tokens"] + act["response_tokens"] - sampled, "completion_tokens": sampled}
    if log_probs and len(log_probs) == sampled:
        metrics |= {"logprobs": log_probs, "extra": {"tokens": [text for text, _ in tokens]}}
    rest = act.keys() - {"messages", "text", "steps", "tokens"}
    return {"llm_call_count": requests, "metrics": metrics, "extra": {name: act[name] for name in rest}}


def trajectories(folder: Path) -> list[Path]:
    """List the trajectories in a folder. Other JSON files, which Harbor's folders also have, are skipped."""
    return [path for path in sorted(folder.rglob("*.json")) if '"ATIF-v' in path.read_text(errors="replace")]


def read_trajectories(paths: Iterable[Path], counts: Counter[str]) -> Iterator[Record]:
    """Read a record from each file. In files of other tools, every reply of a model is an act without a reward."""
    for path in paths:
        try:
            record = _record(json.loads(path.read_text()), path, counts)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            value, rule = f"{path}: {type(error).__name__}: {error}", "it is a whole trajectory of Harbor's format"
            raise DataError(value, rule=rule, fix="write it again, or remove it") from error
        counts["sessions"] += 1
        yield record


def _record(whole: Record, path: Path, counts: Counter[str]) -> Record:
    parts, ours = whole.get("subagent_trajectories") or [], whole.get("extra") or {}
    if "schema" not in ours:
        acts = [act for part in (whole, *parts) for act in _replies(part, counts)]
        name = whole.get("session_id") or whole.get("trajectory_id") or str(path)
        return {"step": 0, "uid": name, "session": 0, "status": "finished", "acts": acts}
    if ours["schema"] != SCHEMA:
        raise ValueError(f"a session of schema {ours['schema']}, and not {SCHEMA}")
    of_agents = {part["trajectory_id"]: deque(_acts(part)) for part in parts}
    results = [result for step in whole["steps"][1:] for result in step["observation"]["results"]]
    order = [result["subagent_trajectory_ref"][0]["trajectory_id"] for result in results]
    return {**ours, "acts": [of_agents[name].popleft() for name in order]}


def _acts(part: Record) -> Iterator[Record]:
    messages = [message for step in part["steps"] for message in _messages(step)]
    for step in part["steps"]:
        if PLACE in (own := step.get("extra") or {}):
            start, middle, end = own[PLACE]
            numbers = step["metrics"]
            texts = numbers.get("extra", {}).get("tokens", [])
            tokens = [list(pair) for pair in zip(texts, numbers.get("logprobs", []), strict=True)]
            yield {**own, "tokens": tokens or None, **_texts(messages[start:middle], messages[middle:end])}


def _replies(part: Record, counts: Counter[str]) -> Iterator[Record]:
    messages, agent = list[Record](), part["agent"]
    for step in part["steps"]:
        counts["replies without their reasoning"] += bool(step.get("reasoning_content"))
        before = list(messages)
        messages += _messages(step)
        if step["source"] == "agent" and not step.get("is_copied_context") and step.get("llm_call_count") != 0:
            model = step.get("model_name") or agent.get("model_name") or agent["name"]
            about = {"agent": agent["name"], "policy": model, "reward": {"score": None}, "probe": False}
            yield {**about, **_texts(before, messages[len(before) :][:1])}


def _texts(prompt: list[Record], reply: list[Record]) -> Record:
    last, plain = reply[-1], len(reply) == 1 and "tool_calls" not in reply[0]
    return {"messages": prompt, "text": last["content"], "steps": [] if plain else reply}


def _messages(step: Record) -> list[Record]:
    """Return the message of a step and the results of the tools that it called."""
    written: Record = {"role": ROLES[step["source"]], "content": as_text(step["message"])}
    for call in step.get("tool_calls") or []:
        arguments = call["arguments"]
        text = arguments["unreadable"] if arguments.keys() == {"unreadable"} else json.dumps(arguments)
        function = {"name": call["function_name"], "arguments": text}
        made = {"id": call["tool_call_id"], "type": "function", "function": function}
        written.setdefault("tool_calls", []).append(made)
    messages = [written]
    for result in (step.get("observation") or {}).get("results") or []:
        known = {"tool_call_id": result["source_call_id"]} if result.get("source_call_id") else {}
        messages.append({"role": "tool", "content": as_text(result.get("content")), **known})
    return messages
