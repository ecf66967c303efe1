"""Sessions as OpenTelemetry spans in OTLP/JSON, one line and one trace per session, with the attributes of the GenAI
conventions.

The root span of a session is `invoke_workflow`. Each act is a child span: `chat`, or `invoke_agent` if the act called
tools, because such an act makes several requests.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path

from verl_mas.results.formats.sessions import act_messages
from verl_mas.run_folder.disk import whole_file
from verl_mas.run_folder.records import Record
from verl_mas.util import installed_version

INTERNAL, CLIENT, FAILED = 1, 3, 2


def write_spans(records: Iterable[Record], out: Path, counts: Counter[str], team: str) -> None:
    with whole_file(out) as new, new.open("w") as lines:
        for record in records:
            text = json.dumps(trace(record, team))
            lines.write(f"{text}\n")
            counts["images replaced by [image]"] += text.count("[image]")


def trace(record: Record, team: str) -> Record:
    session = f"{record['uid']}_{record['session']}"
    trace_id = blake2b(f"{record['attempt']} {record['partition']} {session}".encode(), digest_size=16).hexdigest()
    about = {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": team,
        "gen_ai.conversation.id": session,
        "gen_ai.evaluation.score.value": record["outcome"]["reward"],
        **{f"verl_mas.{name}": record[name] for name in ("step", "partition", "status", "attempt")},
        "verl_mas.answer": record["outcome"]["answer"],
        "verl_mas.faults": [fault["kind"] for fault in record["faults"]],
    }
    root = _span(trace_id, 0, f"invoke_workflow {team}", record["started"], record["seconds"], about)
    if record["status"] != "finished":
        root["status"] = {"code": FAILED, "message": record["status"]}
    spans = [root]
    for number, act in enumerate(record["acts"], 1):
        start, about = record["started"] + act["started"], _attributes(act, session)
        operation = about["gen_ai.operation.name"]
        name = f"{operation} {act['agent'] if act['tool_calls'] else act['policy']}"
        span = _span(trace_id, number, name, start, act["seconds"], about)
        spans.append({**span, "parentSpanId": root["spanId"], "kind": INTERNAL if act["tool_calls"] else CLIENT})
    scope = {"name": "verl-mas", "version": installed_version("verl-mas") or "unknown"}
    resource = {"attributes": _pairs({"service.name": team})}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": scope, "spans": spans}]}]}


def _attributes(act: Record, session: str) -> dict[str, object]:
    prompt, reply = act_messages(act)
    reason = act["stop_reason"]
    replied = [{**message, "finish_reason": reason or "unknown"} for message in _messages(reply)]
    return {
        "gen_ai.operation.name": "invoke_agent" if act["tool_calls"] else "chat",
        "gen_ai.provider.name": "verl-mas",
        "gen_ai.agent.name": act["agent"],
        "gen_ai.conversation.id": session,
        "gen_ai.request.model": act["policy"],
        "gen_ai.request.temperature": act["temperature"],
        "gen_ai.response.finish_reasons": [reason] if reason else None,
        "gen_ai.usage.input_tokens": act["prompt_tokens"] + act["response_tokens"] - act["sampled_tokens"],
        "gen_ai.usage.output_tokens": act["sampled_tokens"],
        "gen_ai.input.messages": json.dumps(_messages(prompt)),
        "gen_ai.output.messages": json.dumps(replied),
        "gen_ai.evaluation.score.value": float(act["reward"]["score"]),
        "verl_mas.advantage": act["advantage"],
        **{
            f"verl_mas.{name}": act[name] for name in ("turn", "branch", "committed", "trainable", "probe", "malformed")
        },
    }


def _messages(messages: list[Record]) -> list[Record]:
    return [{"role": message["role"], "parts": _parts(message)} for message in messages]


def _parts(message: Record) -> list[Record]:
    content = message["content"]
    if message["role"] == "tool":
        return [{"type": "tool_call_response", "id": message.get("tool_call_id"), "response": content}]
    calls = [{"type": "tool_call", "id": call["id"], **call["function"]} for call in message.get("tool_calls", [])]
    return [{"type": "text", "content": content}, *calls]


def _span(trace_id: str, number: int, name: str, start: float, seconds: float, about: Mapping[str, object]) -> Record:
    span_id = blake2b(f"{trace_id} {number}".encode(), digest_size=8).hexdigest()
    begin, end = (str(round(1e9 * moment)) for moment in (start, start + seconds))
    times = {"startTimeUnixNano": begin, "endTimeUnixNano": end}
    named = {"traceId": trace_id, "spanId": span_id, "name": name, "kind": INTERNAL}
    return {**named, **times, "attributes": _pairs(about)}


def _pairs(about: Mapping[str, object]) -> list[Record]:
    return [{"key": key, "value": _value(value)} for key, value in about.items() if value is not None]


def _value(value: object) -> Record:
    if isinstance(value, list):
        return {"arrayValue": {"values": list(map(_value, value))}}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": str(value)}
