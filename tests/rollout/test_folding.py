"""Folded contexts of a policy that verl serves: which tokens are trained, and in which context."""

import json
from collections import Counter
from itertools import groupby

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from verl_mas.config.schema import FaultSpec
from verl_mas.testing.tiny_model import byte_tokenizer
from verl_mas.workflow import Outcome
from verl_mas.workflow.tool_loop import ToolLimits
from verl_mas.workflows.folded import Folding, FoldingRules

# A template like Qwen3's: it drops thoughts before the last question, and begins a reply with an empty thought.
DROPS_THOUGHTS = (
    "{% for message in messages %}{% set said = message.content.split('</think>')[-1] %}"
    "{{ '<|im_start|>' + message.role + '\n' + said }}{% for call in message.tool_calls or [] %}"
    "{{ '<tool_call>' + call.function | tojson + '</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>' }}{% endif %}"
)


def page(number: int) -> str:
    """A page.

    Args:
        number: Its number.
    """
    return f"page {number} is long"


async def folds(task, team):
    folding = Folding(team.a, [page], FoldingRules(branch_calls=2, main_tokens=300))
    return Outcome(answer=await folding.act(task.messages), reward=1.0, info=folding.info)


def called(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


ACTIONS = {
    "branch": called("branch", prompt="read"),
    "without prompt": called("branch"),
    "page": called("page", number=1),
    "fails": called("page", number="x", more=2),
    "return": called("return", message="1"),
    "long": called("return", message="long " * 50),
    "two": called("page", number=1) + called("return", message="1"),
    "text": "Done.",
    "broken": "<tool_call>{</tool_call>",
}


@pytest.fixture(scope="module")
def thinking():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = DROPS_THOUGHTS
    return tokenizer


@given(actions=st.lists(st.sampled_from([*ACTIONS, "branch", "page", "return"]), max_size=12), room=st.booleans())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_sampled_token_is_trained_once_in_the_context_in_which_it_was_sampled(thinking, play, actions, room):
    from scripted_engine import scripted_policy

    texts = [f"thought {number}</think>{ACTIONS[action]}" for number, action in enumerate(actions)]

    def answer(prompt, number):
        return [*texts, "thought</think>Done."][min(number, len(texts))]

    lengths = {"prompt_length": 4000 if room else 500, "response_length": 3000 if room else 400}
    client, server = scripted_policy(thinking, answer, **lengths)
    done = play(folds, client, tool_limits=ToolLimits(), faults=FaultSpec(retries=0))
    assert not done.failed, done.faults
    sampled = Counter()
    for number, call in enumerate(server.calls):
        reply = [*thinking.encode(answer("", number)), thinking.eos_token_id]
        sampled[tuple(call["prompt_ids"]), tuple(reply[: call["sampling_params"].get("max_tokens")])] += 1
    *branches, main = [row.generation for row in done.session.rows()]
    assert sampled == Counter(runs_of([*branches, main]))
    threads = {(*context, *reply) for context, reply in runs_of([main])}
    for row in branches:
        assert any(tuple(row.prompt_ids[: len(thread)]) == thread for thread in threads), "thoughts included"


def runs_of(rows):
    """Yield every run of trained tokens, with the tokens before it in its row."""
    for row in rows:
        place = 0
        for trained, run in groupby(row.response_mask):
            end = place + len(list(run))
            if trained:
                yield (*row.prompt_ids, *row.response_ids[:place]), tuple(row.response_ids[place:end])
            place = end
