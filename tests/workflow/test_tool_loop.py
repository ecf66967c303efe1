"""Acts with tools, also in branches and conversations: messages for the model, records, and limits."""

import asyncio
import json
import time

import numpy as np
import pytest

from verl_mas.config.schema import AgentSpec, BranchSpec, FaultSpec, RewardSpec
from verl_mas.errors import EngineLost, FaultKind, SessionFault
from verl_mas.testing.scripted_llm import ScriptedLLM, calls
from verl_mas.workflow import Outcome, Task
from verl_mas.workflow.tool_loop import ToolLimits
from verl_mas.workflow.tool_sources import tools_of
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


def acting(run, script, tools=(), *, play=None, spec=None, limits=None, **settings):
    """Run `play`, or one act with these tools. Return the session, its first reply, and the model."""

    async def one(task, team):
        return Outcome(answer=await team.a.act("q", tools=tools), reward=0.0)

    llm = ScriptedLLM(script)
    settings.setdefault("faults", FaultSpec(retries=0))
    done = run(play or one, llm, agents={"a": spec or AgentSpec()}, tool_limits=limits or ToolLimits(), **settings)
    assert not done.failed, done.faults
    return done.session, done.session.replies[0], llm


def schema(name):
    return {"type": "function", "function": {"name": name, "description": "Does it.", "parameters": {}}}


def roles(messages):
    return " ".join(message["role"] for message in messages)


def sampled(generation, mask=1):
    """Decode the sampled tokens of a row or, with mask=0, the other tokens."""
    pairs = zip(generation.response_ids, generation.response_mask, strict=True)
    return bytes(token for token, sampled in pairs if sampled == mask).decode()


def fails(text: str = "no"):
    """Always fails."""
    raise ValueError(text)


def test_an_agent_calls_methods_of_the_sessions_environment_until_it_is_done(run):
    script = [
        calls(("press", {"button": "red"}), ("press", {"button": "blue"}), text="Let me see."),
        calls(("look", {})),
        "Done.",
    ]
    panel = Panel()
    session, reply, llm = acting(run, script, [panel.press, panel.look])
    assert reply.text == "Done." and panel.pressed == ["red", "blue"]
    assert [(call.name, call.parameters, call.result, call.error) for call in reply.tool_calls] == [
        ("press", {"button": "red"}, "red is on", None),
        ("press", {"button": "blue"}, "blue is on", None),
        ("look", {}, '{"on": ["red", "blue"]}', None),
    ]
    assert roles(reply.steps) == "assistant tool tool assistant tool assistant"
    first, red, *_ = reply.steps
    assert first["content"] == "Let me see."
    assert first["tool_calls"][0]["function"] == {"name": "press", "arguments": {"button": "red"}}
    assert red == {"role": "tool", "tool_call_id": "call_0", "content": "red is on"}
    assert reply.message == {"role": "assistant", "content": "Done."} == reply.steps[-1]
    assert "3 calls" in repr(reply)
    # The act is one row, in which results of tools are masked. Each request has all earlier messages.
    (row,) = session.rows()
    masked, text = sampled(row.generation, mask=0), sampled(row.generation)
    assert "red is on" in masked and "Done." not in masked
    assert "<look>{}" in text and text.endswith("Done.") and reply.generation.sampled == len(text)
    for request, known in zip(llm.requests[1:], (3, 5), strict=True):
        assert request.messages == [*reply.messages, *reply.steps[:known]]
    assert [schema["function"]["name"] for schema in llm.requests[0].tools] == ["press", "look"]


async def never():
    """Waits."""
    await asyncio.sleep(60)


def sleeps():
    """Blocks."""
    time.sleep(0.8)


def strange():
    """An object."""
    return object()


def leaves():
    """Ends the process."""
    raise SystemExit(3)


def paid(x: int):
    """Return a reward that is not a number."""
    return ToolResult("fine", reward=float("nan"))


@pytest.mark.parametrize(
    ("called", "error"),
    [
        (("fails", {}), "Error executing tool 'fails': no"),
        (("fails", {"text": ""}), "Error executing tool 'fails': ValueError"),
        (("fails", "{"), "Invalid JSON in arguments for 'fails': Expecting property name"),
        (("fails", "[1]"), "Invalid arguments for 'fails': they are not a JSON object"),
        (("fails", '{"text": ' * 100 + "1" + "}" * 100), "Invalid arguments for 'fails'"),
        (("nope", {}), "Unknown function 'nope'. Available tools: ['fails'"),
        (("never", {}), "Error executing tool 'never': it took more than 0.6 s"),
        (("sleeps", {}), "Error executing tool 'sleeps': it took more than 0.6 s"),
        (("strange", {}), "Error executing tool 'strange': it returned object, which is neither a text nor JSON"),
        (("leaves", {}), "Error executing tool 'leaves': 3"),
        (("paid", {"x": 1}), "Error executing tool 'paid': the reward of a tool is nan"),
    ],
)
def test_the_error_of_a_call_is_its_result(run, called, error):
    tools = [fails, never, sleeps, strange, leaves, paid]
    # The time of tools does not count for the act.
    settings = {"spec": AgentSpec(tool_timeout_s=0.6), "faults": FaultSpec(retries=0, act_timeout_s=0.5)}
    _, reply, llm = acting(run, [calls(called), "sorry"], tools, **settings)
    (call,) = reply.tool_calls
    assert call.error.startswith(error) and call.result is None and call.reward == 0
    assert llm.requests[1].messages[-1]["content"] == call.error and reply.text == "sorry"
    assert "(1 failed)" in repr(reply)


def test_results_are_texts_json_and_numbers_of_numpy_and_are_cut(run):
    def give(what: str):
        """Gives."""
        return results[what]

    results = {"array": np.arange(2), "none": None, "text": "ä", "surrogate": "\ud800", "huge": "x" * 10_000_000}
    script = [calls(*(("give", {"what": what}) for what in results)), "x"]
    _, reply, _ = acting(run, script, [give], limits=ToolLimits(result_chars=11))
    texts = ["[0, 1]", "null", "ä", "\\ud800", "xxxxx...(truncated)...xxxxx"]
    assert [call.result for call in reply.tool_calls] == texts
    cut = {side: ToolLimits(result_chars=3, truncate_side=side).cut("abcdef") for side in ("left", "right", "middle")}
    assert cut == {"left": "(truncated)...def", "right": "abc...(truncated)", "middle": "a...(truncated)...f"}


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

    script = [calls(("slow", {}), ("fast", {}), ("other", {})), "x"]
    acting(run, script, [slow, fast, Tool(schema("other"), other)])
    assert events == ["other", "slow", "fast"]


def test_any_text_of_a_model_can_be_recorded_and_sent_again(run):
    script = calls(("fails", '{"text": "\\ud800"}'), ("\ud800", "\ud800"))
    _, reply, _ = acting(run, [script, "x"], [fails])
    json.dumps([reply.steps, [call.arguments for call in reply.tool_calls]], ensure_ascii=False).encode()
    assert reply.steps[0]["tool_calls"][0]["function"]["arguments"] == {"text": "\\ud800"}
    # Arguments that JSON cannot hold stay as they were written.
    deep = "[" * 100_000
    _, reply, _ = acting(run, [calls(("fails", deep)), "x"], [fails])
    assert reply.steps[0]["tool_calls"][0]["function"]["arguments"] == deep and json.dumps(reply.steps)
    assert reply.tool_calls[0].error.startswith("Invalid JSON in arguments for 'fails'")


def test_an_act_ends_after_its_rounds_and_the_last_calls_are_not_made(run):
    panel = Panel()
    script = calls(("press", {"button": "red"}), ("press", {"button": "blue"}))
    _, reply, llm = acting(run, script, [panel.press], spec=AgentSpec(max_tool_rounds=2))
    assert len(panel.pressed) == 4 and len(llm.requests) == 3
    assert [call.error for call in reply.tool_calls[4:]] == ["not called: the limit is 2 rounds per act"] * 2
    assert "tool_calls" not in reply.message and not reply.open_calls
    acting(run, script, [panel.press], limits=ToolLimits(rounds=0))
    assert len(panel.pressed) == 4


def test_calls_beyond_the_limits_are_answered_or_left_out(run):
    panel = Panel()
    three = calls(*(("press", {"button": button}) for button in "abc"))
    _, reply, llm = acting(run, [three, "x"], [panel.press], spec=AgentSpec(max_tool_calls=2))
    assert panel.pressed == ["a", "b"]
    assert reply.tool_calls[2].error == "Error: not called, as an act can make 2 calls"
    assert llm.requests[1].messages[-1]["content"] == reply.tool_calls[2].error
    # The calls of an act are counted over its rounds.
    panel.pressed.clear()
    acting(run, [calls(("press", {"button": "a"})), three, "x"], [panel.press], spec=AgentSpec(max_tool_calls=2))
    assert panel.pressed == ["a", "a"]
    # As in verl, messages contain neither calls beyond max_parallel_calls nor answers to them.
    _, reply, llm = acting(run, [three, "x"], [panel.press], limits=ToolLimits(parallel_calls=1))
    assert roles(reply.steps) == "assistant tool assistant"
    assert len(reply.steps[0]["tool_calls"]) == 1 and len(reply.tool_calls) == 3
    assert reply.tool_calls[1].error == "not called: the limit is 1 per reply"


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

    async def graded(task, team):
        reply = await team.a.act("q", tools=[grade])
        reply.reward = 10.0
        return Outcome(answer=reply, reward=1.0)

    script = [calls(("grade", {"points": 0.5}), ("grade", {"points": 0.25})), "x"]
    session, reply, _ = acting(run, script, play=graded, reward=RewardSpec(local=2.0))
    assert (reply.reward, reply.tool_reward, reply.local_reward) == (10.0, 0.75, 10.75)
    assert session.rows()[0].reward.score == 1.0 + 2 * 10.75


def test_tools_of_the_configuration_and_of_the_act_are_used_together(run):
    panel = Panel()

    async def call(arguments, context):
        return f"{arguments['q']} of row {context.fields['n']}, {len(context.messages)} messages"

    search, agents = Tool(schema("search"), call), {"a": AgentSpec(tools=["search"])}

    async def one(task, team):
        return Outcome(answer=await team.a.act("q", tools=[panel.press]), reward=0.0)

    llm = ScriptedLLM([calls(("search", {"q": "x"}), ("press", {"button": "red"})), "done"])
    done = run(one, llm, agents=agents, tools={"search": search}, task=Task([], fields={"n": 7}))
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


def test_each_candidate_of_a_branch_has_its_own_loop_and_state(run):
    panels = []

    def tools():
        panels.append(Panel())
        return [panels[-1].press]

    async def branches(task, team):
        replies = await team.a.branch("q", k=3, tools=tools)
        for reply in replies:
            reply.reward = float(len(panels[reply.branch].pressed))
        return Outcome(answer=team.commit(replies), reward=0.0)

    def script(request, branch):
        return calls(("press", {"button": f"{branch}"})) if request.round < branch else f"{branch} done"

    session, *_ = acting(run, script, play=branches, branch=BranchSpec(k=3))
    assert [reply.reward for reply in session.replies] == [0.0, 1.0, 2.0] and session.answer == "2 done"
    rows = session.rows()
    assert [len(row.replies) for row in rows] == [1, 1, 1]
    assert len({tuple(row.generation.prompt_ids) for row in rows}) == 1


def test_a_workflow_can_answer_calls_itself(run):
    talks = []

    async def answering(task, team):
        talks.append(talk := team.a.conversation("hi", tools=[schema("ask")]))
        reply = await talk.act()
        assert [call.parameters for call in reply.open_calls] == [{"what": "x"}, {"what": "y"}]
        assert reply.message["tool_calls"][1]["id"] == "call_1"
        answers = [call.answered(call.parameters["what"].upper()) for call in reply.open_calls]
        return Outcome(answer=await talk.act(answers), reward=0.0)

    script = [calls(("ask", {"what": "x"}), ("ask", {"what": "y"})), "thanks"]
    session, *_ = acting(run, script, play=answering)
    assert roles(talks[0].messages) == "user assistant tool tool assistant" and len(session.rows()) == 1
    assert talks[0].messages[2:4] == [
        {"role": "tool", "tool_call_id": f"call_{number}", "content": content} for number, content in enumerate("XY")
    ]


def test_a_row_selects_some_of_the_tools_that_its_agent_names(run):
    async def one(task, team):
        return Outcome(answer=await team.a.act("q"), reward=0.0)

    llm, tools = ScriptedLLM("done"), tools_of(map(schema, ("ask", "look", "secret")))
    for selected in ([], ["look", "secret", "unknown"]):
        task = Task([], extra_info={"tool_selection": selected})
        run(one, llm, task=task, agents={"a": AgentSpec(tools=["ask", "look"])}, tools=tools)
    given = [[tool["function"]["name"] for tool in request.tools] for request in llm.requests]
    assert given == [["ask", "look"], ["look"]]


def test_a_conversation_has_the_calls_and_results_of_its_acts(run):
    talks = []

    async def talking(task, team):
        talks.append(talk := team.a.conversation("hi", tools=[Panel().press]))
        await talk.act()
        await talk.act("again")
        return Outcome(reward=0.0)

    script = [calls(("press", {"button": "red"})), "one", calls(("press", {"button": "blue"})), "two"]
    _, _, llm = acting(run, script, play=talking)
    assert roles(talks[0].messages) == "user assistant tool assistant user assistant tool assistant"
    assert llm.requests[-1].messages == talks[0].messages[:-1]
