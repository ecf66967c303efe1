"""Sessions as OpenTelemetry spans."""

import json
from collections import Counter

from view_runs import act, session

from verl_mas.results.formats.otel import write_spans


def test_a_session_is_a_line_and_a_trace_with_a_span_per_act(tmp_path):
    called = {"name": "press", "arguments": "{}", "result": "red is on"}
    acts = [act(advantage=0.5, reward={"score": 0.25}), act("checker", tool_calls=[called])]
    sessions = [session(acts=acts, attempt="a"), session(status="dropped", number=1, attempt="a")]
    write_spans(sessions, tmp_path / "spans", Counter(), "team")
    traces = [json.loads(line) for line in (tmp_path / "spans").read_text().splitlines()]
    spans, dropped = (trace["resourceSpans"][0]["scopeSpans"][0]["spans"] for trace in traces)
    assert [span["name"] for span in spans] == ["invoke_workflow team", "chat main", "invoke_agent checker"]
    assert {span["parentSpanId"] for span in spans[1:]} == {spans[0]["spanId"]} and dropped[0]["status"]["code"] == 2
    assert spans[0]["traceId"] != dropped[0]["traceId"] and len({span["spanId"] for span in spans}) == 3
    about = {pair["key"]: next(iter(pair["value"].values())) for pair in spans[1]["attributes"]}
    assert (about["gen_ai.usage.input_tokens"], about["gen_ai.evaluation.score.value"]) == ("8", 0.25)
    (reply,) = json.loads(about["gen_ai.output.messages"])
    assert reply["parts"] == [{"type": "text", "content": "Answer: 4"}] and reply["finish_reason"] == "stop"
