"""Harbor's trajectories of sessions."""

import json
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from view_runs import act, session

from verl_mas.errors import DataError
from verl_mas.results.formats.atif import read_trajectories, trajectories, write_trajectories
from verl_mas.results.formats.sessions import act_messages

CALL, BROKEN = ({"name": "press", "arguments": arguments} for arguments in ({"button": "red"}, "{cut"))
STEPS = [
    {"role": "assistant", "content": None, "tool_calls": [{"function": CALL}, {"function": BROKEN, "id": "b"}]},
    {"role": "tool", "content": "red is on"},
    {"role": "tool", "content": "no such call", "tool_call_id": "b"},
    {"role": "assistant", "content": "Done."},
]


def written(folder, *acts):
    write_trajectories([session(acts=list(acts), uid="a/b")], folder / "out", Counter(), "team")
    (path,) = (folder / "out").iterdir()
    return json.loads(path.read_text())


def test_a_trajectory_of_the_team_embeds_those_of_its_agents(tmp_path):
    later = [*act()["messages"], {"role": "assistant", "content": "Answer: 4"}, {"role": "user", "content": "Sure?"}]
    first = act(tokens=[["Do", -0.5], ["ne", -0.25], [".", 0.0]], reward={"score": 0.5})
    made = written(tmp_path, first, act("checker"), act(text="Yes", messages=later))
    solver, checker = made["subagent_trajectories"]
    results = [step["observation"]["results"][0] for step in made["steps"][1:]]
    places = [result["subagent_trajectory_ref"][0]["trajectory_id"] for result in results]
    assert places == [part["trajectory_id"] for part in (solver, checker, solver)]
    # The second prompt of the solver continues its first act.
    assert [step["source"] for step in solver["steps"]] == ["system", "user", "agent", "user", "agent"]
    first = solver["steps"][2]
    assert first["metrics"]["logprobs"] == [-0.5, -0.25, 0.0] and first["metrics"]["extra"]["tokens"][0] == "Do"
    assert (first["metrics"]["prompt_tokens"], first["metrics"]["completion_tokens"]) == (8, 3)
    assert first["extra"]["reward"] == {"score": 0.5} and made["extra"]["outcome"]["reward"] == 1.0


def test_results_of_tools_are_observations_and_what_a_prompt_repeats_is_copied(tmp_path):
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a draft of somebody else"}]
    made = written(tmp_path, act(messages=messages, steps=STEPS, text="Done."))
    _, copied, called, last = made["subagent_trajectories"][0]["steps"]
    assert copied["is_copied_context"] and "is_copied_context" not in last
    assert [one["arguments"] for one in called["tool_calls"]] == [{"button": "red"}, {"unreadable": "{cut"}]
    assert [one["source_call_id"] for one in called["observation"]["results"]] == ["call_2_0", "b"]
    assert last["llm_call_count"] == 2 and "metrics" not in called


def back(folder):
    return list(read_trajectories(trajectories(folder), Counter()))


AGENTS = st.sampled_from(["solver", "checker"])
SPEAK = st.sampled_from([[{"role": "user", "content": "Sure?"}], [{"role": "tool", "content": "red is on"}], []])
REPLIES = st.sampled_from([{"text": "4"}, {"text": "Done.", "steps": STEPS}])
CALL_OF_PROGRAM = {"text": "", "steps": [{"role": "assistant", "content": "", "tool_calls": [{"function": CALL}]}]}


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines that run tests are loaded
@given(st.lists(st.tuples(AGENTS, st.booleans(), SPEAK, REPLIES | st.just(CALL_OF_PROGRAM)), min_size=1, max_size=6))
def test_what_was_written_is_read_again(tmp_path_factory, turns):
    """Turns of conversations, which continue or restart; a tool that a program calls answers in the next prompt."""
    known, acts = {}, []
    for number, (agent, continues, new, reply) in enumerate(turns):
        before = known.get(agent, []) if continues else []
        if not before or "tool_calls" not in before[-1]:
            new = [message for message in new if message["role"] != "tool"]
        one = act(agent, messages=[*(before or act(agent)["messages"]), *new], **reply)
        one |= {"turn": number, "reward": {"score": number / 4}, "tokens": [["D", -0.5], ["o", -1.0], [".", 0.0]]}
        prompt, made = act_messages(one)
        known[agent] = prompt + made
        acts.append(one)
    folder = tmp_path_factory.mktemp("run")
    record = session(acts=acts)
    write_trajectories([record], folder / "out", Counter(), "team")
    (read,) = back(folder / "out")
    assert [act_messages(one) for one in read["acts"]] == [act_messages(one) for one in record["acts"]]
    for one, other in pairwise([read, record]):
        assert one.keys() == other.keys() and all(one[name] == other[name] for name in one.keys() - {"acts"})
    for one, other in zip(read["acts"], record["acts"], strict=True):
        assert all(one[name] == other[name] for name in other.keys() - {"messages", "steps"})


# A trajectory of another tool, in the form in which Harbor's own classes write it.
OTHER = {
    "schema_version": "ATIF-v1.8",
    "agent": {"name": "terminus", "version": "2.0", "model_name": "x"},
    "steps": [
        {"step_id": 1, "source": "user", "message": [{"type": "text", "text": "What is in a?"}]},
        {
            "step_id": 2,
            "source": "agent",
            "message": "I look.",
            "reasoning_content": "hm",
            "tool_calls": [{"tool_call_id": "c", "function_name": "shell", "arguments": {"cmd": "cat a"}}],
            "observation": {"results": [{"source_call_id": "c", "content": "42"}]},
        },
        {"step_id": 3, "source": "agent", "message": "no model wrote this", "llm_call_count": 0},
        {"step_id": 4, "source": "agent", "message": "It is 42.", "model_name": "y"},
    ],
}


def test_each_reply_of_another_tools_model_is_an_act_with_what_came_before(tmp_path):
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial/trajectory.json").write_text(json.dumps(OTHER))
    (tmp_path / "result.json").write_text("{}")
    counts = Counter()
    ((first, last),) = (record["acts"] for record in read_trajectories(trajectories(tmp_path), counts))
    assert [message["role"] for message in act_messages(last)[0]] == ["user", "assistant", "tool", "assistant"]
    assert (first["policy"], last["policy"], last["text"], last["reward"]["score"]) == ("x", "y", "It is 42.", None)
    assert act_messages(first)[1][0]["tool_calls"][0]["id"] == "c" and counts["replies without their reasoning"] == 1


OURS = {"extra": {"schema": 2}, "subagent_trajectories": []}
REFERENCE = {"observation": {"results": [{"subagent_trajectory_ref": [{"trajectory_id": "lost"}]}]}}


@pytest.mark.parametrize(
    "cut",
    [{"steps": None}, {"agent": None}, {"extra": {"schema": 1}}, {**OURS, "steps": [{}, REFERENCE]}],
)
def test_a_trajectory_that_is_not_whole_or_of_another_schema_is_refused_by_its_name(tmp_path, cut):
    (tmp_path / "cut.json").write_text(json.dumps(OTHER | cut))
    with pytest.raises(DataError, match=r"cut\.json: .*\n  rule: "):
        back(tmp_path)
