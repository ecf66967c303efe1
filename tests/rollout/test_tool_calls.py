"""Tools of a policy that verl serves. Rows equal those of verl's own tool loop for the same generations."""

import copy
from itertools import pairwise

import pytest
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.experimental.agent_loop.tool_parser import HermesToolParser
from verl.tools.base_tool import BaseTool
from verl.tools.function_tool import FUNCTION_TOOL_REGISTRY, FunctionTool, _build_schema_from_fn, function_tool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
from verl.utils.dataset.rl_dataset import RLHFDataset

from verl_mas.config.schema import AgentSpec, FaultSpec
from verl_mas.rollout.stored import with_tool_fields
from verl_mas.rollout.tool_calls import tool_limits
from verl_mas.rollout.verl_client import output_of
from verl_mas.workflow import Outcome, Request, Task

# A template like Qwen's: schemas are in the system prompt, and results of tools are in a user message.
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}\n<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QUESTION = [{"role": "user", "content": "21 * 2?"}]


def double(x: int) -> str:
    """Doubles.

    Args:
        x: a number
    """
    return str(2 * x)


def repeat(text: str, times: int) -> tuple:
    """Repeats.

    Args:
        text: what
        times: how often
    """
    return text * times, 0.5


def fail() -> str:
    """Fails."""
    raise KeyError("no")


class Counter(BaseTool):
    """A tool of verl's kind: created, executed and released for each call."""

    def __init__(self):
        function = {"name": "count", "description": "Counts.", "parameters": {"type": "object", "properties": {}}}
        super().__init__({}, OpenAIFunctionToolSchema.model_validate({"type": "function", "function": function}))
        self.events = []

    async def create(self, instance_id=None, **kwargs):
        self.events.append(("create", kwargs))
        return f"i{len(self.events)}", ToolResponse()

    async def execute(self, instance_id, parameters, agent_data=None, **kwargs):
        self.events.append(("execute", instance_id, parameters))
        count = agent_data.extra_fields["count"] = agent_data.extra_fields.get("count", 0) + 1
        return ToolResponse(text=f"{count} of {len(agent_data.messages)} messages"), float(count), {}

    async def release(self, instance_id, **kwargs):
        self.events.append(("release", instance_id))


def tool(function):
    return FunctionTool(function.__name__, function, _build_schema_from_fn(function, function.__name__))


def tools():
    return [tool(double), tool(repeat), tool(fail), Counter()]


def call(name, arguments="{}"):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


DOUBLE = call("double", '{"x": 21}')
CASES = {
    "no call": (["It is 42."], {}),
    "a call": ([DOUBLE, "It is 42."], {}),
    "text around a call": ([f"Let me see. {DOUBLE} So.", "It is 42."], {}),
    "two calls, one allowed": ([DOUBLE + call("double", '{"x": 4}'), "x"], {}),
    "two calls": ([DOUBLE + call("double", '{"x": 4}'), "x"], {"max_parallel_calls": 2}),
    "an unknown tool": ([call("dubble"), "x"], {}),
    "wrong arguments": ([call("double", '{"y": 21}'), "x"], {}),
    "a call that is not JSON": (["<tool_call>\n{'name': double}\n</tool_call>"], {}),
    "a call without arguments": (['<tool_call>{"name": "double"}</tool_call>'], {}),
    "a tool that raises": ([call("fail"), "x"], {}),
    "a long result": ([call("repeat", '{"text": "ab", "times": 200}'), "x"], {}),
    "a long result, left": (
        [call("repeat", '{"text": "ab", "times": 200}'), "x"],
        {"tool_response_truncate_side": "left"},
    ),
    "a tool with a life cycle": ([call("count"), call("count"), "x"], {}),
    "three rounds": ([DOUBLE, DOUBLE, DOUBLE, "x"], {}),
    "at most one round": ([DOUBLE, DOUBLE, "x"], {"max_user_turns": 1}),
    "at most two replies": ([DOUBLE, DOUBLE, "x"], {"max_assistant_turns": 2}),
    "one reply": ([DOUBLE, "x"], {"max_assistant_turns": 1}),
    "a row that a reply fills": ([DOUBLE, "x" * 600], {}),
    "a row that a call fills": ([DOUBLE, "x" * 400 + DOUBLE, "y"], {}),
    "a row that a result fills": (
        [call("repeat", '{"text": "ab", "times": 2000}')],
        {"max_tool_response_length": 4000},
    ),
}


async def uses(task, team):
    return Outcome(answer=await team.a.act(task.messages), reward=1.0)


@pytest.fixture
def policy_with(policy, tokenizer):
    """A policy whose template has tools, and its server."""

    def make(answers, **multi_turn):
        client, server = policy(
            lambda prompt, number: answers[min(number, len(answers) - 1)], prompt_length=4096, response_length=512
        )
        client.config.actor_rollout_ref.rollout.multi_turn.update(multi_turn)
        own = copy.deepcopy(tokenizer)
        own.chat_template = TEMPLATE
        client.model.tokenizer = server.tokenizer = own
        return client, server

    return make


@pytest.fixture
def played(policy_with, play):
    """The session of one act with tools, and the server."""

    def played(answers, used, workflow=uses, fields=None, fails=False, **multi_turn):
        client, server = policy_with(answers, **multi_turn)
        done = play(
            workflow,
            client,
            agents={"a": AgentSpec(tools=[one.name for one in used])},
            tools=used,
            tool_limits=tool_limits(client.config.actor_rollout_ref.rollout.multi_turn),
            faults=FaultSpec(retries=0),
            task=Task(QUESTION, fields=fields or {}),
        )
        assert done.failed is fails, done.faults
        return done, server

    return played


async def made_by_verl(client, used, fields):
    agent = ToolAgentLoop(
        trainer_config=DictConfigWrap(client.config),
        server_manager=client.client,
        tokenizer=client.model.tokenizer,
        processor=None,
        dataset_cls=RLHFDataset,
        data_config=DictConfigWrap(client.config.data),
        hf_model_type="qwen2",
        tools=ToolListWrap(used),
    )
    return await agent.run(client.sampling(Request("a", "s", 0, QUESTION)), raw_prompt=QUESTION, **fields)


@pytest.mark.parametrize("case", CASES)
def test_a_row_with_tools_is_what_verls_tool_loop_makes_of_the_same_generations(case, policy_with, played, loop):
    answers, multi_turn = CASES[case]
    fields = {"tools_kwargs": {"count": {"create_kwargs": {"start": 1}}}}
    client, theirs = policy_with(answers, **multi_turn)
    verls, ours = tools(), tools()
    expected = loop.run_until_complete(made_by_verl(client, verls, fields))
    done, server = played(answers, ours, fields=fields, **multi_turn)
    (reply,) = done.session.replies
    made = with_tool_fields(output_of(reply.generation), [reply])
    for field in ("prompt_ids", "response_ids", "response_mask", "response_logprobs", "num_turns"):
        assert getattr(made, field) == getattr(expected, field), field
    assert made.metrics.model_fields_set == expected.metrics.model_fields_set
    assert made.metrics.num_preempted == expected.metrics.num_preempted
    steps = ("global_steps", "min_global_steps", "max_global_steps")
    for fields_of in (made.extra_fields, expected.extra_fields):
        for name in steps:
            fields_of.pop(name, None)
    assert made.extra_fields == expected.extra_fields
    assert [call["prompt_ids"] for call in server.calls] == [call["prompt_ids"] for call in theirs.calls]
    assert ours[-1].events == verls[-1].events


def test_a_conversation_with_tools_is_one_row_and_ends_when_it_is_full(played):
    async def talks(task, team):
        talk = team.a.conversation(task.messages)
        for text in ("", "again", "and again"):
            await talk.act([{"role": "user", "content": text}] if text else ())
        return Outcome(reward=0.0)

    done, server = played(
        [DOUBLE, "42", DOUBLE, "42 again", call("repeat", '{"text": "ab", "times": 2000}')],
        tools()[:2],
        talks,
        max_tool_response_length=4000,
    )
    (row,) = done.session.rows()
    assert [reply.text for reply in row.replies] == ["42", "42 again", ""] and row.replies[-1].truncated
    assert len(server.calls) == 5
    prompts = [tuple(call["prompt_ids"]) for call in server.calls]
    assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(prompts))


def test_truncation_counts_the_schemas(played, play, policy_with):
    history = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "past " * 24}, *QUESTION]
    used = tools()[:1]
    lengths = {}
    for names in ([], ["double"]):
        client, server = policy_with(["x"])
        spec = AgentSpec(tools=names, truncation="drop_oldest", max_prompt_length=320)

        async def acts_on_history(task, team):
            return Outcome(answer=await team.a.act(history), reward=0.0)

        done = play(acts_on_history, client, agents={"a": spec}, tools=used, faults=FaultSpec(retries=0))
        assert not done.failed, done.faults
        lengths[len(names)] = server.tokenizer.decode(server.calls[0]["prompt_ids"])
    assert "past" in lengths[0] and "past" not in lengths[1] and "double" in lengths[1]


def test_a_template_knows_an_agent_without_tools(played, monkeypatch):
    monkeypatch.setitem(globals(), "TEMPLATE", "{% if tools is not none %}tools! {% endif %}" + TEMPLATE)
    for used in ([], tools()[:1]):
        _, server = played(["x"], used)
        assert server.tokenizer.decode(server.calls[0]["prompt_ids"]).startswith("tools!") is bool(used)


def test_the_tokens_that_end_a_call_in_a_format_stop_the_generation(played, monkeypatch):
    monkeypatch.setattr(HermesToolParser, "stop_token_ids", [7, 5])
    _, server = played([DOUBLE, "x"], tools()[:1])
    assert [call["sampling_params"]["stop_token_ids"] for call in server.calls] == [[5, 7]] * 2


def test_a_function_with_verls_decorator_is_a_tool(played, monkeypatch):
    monkeypatch.setattr("verl.tools.function_tool.FUNCTION_TOOL_REGISTRY", dict(FUNCTION_TOOL_REGISTRY))
    given = function_tool("twice")(double)

    async def acts_with_it(task, team):
        return Outcome(answer=await team.a.act(task.messages, tools=[given]), reward=0.0)

    done, server = played([call("twice", '{"x": 21}'), "x"], [], acts_with_it)
    assert done.session.replies[0].tool_calls[0].result == "42"
    assert '"name": "twice"' in server.tokenizer.decode(server.calls[0]["prompt_ids"])


def test_the_parser_reads_schemas_that_verl_would_refuse(played):
    schema = {
        "type": "function",
        "function": {"name": "ask", "parameters": {"type": "object", "properties": {"q": {"anyOf": [{}]}}}},
    }

    async def asks(task, team):
        reply = await team.a.act(task.messages, tools=[schema])
        assert [one.parameters for one in reply.open_calls] == [{"q": [1]}]
        return Outcome(answer=reply, reward=0.0)

    text = "<tool_call>\n<function=ask>\n<parameter=q>\n[1]\n</parameter>\n</function>\n</tool_call>"
    played([text], [], asks, format="qwen3_coder")
