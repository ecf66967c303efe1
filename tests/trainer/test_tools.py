"""A policy that was taught to call tools calls them in a real run: one with state, and one by name."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer
from verl.tools.function_tool import load_function_tools_from_path

from verl_mas import AgentSpec, ScriptedLLM, calls, run
from verl_mas.config.schema import WorkflowSpec
from verl_mas.gym.warmup import Lesson, WarmUp, warm_up
from verl_mas.sessions.reader import read_sessions
from verl_mas.testing.letters import LENGTH, LETTERS, row
from verl_mas.testing.tiny_model import byte_tokenizer
from verl_mas.workflow import Task
from verl_mas.workflow.base import resolve

pytestmark = pytest.mark.e2e
HERE = Path(__file__).parent
TOOLS = HERE / "drawer_tools.py"
# As Qwen's, which has the schemas in the system prompt and results of tools in a user message.
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response><|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TAKE = '<tool_call>\n{"name": "take", "arguments": {}}\n</tool_call>'


def lessons():
    """An expert on every letter: it takes until the drawer is empty, and repeats the letter by its other tool."""
    tokenizer = byte_tokenizer()
    workflow = resolve(WorkflowSpec(name="Drawers", path=str(HERE / "teams.py")))
    for letter in LETTERS:
        acts = [calls(("take", {})), calls(("take", {})), calls(("repeat", {"letter": letter})), letter * LENGTH]
        llm = ScriptedLLM(acts)
        task = Task(row(LETTERS.index(letter))["prompt"], ground_truth=letter)
        tools = load_function_tools_from_path(str(TOOLS))
        run(workflow, task, llm, agents={"taker": AgentSpec(tools=["repeat"])}, tools=tools)
        repeat = f'<tool_call>\n{{"name": "repeat", "arguments": {{"letter": "{letter}"}}}}\n</tool_call>'
        for request, reply in zip(llm.requests, [TAKE, TAKE, repeat, letter * LENGTH], strict=True):
            given = {"tools": request.tools, "chat_template": TEMPLATE, "add_generation_prompt": True}
            prompt = tokenizer.apply_chat_template(request.messages, tokenize=False, **given)
            yield Lesson("taker", prompt, reply)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """After seconds of lessons it calls both tools, and repeats a letter that is sometimes the right one."""
    folder = tmp_path_factory.mktemp("taught")
    warm_up(folder, lessons(), WarmUp(layers=1, steps=100, batch=8, learning_rate=1e-2), lambda step, loss: None)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Where the rows are that the trainer got, by step."""
    folder = tmp_path_factory.mktemp("rows")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE.parent / "rollout"), prepend=os.pathsep)
        patch.setenv("ROWS_DIR", str(folder))
        yield folder


@pytest.fixture(scope="module")
def trained(train_team, model, rows, tmp_path_factory):
    return train_team(
        tmp_path_factory.mktemp("tools") / "run",
        "Drawers",
        f"++mas.agents.taker.tools=[repeat] actor_rollout_ref.rollout.multi_turn.function_tool_path={TOOLS}",
        f"actor_rollout_ref.model.path={model} actor_rollout_ref.actor.optim.lr=1e-4 data.max_prompt_length=160",
        f"data.max_response_length=256 trainer.v1.sampler.custom_sampler.path={HERE.parent}/rollout/row_recorder.py",
        "trainer.v1.sampler.custom_sampler.name=RowRecorder trainer.save_freq=1 trainer.total_training_steps=2",
    )


@pytest.fixture(scope="module")
def acts(trained):
    """The act of every session, with its task."""
    sessions = list(read_sessions(trained.folder / "checkpoints" / "trajectories"))
    assert [session["step"] for session in sessions] == [1] * 16 + [2] * 16
    return [{**act, "letter": session["task"]["ground_truth"]} for session in sessions for act in session["acts"]]


@pytest.fixture(scope="module")
def taught(acts):
    """The acts that call the tools as the lessons do. A longer text, repeated, would fill the row."""

    def names(act):
        return [call["name"] for call in act["tool_calls"] if call["name"] != "take" or call["arguments"] == "{}"]

    three = [act for act in acts if len(act["tool_calls"]) == 3 and names(act) == ["take", "take", "repeat"]]
    found = [act for act in three if len(act["tool_calls"][2]["arguments"]) <= len('{"letter": "a"}')]
    assert len(found) > 8
    return found


def test_the_calls_that_the_policy_writes_are_made_and_recorded(taught):
    for act in taught:
        took, missed, repeated = act["tool_calls"]
        assert took["result"] == act["letter"], "each session has a drawer of its own"
        assert missed["error"] == "Error executing tool 'take': the drawer is empty"
        assert repeated["error"] or repeated["result"] == LENGTH * json.loads(repeated["arguments"])["letter"]
        assert [message["role"] for message in act["steps"]] == [*["assistant", "tool"] * 3, "assistant"]
        assert act["reward"]["local"] == 0.25


def test_the_metrics_count_the_calls(trained, acts):
    found = [call for act in acts[16:] for call in act["tool_calls"]]
    failed = [call for call in found if call["error"] is not None]
    assert trained.steps[2]["agent/taker/tool_calls"] == pytest.approx(len(found) / 16)
    assert trained.steps[2]["agent/taker/tool_errors"] == pytest.approx(len(failed) / len(found))


def test_rows_train_what_was_sampled_and_mask_the_results(acts, taught, rows, model):
    decode = AutoTokenizer.from_pretrained(model).decode
    given = [pickle.loads((rows / f"train-{step}.pickle").read_bytes()) for step in (1, 2)]
    of_key = {each["key"]: each["fields"] for each in [*given[0], *given[1]]}
    assert of_key.keys() == {act["key"] for act in acts}
    assert all(sum(of_key[act["key"]]["response_mask"]) == act["sampled_tokens"] for act in acts)
    for act in taught:
        fields = of_key[act["key"]]
        tokens = list(zip(fields["responses"], fields["response_mask"], strict=True))
        sampled, masked = (decode([token for token, mask in tokens if mask == kind]) for kind in (1, 0))
        assert sampled.startswith(f"{TAKE}<|im_end|>{TAKE}<|im_end|><tool_call>") and "<tool_response>" not in sampled
        results = [message["content"] for message in act["steps"] if message["role"] == "tool"]
        assert masked.split("<tool_response>\n")[1:] == [
            f"{result}\n</tool_response><|im_end|>\n<|im_start|>assistant\n" + "\n<|im_start|>user\n" * (place < 2)
            for place, result in enumerate(results)
        ]


def test_the_policy_learns_from_them(trained, weights_of):
    before, after = (weights_of(trained.checkpoint(step) / "main") for step in (1, 2))
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert trained.steps[2]["actor/grad_norm"] > 0
    assert trained.steps[2]["training/rollout_probs_diff_max"] < 1e-5, "the tokens of the row are the engine's"
