"""Requests as acts: their rows, repeated requests, clients that disconnect, and faults."""

from __future__ import annotations

import asyncio

import pytest
from gateway_sessions import Opened, asks, opened, tools

from verl_mas.config.schema import AgentSpec
from verl_mas.errors import EngineLost, FaultKind
from verl_mas.gateway.dialect import ApiError
from verl_mas.gateway.session import cut_at
from verl_mas.testing.scripted_llm import ScriptedLLM, calls
from verl_mas.workflow.client import ToolCall


async def test_calls_without_an_id_get_one_that_every_chat_template_takes():
    def answer(request, branch):
        return calls(("add", {}), ("add", {}))

    llm = ScriptedLLM(answer)
    async with opened(llm) as team:
        generate = llm.generate

        async def without_ids(request, n=1):
            [made] = await generate(request, n)
            vars(made)["tool_calls"] = [ToolCall(call.name, call.arguments) for call in made.tool_calls]
            return [made]

        llm.generate = without_ids
        served = await team.ask("q", tools=tools("add"))
        ids = [call.id for call in served.calls]
        assert len(set(ids)) == 2 and all(len(each) == 9 and each.isalnum() for each in ids)
        assert [call["id"] for call in served.reply.message["tool_calls"]] == ids


async def test_no_two_calls_of_a_session_have_one_id():
    async with opened(calls(("add", {}), ("add", {}))) as team:
        replies = [await team.ask(text, tools=tools("add")) for text in "qr"]
        ids = [call["id"] for served in replies for call in served.reply.message["tool_calls"]]
        assert len(set(ids)) == 4 and ids == [call.id for served in replies for call in served.calls]


async def test_a_program_that_leaves_thoughts_out_continues_its_row_unless_it_is_to_start_one():
    reply = "<think>why</think>a"
    for thinking, rows in (("keep", [[reply, reply]]), ("drop", [[reply], [reply]])):
        async with opened(reply, thinking=thinking) as team:
            await team.ask("q")
            await team.ask("q", {"role": "assistant", "content": "a"}, "r")
            assert team.rows == rows


def test_the_first_of_several_stop_strings_counts():
    assert cut_at("a END b STOP", ["STOP", "END"]) == ("a ", "END") and cut_at("a", ["b"]) == ("a", None)


async def test_the_settings_of_the_agent_count_and_a_program_only_shortens(caplog):
    agents = {"solver": AgentSpec(sampling={"temperature": 0.7, "max_tokens": 8, "stop": ["\n"]})}
    async with opened(agents=agents) as team:
        await team.ask("q", unused={"temperature": 0, "top_p": 0.1}, max_tokens=100, stop=["x"])
        assert team.llm.requests[0].sampling == {"temperature": 0.7, "max_tokens": 8, "stop": ["\n", "x"]}
        assert "which has no effect: mas.agents.solver.sampling counts" in caplog.text
        await team.ask("q", max_tokens=2)
        assert team.llm.requests[1].sampling == {"temperature": 0.7, "max_tokens": 2, "stop": ["\n"]}
        with pytest.raises(ApiError, match="max_tokens"):
            await team.ask("q", max_tokens=0)


NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


async def test_an_agent_answers_until_its_reply_has_the_type_and_every_attempt_is_trained_once():
    wrong = ["ok", "no", '{"n": "1"}', '{"n": 1}']
    async with opened(wrong, typed={"solver": 4}, agents={"solver": AgentSpec(format_penalty=0.5)}) as team:
        first = await team.ask("q")
        served = await team.ask("q", first.message, "r", schema=NUMBER)
        assert served.text == wrong[-1] and team.rows == [["ok", "no"], wrong[2:3], wrong[3:]]
        reasons = [reply.malformed for reply in team.session.replies]
        assert reasons[0] is reasons[3] is None
        assert "not JSON" in reasons[1] and reasons[2] == "$.n: '1' is not of type 'integer'"
        prompts = [reply.messages for reply in team.session.replies[1:]]
        assert prompts[0] == prompts[1] == prompts[2]
        assert team.origins == ["new", "continued", "attempt", "attempt"]
        trained = sum(sum(row.generation.response_mask) for row in team.session.rows())
        assert trained == sum(reply.generation.sampled for reply in team.session.replies)
        again = await team.ask("q", first.message, "r", served.message, "s")
        assert again.reply.row == served.reply.row


@pytest.mark.parametrize(
    ("model", "replies", "how", "malformed"),
    [
        ("solver", "no", {"schema": NUMBER}, [True, True]),
        ("solver", "no", {}, [False]),
        ("critic", "no", {"schema": NUMBER}, [False]),
        ("solver", calls(("add", {})), {"schema": NUMBER, "tools": tools("add")}, [False]),
        ("solver", '{"n": 1}</end>', {"schema": NUMBER, "stop": ["</end>"]}, [False]),
    ],
)
async def test_the_last_attempt_is_the_reply_and_only_typed_text_of_such_agents_is_checked(
    model, replies, how, malformed
):
    async with opened(replies, typed={"solver": 2}) as team:
        await team.ask("q", model=model, **how)
        assert [reply.malformed is not None for reply in team.session.replies] == malformed


@pytest.mark.parametrize("schema", [{"type": "nope"}, {"$ref": "http://127.0.0.1:9/x"}, 5])
async def test_a_schema_that_is_none_is_refused_by_name_and_nothing_is_downloaded(schema):
    async with opened("{}", typed={"solver": 2}) as team:
        with pytest.raises(ApiError, match="the JSON schema of the reply is not valid"):
            await team.ask("q", schema=schema)


async def test_a_reply_that_is_not_of_the_session_is_refused_by_its_id():
    async with opened(["a", "b"]) as team:
        await team.ask("q")
        with pytest.raises(ApiError, match="no reply 'act_0'"):
            await team.ask("r", after="act_0")


# -- requests that come twice, and clients that go -------------------------------------------------------------------


async def test_equal_requests_are_samples_of_their_own():
    async with opened() as team:
        await asyncio.gather(*(team.ask("q") for _ in range(5)))
        assert len(team.rows) == 5


async def test_a_request_that_is_sent_again_joins_its_act_or_gets_the_same_reply():
    async with opened(ScriptedLLM("r", latency=0.02)) as team:
        served = await asyncio.gather(team.ask("q"), team.ask("q", again=True))
        assert served[0] is served[1] is await team.ask("q", again=True) and len(team.llm.requests) == 1


async def left(team: Opened, *messages: object, seconds: float = 0.0) -> None:
    """Send a request, and disconnect before the reply."""
    asked = asks(*messages)
    with team.gateway.exchange(asked, repr(asked).encode()):
        await asyncio.sleep(seconds)


async def test_a_client_that_is_gone_has_a_grace_in_which_it_may_ask_again():
    async with opened(ScriptedLLM("r", latency=0.03), grace_s=5.0) as team:
        await left(team, "q")
        assert (await team.ask("q")).text == "r" and len(team.llm.requests) == 1 and team.rows == [["r"]]


async def test_a_reply_that_was_continued_has_been_received():
    async with opened(["a", "b"], grace_s=0.01) as team:
        await left(team, "q", seconds=0.005)
        await team.ask("q", {"role": "assistant", "content": "a"}, "r")
        await asyncio.sleep(0.03)
        assert team.rows == [["a", "b"]]


async def test_the_end_of_a_session_cancels_what_runs_and_answers_no_more():
    async with opened(ScriptedLLM("r", latency=5.0)) as team:
        asking = asyncio.ensure_future(team.ask("q"))
        await asyncio.sleep(0.01)
        await team.gateway.close()
        with pytest.raises(asyncio.CancelledError):
            await asking
        with pytest.raises(ApiError, match="the session is over"):
            await team.ask("q")


# -- faults ----------------------------------------------------------------------------------------------------------


async def test_a_model_that_no_agent_has_is_a_fault_that_names_the_agents():
    async with opened(models={"gpt-5-mini": "solver"}) as team:
        assert (await team.ask("q", model="gpt-5-mini")).reply.agent == "solver"
        with pytest.raises(ApiError, match="known: critic, solver") as refused:
            await team.ask("q", model="gpt-9")
        assert refused.value.status == 404 and team.gateway.fault.kind is FaultKind.WORKFLOW
    async with opened(models={"*": "critic"}) as team:
        assert (await team.ask("q", model="gpt-9")).reply.agent == "critic"


async def test_more_requests_than_may_run_are_sent_away_and_come_again_as_new_ones():
    async with opened(ScriptedLLM("r", latency=0.02), in_flight=2) as team:
        asking = [asyncio.ensure_future(team.ask("q")) for _ in range(3)]
        with pytest.raises(ApiError) as refused:
            await asyncio.gather(*asking)
        assert refused.value.status == 429 and refused.value.headers["retry-after"] == "1"
        await asyncio.wait(asking)
        await team.ask("q", again=True)
        assert len(team.rows) == 3 and team.gateway.fault is None


async def test_tokens_that_do_not_begin_with_those_that_were_continued_end_the_run():
    async with opened() as team:
        first = await team.ask("q")
        vars(first.reply.generation)["prompt_ids"] = [1, 2, 3]
        vars(team.llm)["generate"] = forging(team.llm.generate)
        with pytest.raises(EngineLost, match="do not begin with"):
            await team.ask("q", first.message, "r")


def forging(generate):
    async def forged(request, n=1):
        [made] = await generate(request, n)
        vars(made)["prompt_ids"] = [9, *made.prompt_ids[1:]]
        return [made]

    return forged
