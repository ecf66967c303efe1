"""Acts with tools: what the model gets, what is recorded, and the limits."""

from __future__ import annotations

import asyncio
import json
import time

import numpy as np
import pytest

from verl_mas.config.schema import AgentSpec, FaultSpec, RewardSpec
from verl_mas.errors import ConfigError, EngineLost, FaultKind, SessionFault
from verl_mas.testing.scripted_llm import ScriptedLLM, calls
from verl_mas.workflow import Outcome, Task, Workflow
from verl_mas.workflow.tool_loop import ToolLimits
from verl_mas.workflow.tools import Tool, ToolResult


class Panel:
    """An environment of one session."""

    def __init__(self):
        self.pressed = []

    async def press(self, button: str) -> str:
        """Press a button.

        Args:
            button: Its name.
        """
        self.pressed.append(button)
        return f"{button} is on"

    def look(self) -> dict:
        """Which buttons are on."""
        return {"on": self.pressed}


class Presses(Workflow):
    agents = ("a",)

    async def run(self, task, team):
        self.panel = Panel()
        reply = await team.a.act(task.messages, tools=[self.panel.press, self.panel.look])
        return Outcome(answer=reply, reward=float(len(self.panel.pressed)))


def acting(run, script, tools, *, spec=None, limits=None, **settings):
    """The reply of one act with these tools."""

    async def ones(task, team):
        return Outcome(answer=await team.a.act("q", tools=tools), reward=0.0)

    llm = ScriptedLLM(script)
    settings.setdefault("faults", FaultSpec(retries=0))
    done = run(ones, llm, agents={"a": spec or AgentSpec()}, tool_limits=limits or ToolLimits(), **settings)
    assert not done.failed, done.faults
    return done.session.replies[0], llm


def fails(text: str = "no"):
    """Always fails."""
    raise ValueError(text)


def test_an_agent_calls_methods_of_the_sessions_environment_until_it_is_done(run):
    script = [
        calls(("press", {"button": "red"}), ("press", {"button": "blue"}), text="Let me see."),
        calls(("look", {})),
        "Done.",
    ]
    llm = ScriptedLLM(script)
    done = run(Presses, llm)
    assert not done.failed, done.faults
    (reply,) = done.session.replies
    assert reply.text == "Done." and done.session.team_reward == 2.0
    assert [(call.name, call.parameters, call.result, call.error) for call in reply.tool_calls] == [
        ("press", {"button": "red"}, "red is on", None),
        ("press", {"button": "blue"}, "blue is on", None),
        ("look", {}, '{"on": ["red", "blue"]}', None),
    ]
    assert [message["role"] for message in reply.steps] == [
        "assistant",
        "tool",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ]
    first, red, *_ = reply.steps
    assert (first["content"], first["tool_calls"][0]["function"]) == (
        "Let me see.",
        {"name": "press", "arguments": {"button": "red"}},
    )
    assert red == {"role": "tool", "tool_call_id": "call_0", "content": "red is on"}
    assert reply.message == {"role": "assistant", "content": "Done."} == reply.steps[-1]
    assert "3 calls" in repr(reply)
    # One row: what the tools returned is masked, and each request has what came before.
    (row,) = done.session.rows()
    data = row.generation
    masked = bytes(i for i, m in zip(data.response_ids, data.response_mask, strict=True) if not m).decode()
    sampled = bytes(i for i, m in zip(data.response_ids, data.response_mask, strict=True) if m).decode()
    assert "red is on" in masked and "Done." not in masked
    assert "<look>{}" in sampled and sampled.endswith("Done.") and reply.generation.sampled == len(sampled)
    assert [request.messages for request in llm.requests[1:]] == [
        [*reply.messages, *reply.steps[:3]],
        [*reply.messages, *reply.steps[:5]],
    ]
    assert [schema["function"]["name"] for schema in llm.requests[0].tools] == ["press", "look"]


async def never():
    """Waits."""
    await asyncio.sleep(60)


def sleeps():
    """Blocks."""
    time.sleep(0.5)


def huge():
    """Much."""
    return "x" * 10_000_000


def strange():
    """An object."""
    return object()


def leaves():
    """Ends the process."""
    raise SystemExit(3)


def paid(x: int):
    """A reward that is none."""
    return ToolResult("fine", reward=float("nan"))


@pytest.mark.parametrize(
    ("called", "error"),
    [
        (("fails", {}), "Error executing tool 'fails': no"),
        (("fails", {"text": ""}), "Error executing tool 'fails': ValueError"),
        (("fails", {"y": 1}), "Error executing tool 'fails': fails() got an unexpected keyword argument 'y'"),
        (("fails", "{"), "Invalid JSON in arguments for 'fails': Expecting property name"),
        (("fails", "[1]"), "Invalid arguments for 'fails': they are not a JSON object"),
        (("fails", '{"text": ' * 100 + "1" + "}" * 100), "Invalid arguments for 'fails'"),
        (("nope", {}), "Unknown function 'nope'. Available tools: ['fails'"),
        (("never", {}), "Error executing tool 'never': it took more than 0.1 s"),
        (("sleeps", {}), "Error executing tool 'sleeps': it took more than 0.1 s"),
        (("strange", {}), "Error executing tool 'strange': it returned object, which is neither a text nor JSON"),
        (("leaves", {}), "Error executing tool 'leaves': 3"),
        (("paid", {"x": 1}), "Error executing tool 'paid': the reward of a tool is nan"),
    ],
)
def test_what_is_wrong_with_a_call_is_its_result(run, called, error):
    tools = [fails, never, sleeps, strange, leaves, paid]
    reply, llm = acting(run, [calls(called), "sorry"], tools, spec=AgentSpec(tool_timeout_s=0.1))
    (call,) = reply.tool_calls
    assert call.error.startswith(error) and call.result is None
    assert llm.requests[1].messages[-1]["content"] == call.error and reply.text == "sorry"
    assert "(1 failed)" in repr(reply)


def test_results_are_texts_json_and_numbers_of_numpy_and_are_cut(run):
    def give(what: str):
        """Gives."""
        return {"array": np.arange(2), "none": None, "text": "ä", "surrogate": "\ud800"}[what]

    script = [calls(*(("give", {"what": what}) for what in ("array", "none", "text", "surrogate")), ("huge", {})), "x"]
    reply, _ = acting(run, script, [give, huge], limits=ToolLimits(result_chars=11))
    assert [call.result for call in reply.tool_calls] == [
        "[0, 1]",
        "null",
        "ä",
        "\\ud800",
        "xxxxx...(truncated)...xxxxx",
    ]
    cut = {side: ToolLimits(result_chars=3, truncate_side=side).cut("abcdef") for side in ("left", "right", "middle")}
    assert cut == {"left": "(truncated)...def", "right": "abc...(truncated)", "middle": "a...(truncated)...f"}


def test_a_tool_that_blocks_does_not_block_the_loop(run):
    class Beats(Workflow):
        agents = ("a",)

        async def run(self, task, team):
            act = asyncio.ensure_future(team.a.act("q", tools=[sleeps]))
            self.beats = 0
            while not act.done():
                await asyncio.sleep(0.01)
                self.beats += 1
            return Outcome(answer=act.result(), reward=0.0)

    team = Beats()
    assert not run(lambda: team, ScriptedLLM([calls(("sleeps", {})), "x"])).failed
    assert team.beats > 10


def test_functions_are_called_in_order_and_other_tools_at_the_same_time(run):
    events = []

    def slow():
        """Slow."""
        time.sleep(0.05)
        events.append("slow")

    async def fast():
        """Fast."""
        events.append("fast")

    async def other(arguments, context):
        events.append("other")

    tool = Tool({"type": "function", "function": {"name": "other"}}, other)
    acting(run, [calls(("slow", {}), ("fast", {}), ("other", {})), "x"], [slow, fast, tool])
    assert events == ["other", "slow", "fast"]


def test_what_a_model_writes_can_be_recorded_and_sent_again(run):
    script = calls(("fails", '{"text": "\\ud800"}'), ("\ud800", "\ud800"))
    reply, _ = acting(run, [script, "x"], [fails])
    json.dumps([reply.steps, [call.arguments for call in reply.tool_calls]], ensure_ascii=False).encode()
    assert reply.steps[0]["tool_calls"][0]["function"]["arguments"] == {"text": "\\ud800"}


def test_the_time_of_tools_is_not_that_of_the_act(run):
    acting(run, [calls(("sleeps", {})), "x"], [sleeps], faults=FaultSpec(retries=0, act_timeout_s=0.2))


def test_an_act_ends_after_its_rounds_and_the_last_calls_are_not_made(run):
    panel = Panel()
    script = calls(("press", {"button": "red"}), ("press", {"button": "blue"}))
    reply, llm = acting(run, script, [panel.press], spec=AgentSpec(max_tool_rounds=2))
    assert len(panel.pressed) == 4 and len(llm.requests) == 3
    assert [call.error for call in reply.tool_calls[4:]] == ["not called: the limit is 2 rounds per act"] * 2
    assert "tool_calls" not in reply.message and not reply.open_calls
    acting(run, script, [panel.press], limits=ToolLimits(rounds=0))
    assert len(panel.pressed) == 4


def test_calls_beyond_the_limits_are_answered_or_left_out(run):
    panel = Panel()
    three = calls(*(("press", {"button": button}) for button in "abc"))
    reply, llm = acting(run, [three, "x"], [panel.press], spec=AgentSpec(max_tool_calls=2))
    assert panel.pressed == ["a", "b"]
    assert reply.tool_calls[2].error == "Error: not called, as an act can make 2 calls"
    assert llm.requests[1].messages[-1]["content"] == reply.tool_calls[2].error
    # The calls of an act are counted over its rounds.
    panel.pressed.clear()
    acting(run, [calls(("press", {"button": "a"})), three, "x"], [panel.press], spec=AgentSpec(max_tool_calls=2))
    assert panel.pressed == ["a", "a"]
    # verl leaves out what is beyond max_parallel_calls: neither the call nor an answer is in the messages.
    reply, llm = acting(run, [three, "x"], [panel.press], limits=ToolLimits(parallel_calls=1))
    assert [message["role"] for message in reply.steps] == ["assistant", "tool", "assistant"]
    assert len(reply.steps[0]["tool_calls"]) == 1 and len(reply.tool_calls) == 3
    assert reply.tool_calls[1].error == "not called: the limit is 1 per reply"


def test_limits_that_no_act_can_have_are_refused():
    for limits in ({"parallel_calls": 0}, {"result_chars": 0}, {"truncate_side": "top"}, {"rounds": -1}):
        with pytest.raises(ConfigError, match=f"ToolLimits.{next(iter(limits))}"):
            ToolLimits(**limits)


def test_a_tool_can_end_the_session_or_the_run(run):
    def breaks(how: str):
        """Breaks."""
        raise SessionFault(FaultKind.LIMIT, "the world ended") if how == "session" else EngineLost("gone")

    async def one(task, team):
        return Outcome(answer=await team.a.act("q", tools=[breaks]), reward=0.0)

    done = run(one, ScriptedLLM([calls(("breaks", {"how": "session"})), "x"]))
    (fault,) = done.faults
    assert (fault.kind, fault.cause, fault.agent) == (FaultKind.LIMIT, "the world ended", "a")
    with pytest.raises(EngineLost):
        run(one, ScriptedLLM([calls(("breaks", {"how": "run"})), "x"]))


def test_the_rewards_of_tools_are_added_to_the_acts_own(run):
    def grade(points: float):
        """Grades."""
        return ToolResult("graded", reward=points)

    async def gradeds(task, team):
        reply = await team.a.act("q", tools=[grade])
        reply.reward = 10.0
        return Outcome(answer=reply, reward=1.0)

    llm = ScriptedLLM([calls(("grade", {"points": 0.5}), ("grade", {"points": 0.25})), "x"])
    done = run(gradeds, llm, reward=RewardSpec(local=2.0))
    (reply,) = done.session.replies
    assert (reply.reward, reply.tool_reward, reply.local_reward) == (10.0, 0.75, 10.75)
    assert done.session.rows()[0].reward.score == 1.0 + 2 * 10.75


def test_rewards_of_tools_leave_the_answer_to_the_reward_function(run):
    from verl_mas.workflow.session import Score

    def grade() -> object:
        """Grades."""
        return ToolResult("graded", reward=0.5)

    async def answers(task, team):
        return Outcome(answer=await team.a.act("q", tools=[grade]))

    async def score(session):
        return Score(1.0)

    done = run(answers, ScriptedLLM([calls(("grade", {})), "x"]), score=score)
    assert done.session.rows()[0].reward.score == 1.5


def test_tools_of_the_configuration_and_of_the_act_are_used_together(run):
    panel = Panel()

    async def call(arguments, context):
        return f"{arguments['q']} of row {context.fields['n']}, {len(context.messages)} messages"

    search = Tool({"type": "function", "function": {"name": "search", "parameters": {}}}, call)

    async def one(task, team):
        return Outcome(answer=await team.a.act("q", tools=[panel.press]), reward=0.0)

    llm = ScriptedLLM([calls(("search", {"q": "x"}), ("press", {"button": "red"})), "done"])
    done = run(
        one, llm, agents={"a": AgentSpec(tools=["search"])}, tools={"search": search}, task=Task([], fields={"n": 7})
    )
    assert [call.result for call in done.session.replies[0].tool_calls] == ["x of row 7, 2 messages", "red is on"]


def test_an_act_that_is_cancelled_cancels_its_tools(run):
    ended = []

    async def waits():
        """Waits."""
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    async def slow(task, team):
        act = asyncio.ensure_future(team.a.act("q", tools=[waits]))
        await asyncio.sleep(0.05)
        act.cancel()
        return Outcome(reward=0.0)

    run(slow, ScriptedLLM(calls(("waits", {}))))
    assert ended == [True]


def test_arguments_that_json_cannot_hold_stay_as_they_were_written(run):
    deep = "[" * 100_000
    reply, _ = acting(run, [calls(("fails", deep)), "x"], [fails])
    assert reply.steps[0]["tool_calls"][0]["function"]["arguments"] == deep
    assert reply.tool_calls[0].error.startswith("Invalid JSON in arguments for 'fails'")
    assert json.dumps(reply.steps)
