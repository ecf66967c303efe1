"""Parsing and formatting of each protocol."""

import json

import pytest
from gateway_sessions import tools

from verl_mas.gateway.dialect import DIALECTS, ApiError, Fields, Served
from verl_mas.gateway.tips import canonical
from verl_mas.verl_.row import Act
from verl_mas.workflow.client import Generation, ToolCall
from verl_mas.workflow.reply import Reply

CALL = ToolCall("add", '{"a": 1}', "c00000001")
NOISE = ToolCall("add", "no JSON", "c00000002")
FLAT = [{"type": "function", "name": "add", "parameters": {}}]
OF_ANTHROPIC = [{"name": "add", "input_schema": {}}]


def read(dialect: str, **body: object):
    return DIALECTS[dialect].read(Fields.of(json.dumps({"model": "solver", **body}).encode()))


def served(text: str = "4", *called: ToolCall, stopped_by: str | None = None, **generation: object) -> Served:
    made = Generation(text, prompt_ids=[1, 2, 3], response_ids=[4, 5], sampled=2, tool_calls=called, **generation)
    return Served("act_1", Reply(Act("solver", "solver", "main"), [], made), text, called, stopped_by)


def bodies(dialect: str, reply: Served) -> list[dict]:
    """Format the reply as one body, and as the data of its stream."""
    how = DIALECTS[dialect]
    asked = read(dialect, **{"input" if dialect == "responses" else "messages": [{"role": "user", "content": "q"}]})
    events = "".join(how.events(asked, reply)).split("\n\n")
    data = [line.removeprefix("data: ") for event in events for line in event.splitlines() if line.startswith("data")]
    return [how.whole(asked, reply), *(json.loads(each) for each in data if each != "[DONE]")]


def as_sent_back(dialect: str, reply: Served) -> list[dict]:
    """Parse the messages of a request that sends the reply back."""
    whole = bodies(dialect, reply)[0]
    if dialect == "chat":
        return read("chat", messages=[whole["choices"][0]["message"]]).messages
    if dialect == "responses":
        return read("responses", input=whole["output"]).messages
    question = {"role": "user", "content": "q"}
    return read("messages", messages=[{"role": "assistant", "content": whole["content"]}, question]).messages[:-1]


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
@pytest.mark.parametrize("reply", [served(), served(""), served("4", CALL), served("", CALL, CALL, NOISE)])
def test_a_reply_that_a_program_sends_back_is_the_message_that_it_was(dialect, reply):
    assert [canonical(message) for message in as_sent_back(dialect, reply)] == [canonical(reply.message)]


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
def test_a_stream_has_the_same_content_as_the_whole_reply(dialect):
    whole, *events = bodies(dialect, served("4", CALL, CALL))
    if dialect == "chat":
        deltas = [event["choices"][0]["delta"] for event in events]
        assert "".join(delta.get("content") or "" for delta in deltas) == "4"
        expected = [{"index": i, **call} for i, call in enumerate(whole["choices"][0]["message"]["tool_calls"])]
        # One call per chunk: clients read only the first one.
        assert [call for delta in deltas for call in delta.get("tool_calls", ())[:1]] == expected
        assert events[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"] == "tool_calls"
    elif dialect == "responses":
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        assert items == whole["output"] == events[-1]["response"]["output"]
        assert all(items[event["output_index"]]["id"] == event["item_id"] for event in events if "item_id" in event)
    else:
        deltas = [(event["index"], event["delta"]) for event in events if event["type"] == "content_block_delta"]
        call = {"type": "input_json_delta", "partial_json": '{"a": 1}'}
        assert deltas == list(enumerate([{"type": "text_delta", "text": "4"}, call, call]))
        assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


@pytest.mark.parametrize(
    ("dialect", "reasons"),
    [
        ("chat", ["stop", "length", "stop"]),
        ("responses", ["completed", "incomplete", "completed"]),
        ("messages", ["end_turn", "max_tokens", "stop_sequence"]),
    ],
)
def test_a_reply_has_its_stop_reason_and_its_token_counts(dialect, reasons):
    replies = [served(), served(stop_reason="length"), served(stopped_by="END")]
    wholes = [bodies(dialect, reply)[0] for reply in replies]
    found = [
        whole.get("status") or whole.get("stop_reason") or whole["choices"][0]["finish_reason"] for whole in wholes
    ]
    assert found == reasons
    assert {wholes[0]["usage"].get(name) for name in ("prompt_tokens", "input_tokens")} - {None} == {3}


def test_the_three_protocols_ask_the_same():
    more = {"stream": True, "tools": FLAT}
    opening = [{"role": "developer", "content": "s"}, *ASK["messages"]]
    chat = read("chat", messages=opening, max_completion_tokens=7, **more | {"tools": tools("add")})
    responses = read("responses", input=opening, max_output_tokens=7, **more)
    anthropic = read("messages", **ASK, system="s", max_tokens=7, **more | {"tools": OF_ANTHROPIC})
    system = {"role": "system", "content": "s"}
    assert chat.messages == responses.messages == anthropic.messages == [system, *ASK["messages"]]
    assert chat.tools == responses.tools == anthropic.tools == tools("add")
    assert {(asked.max_tokens, asked.stream) for asked in (chat, responses, anthropic)} == {(7, True)}
    assert read("chat", **ASK, max_tokens=-1).max_tokens is None, "some clients write -1 for no limit"
    assert read("chat", **ASK, max_tokens=-1, max_completion_tokens=7).max_tokens == 7


def test_the_result_of_a_call_names_its_call():
    block = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "2"}]}
    found = [
        read("chat", messages=[{"role": "tool", "tool_call_id": "c", "content": "2"}]),
        read("responses", input=[{"type": "function_call_output", "call_id": "c", "output": "2"}]),
        read("messages", messages=[{"role": "user", "content": [block]}]),
    ]
    assert [asked.messages for asked in found] == [[{"role": "tool", "content": "2", "tool_call_id": "c"}]] * 3


@pytest.mark.parametrize(("dialect", "none"), [("chat", "none"), ("responses", "none"), ("messages", {"type": "none"})])
def test_tools_that_must_not_be_called_are_not_in_the_prompt(dialect, none):
    given = {"chat": tools("add"), "responses": FLAT, "messages": OF_ANTHROPIC}[dialect]
    ask = {"input" if dialect == "responses" else "messages": [{"role": "user", "content": "q"}], "tools": given}
    assert len(read(dialect, **ask).tools) == 1 and not read(dialect, **ask, tool_choice=none).tools


def test_a_function_of_a_namespace_has_both_names_in_the_prompt_and_is_called_by_both():
    """Codex has its sub-agents in a namespace."""
    how, namespace = DIALECTS["responses"], {"type": "namespace", "name": "team", "tools": FLAT}
    asked = read("responses", input="q", tools=[*FLAT, namespace])
    own, full = (schema["function"]["name"] for schema in asked.tools)
    output = how.whole(asked, served("", ToolCall(own, "{}", "c1"), ToolCall(full, "{}", "c2")))["output"]
    assert [(item.get("namespace"), item["name"]) for item in output] == [(None, "add"), ("team", "add")]
    [message] = read("responses", input=output).messages
    assert [call["function"]["name"] for call in message["tool_calls"]] == [own, full]


def test_the_schema_of_a_reply_is_in_the_system_prompt_and_its_thought_of_a_tool_is_not_enforced():
    schema = {"type": "object"}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    config = {"format": {"type": "json_schema", "schema": schema}}
    text = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
    chat = read("chat", messages=[{"role": "user", "content": "q"}], response_format=form)
    claude = read("messages", **ASK, output_config=config)
    for asked in (chat, claude):
        assert asked.messages[0]["role"] == "system" and '{"type": "object"}' in asked.messages[0]["content"]
    response = read("responses", input="q", instructions="\n s", text=text)
    assert response.instructions.startswith("\n s\n\nReply") and '{"type": "object"}' in response.instructions
    assert chat.schema == claude.schema == response.schema == schema


def test_log_probs_are_those_of_the_row():
    reply = served(log_probs=[-0.5, -1.0], response_mask=[1, 1])
    asked = read("chat", messages=[{"role": "user", "content": "q"}], logprobs=True)
    [choice] = DIALECTS["chat"].whole(asked, reply)["choices"]
    found = {each["token"]: each["logprob"] for each in choice["logprobs"]["content"]}
    assert found == {"token_id:4": -0.5, "token_id:5": -1.0}
    vars(reply.reply.generation)["sampled"] = 0  # the row is full
    [empty] = DIALECTS["chat"].whole(asked, reply)["choices"]
    assert empty["logprobs"] is None


def test_half_a_character_is_written_out_and_other_encodings_are_refused():
    assert Fields.of(b'{"a": "\\uD800 \\ud83d\\ude00 \\u00e9"}').left == {"a": "\\ud800 \U0001f600 \u00e9"}
    for body in (b'{"a": "\xed\xa0\x80"}', '{"a": 1}'.encode("utf-16")):
        with pytest.raises(ApiError, match="not JSON"):
            Fields.of(body)


def test_images_of_each_protocol_are_the_same_part():
    url, source = "data:image/png;base64,AA==", {"type": "base64", "media_type": "image/png", "data": "AA=="}
    text, image = {"type": "text", "text": "q"}, {"type": "image_url", "image_url": {"url": url}}
    items = [{"type": "input_text", "text": "q"}, {"type": "input_image", "image_url": url}]
    found = [
        read("chat", messages=[{"role": "user", "content": [text, {**image, "detail": "low"}]}]),
        read("messages", messages=[{"role": "user", "content": [text, {"type": "image", "source": source}]}]),
        read("responses", input=[{"role": "user", "content": items}]),
    ]
    assert [asked.messages for asked in found] == [[{"role": "user", "content": [text, image]}]] * 3


ASK = {"messages": [{"role": "user", "content": "q"}]}


@pytest.mark.parametrize(
    ("dialect", "body", "says"),
    [
        ("chat", {}, "messages is missing"),
        ("chat", {"messages": [{"role": "wizard", "content": "q"}]}, "messages[0] is not an object with a role"),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "nothing is downloaded"),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "asked in text"),
        ("chat", {"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "not a list of calls"),
        ("chat", {**ASK, "n": 3}, "send 3 requests"),
        ("chat", {**ASK, "response_format": {"json_schema": 5}}, "json_schema is 5"),
        ("chat", {**ASK, "max_tokens": "7"}, "max_tokens is '7'; it is a whole number"),
        ("responses", {"input": [{"type": "computer_call"}]}, "input[0] is 'computer_call'"),
        ("responses", {"input": "q", "tools": [{"type": "web_search"}]}, "tools[0] is of type web_search"),
        ("responses", {"input": "q", "background": True}, "background is not supported"),
        ("responses", {"input": [{"type": "item_reference", "id": "msg_9"}]}, "input[0] names 'msg_9'"),
        ("messages", {"messages": [{"role": "wizard", "content": "q"}]}, "a role of user, assistant, system"),
        ("messages", {"messages": [*ASK["messages"], {"role": "assistant", "content": "I"}]}, "messages[1] begins"),
        ("messages", {**ASK, "tools": [{"type": "bash_20250124", "name": "bash"}]}, "without an input_schema"),
    ],
)
def test_an_unsupported_request_is_refused_by_the_name_of_its_field(dialect, body, says):
    with pytest.raises(ApiError) as refused:
        read(dialect, **body)
    assert says in str(refused.value) and refused.value.status == 400
    assert refused.value.headers == {"x-should-retry": "false"}
    error = refused.value.body["error"]
    assert error["message"] == str(refused.value) and error["type"] == "invalid_request_error"


@pytest.mark.parametrize("body", [b"{", b"[]", b"[" * 100_000, b"\xff"])
def test_a_body_that_is_no_json_object_is_refused(body):
    with pytest.raises(ApiError, match="the body is not"):
        Fields.of(body)
