import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from verl_mas.gateway.messages import Canonical, canonical, difference, spellings


def call(arguments, name="add", **more):
    return {"role": "assistant", "tool_calls": [{"function": {"name": name, "arguments": arguments}, **more}]}


@pytest.mark.parametrize(
    ("served", "sent_back"),
    [
        ({"role": "assistant", "content": "4"}, {"role": "assistant", "content": "4", "refusal": None, "audio": None}),
        ({"role": "assistant", "content": ""}, {"role": "assistant", "content": None, "annotations": []}),
        (call('{"a": 1, "b": 2}', id="c1"), call({"b": 2, "a": 1}, id="x", type="function")),
        (call("{not json"), call("{not json", id="7")),
    ],
)
def test_what_clients_add_and_how_they_spell_arguments_makes_no_other_message(served, sent_back):
    assert canonical(served) == canonical(sent_back)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"role": "assistant", "content": "4"}, {"role": "assistant", "content": "4 "}),
        ({"role": "user", "content": "4", "name": "a"}, {"role": "user", "content": "4", "name": "b"}),
        ({"role": "user", "content": "4"}, {"role": "tool", "content": "4"}),
        (call('{"a": 1}'), call('{"a": 1.5}')),
        (call('{"a": 1}'), call('{"a": 1}', name="sub")),
    ],
)
def test_what_a_template_renders_otherwise_is_another_message(one, other):
    assert canonical(one) != canonical(other)


plain = st.none() | st.booleans() | st.integers() | st.text(max_size=4)
values = st.dictionaries(st.text(max_size=4), plain | st.lists(plain, max_size=2), max_size=3)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(values, st.booleans())
def test_arguments_are_the_same_as_text_and_as_an_object_in_any_order(arguments, compact):
    text = json.dumps(dict(reversed(arguments.items())), separators=(",", ":") if compact else None)
    assert canonical(call(text)) == canonical(call(arguments))


def test_a_reply_comes_back_with_its_stop_string_or_without_its_thought():
    def texts(text, *given, **more):
        return [each.content for each in spellings(Canonical("assistant", text), *given, **more)]

    assert texts("a", "</code>") == ["a", "a</code>"]
    assert texts("<think>why</think>\n\na") == ["<think>why</think>\n\na", "a"]
    assert texts("<think>why</think>a", "</code>")[2:] == ["a", "a</code>"]
    assert texts("why</think>a") == ["why</think>a", "a"]
    assert texts("<think>why</think>a", thinking=False) == ["<think>why</think>a"]


def test_the_first_difference_is_named():
    system, first, reply, second = (
        Canonical(role, text) for role, text in [("system", "s"), ("user", "1"), ("assistant", "a"), ("user", "2")]
    )
    edited = reply._replace(content="A")
    assert difference([reply, second], [edited, second], 2) == "messages[2] (assistant) was edited"
    assert difference([system, first], [edited, first], 0) != difference([system], [system._replace(content="")], 0)
    assert difference([system], [system._replace(content="")], 0) == "the system prompt changed"
    assert difference([first, reply, second], [second], 1) == "2 messages from messages[1] (user) on were dropped"
    assert difference([reply], [edited, second, reply], 2) == "2 messages were inserted at messages[2] (assistant)"
    assert difference([reply], [second], 2) == "messages[2] is of the user, and was of the assistant"
    assert difference([reply], [], 2) == "it was asked before"
