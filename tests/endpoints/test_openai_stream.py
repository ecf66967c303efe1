from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from verl_mas.endpoints.openai import Streamed


def read(*events: object) -> tuple[dict, list[str]]:
    """The completion, and the texts that were reported."""

    async def lines() -> AsyncIterator[str]:
        yield ": a comment"
        for event in events:
            yield f"data: {json.dumps(event)}"
            yield ""
        yield "data: [DONE]"

    texts: list[str] = []
    return asyncio.run(Streamed(texts.append).read(lines())), texts


def delta(finish_reason: str | None = None, **fields: object) -> dict:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish_reason}]}


def test_a_text_is_reported_as_it_comes_and_whole_at_the_end():
    usage = {"prompt_tokens": 5, "completion_tokens": 2}
    found, texts = read(
        delta(role="assistant", content=""),
        delta(content="4"),
        delta(content="2"),
        delta(finish_reason="length"),
        {"choices": [], "usage": usage},
    )
    message = {"role": "assistant", "content": "42"}
    assert found == {"choices": [{"index": 0, "message": message, "finish_reason": "length"}], "usage": usage}
    assert texts == ["4", "2"]


def test_calls_of_tools_are_put_together_by_their_places():
    first = {"index": 0, "id": "a", "function": {"name": "press", "arguments": '{"button"'}}
    found, texts = read(
        delta(tool_calls=[first, {"index": 1, "id": "b", "function": {"name": "look"}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": ': "red"}'}}], finish_reason="tool_calls"),
    )
    calls = found["choices"][0]["message"]["tool_calls"]
    assert [(call["id"], call["function"]) for call in calls] == [
        ("a", {"name": "press", "arguments": '{"button": "red"}'}),
        ("b", {"name": "look", "arguments": ""}),
    ]
    assert texts == []


def test_a_lone_surrogate_is_text():
    found, texts = read(delta(content="a \ud800"))
    assert texts == ["a \\ud800"] and found["choices"][0]["message"]["content"] == "a \\ud800"


@pytest.mark.parametrize("events", [(), ({"error": "overloaded"},), ({"choices": ["x"]},), ("x",)])
def test_events_that_are_not_of_a_completion_are_refused(events):
    with pytest.raises((ValueError, LookupError, TypeError, AttributeError)):
        read(*events)
