"""Regressions of real clients, which once got a wrong prompt, lost a call or raised an error. Needs the environments of
`make frameworks`."""

from functools import partial

import pytest
from framework_programs import ENVIRONMENTS, HERE, MISSING, node

import verl_mas
from verl_mas.config.schema import FaultSpec
from verl_mas.testing.scripted_llm import ScriptedLLM, calls
from verl_mas.workflow.session import Session
from verl_mas.workflow.task import Task
from verl_mas.workflows.program import ReferredProgram

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(MISSING), reason=f"{MISSING} missing: make frameworks")]
FOLDER = HERE / "programs" / "clients"
TASK = Task([{"role": "user", "content": "2 + 3 = ?"}], ground_truth="5")


def program(name: str, *, models: dict[str, str] | None = None, **args: object) -> ReferredProgram:
    """Make a program of a function in a file, such as `newest:tool_runner`, or of a file that is a command."""
    file, _, function = name.partition(":")
    kinds = {"openai_2": "openai-2", "llama_index_model.py": "openai-2", "openai_0.py": "openai-0"}
    runs = node() if file.endswith(".mjs") else str(ENVIRONMENTS[kinds.get(file, "")] / "bin" / "python")
    how = {"function": f"{FOLDER}/{file}.py:{function}", "python": runs} if function else {}
    how |= {} if function else {"command": [runs, f"{FOLDER}/{file}"]}
    return ReferredProgram(agents=("solver",), models=models or {}, **how, **args)


def played(name: str, *replies: object, models: dict[str, str] | None = None, **args: object) -> Session:
    llm = ScriptedLLM(list(replies))
    return verl_mas.run(program(name, models=models, **args), TASK, llm, faults=FaultSpec(retries=0))


def prompts(session: Session) -> list[list[str]]:
    return [[str(message["role"]) for message in reply.messages] for reply in session.replies]


def test_a_client_that_reads_one_call_per_chunk_has_both_calls():
    both = calls(("add", {"a": 1}), ("add", {"a": 2}))
    assert played("newest:streamed_calls", both).answer == '0 {"a": 1} 1 {"a": 2}'


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("called_and_returned_nothing", ("final_answer", {"answer": "5"})),
        ("typed_and_returned_nothing", ("final_result", {"number": 5})),
    ],
)
def test_an_empty_answer_behind_a_call_is_a_note(name, call):
    report = verl_mas.check_workflow(partial(program, f"newest:{name}"), calls(call), TASK)
    assert any(f"the last reply is a call of {call[0]}" in note for note in report.notes), report


def test_vercels_sdk_names_items_by_their_ids_and_stays_in_one_row():
    session = played("ai_sdk.mjs", calls(("add", {"a": 2, "b": 3}), text="I add."), "5", "Yes, 5")
    assert session.answer == "Yes, 5" and len(session.rows()) == 1
    assert prompts(session)[-1] == ["user", "assistant", "tool", "assistant", "user"]


def test_anthropics_tool_runner_sends_everything_and_stays_in_one_row():
    session = played("newest:tool_runner", calls(("add", {"a": 2, "b": 3})), "5")
    assert session.answer == "5" and len(session.rows()) == 1
    assert prompts(session) == [["system", "user"], ["system", "user", "assistant", "tool"]]


def test_the_schema_of_anthropics_typed_reply_is_in_the_system_prompt():
    session = played("newest:typed_claude", "five", '{"number": 5}', typed={"solver": 2})
    assert [reply.malformed for reply in session.replies][1:] == [None]
    assert session.answer == "5" and '"number"' in session.replies[0].messages[0]["content"]


@pytest.mark.parametrize("name", ["llama_index_model.py", "openai_0.py"])
def test_a_command_finds_the_gateway_by_the_variable_of_its_own_client(name):
    assert played(name, "5", models={"*": "solver"}).answer == "5"


@pytest.mark.parametrize("name", ["newest:other_names", "openai_2:other_names"])
def test_the_agent_is_in_the_address_and_the_name_of_the_model_is_free(name):
    session = played(name, "4", "5")
    assert session.answer == "4 5" and [reply.agent for reply in session.replies] == ["solver", "solver"]
