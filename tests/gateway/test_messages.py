import pytest

from verl_mas.gateway.messages import Canonical, canonical, difference, spellings


def call(arguments, name="add", **more):
    return {"role": "assistant", "tool_calls": [{"function": {"name": name, "arguments": arguments}, **more}]}


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


def test_a_thought_may_begin_in_the_prompt_and_may_come_back():
    thought = Canonical("assistant", "why</think>a")
    assert [each.content for each in spellings(thought)] == ["why</think>a", "a"]
    assert [*spellings(thought, thinking=False)] == [thought]


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
