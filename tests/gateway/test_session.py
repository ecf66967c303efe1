"""Requests as acts: their rows, repeated requests, clients that disconnect, and faults."""

import asyncio
from itertools import count

import pytest
from gateway_sessions import Opened, asks, opened, tools

from verl_mas.config.schema import AgentSpec
from verl_mas.errors import EngineLost, FaultKind
from verl_mas.gateway.dialect import ApiError
from verl_mas.gateway.session import cut_at
from verl_mas.testing.scripted_llm import ScriptedLLM, calls
from verl_mas.workflow.client import ToolCall


class Changed(ScriptedLLM):
    """An engine whose generations are changed by a function of their fields."""

    def __init__(self, rules, change):
        super().__init__(rules)
        self._change = change

    async def generate(self, request, n=1):
        made = await super().generate(request, n)
        for each in made:
            self._change(vars(each))
        return made


@pytest.mark.parametrize("given", [True, False])
async def test_every_call_of_a_session_has_an_id_of_its_own_that_every_chat_template_takes(given):
    def change(fields):
        fields["tool_calls"] = [
            ToolCall(each.name, each.arguments, each.id if given else None) for each in fields["tool_calls"]
        ]

    async with opened(Changed(calls(("add", {}), ("add", {})), change)) as team:
        served = [await team.ask(text, tools=tools("add")) for text in "qr"]
        ids = [call.id for each in served for call in each.calls]
        assert (
            len(set(ids)) == 4 and [call["id"] for each in served for call in each.reply.message["tool_calls"]] == ids
        )
        assert given or all(len(each) == 9 and each.isalnum() for each in ids)


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
        for wrong, says in (({"max_tokens": 0}, "max_tokens"), ({"after": "act_0"}, "no reply 'act_0'")):
            with pytest.raises(ApiError, match=says):
                await team.ask("q", **wrong)


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
async def test_an_invalid_schema_is_refused_and_nothing_is_downloaded(schema):
    async with opened("{}", typed={"solver": 2}) as team:
        with pytest.raises(ApiError, match="the JSON schema of the reply is not valid"):
            await team.ask("q", schema=schema)


# -- requests that come twice, and clients that go -------------------------------------------------------------------


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
    async with opened(["a", "b"], grace_s=0.01) as team:
        await left(team, "q", seconds=0.005)
        await team.ask("q", {"role": "assistant", "content": "a"}, "r")
        await asyncio.sleep(0.03)
        assert team.rows == [["a", "b"]], "a reply that was continued has been received"


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
        with pytest.raises(ApiError, match="the name in the address is that of an agent"):
            await team.ask("q", agent="gpt-9")


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
    numbers = count()

    def change(fields):
        fields["prompt_ids"] = [next(numbers), *fields["prompt_ids"][1:]]

    async with opened(Changed("r", change)) as team:
        first = await team.ask("q")
        with pytest.raises(EngineLost, match="do not begin with"):
            await team.ask("q", first.message, "r")
