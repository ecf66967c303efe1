"""Harbor's trajectories of sessions."""

import json
from collections import Counter

from view_runs import act, session

from verl_mas.formats.atif import write_trajectories

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
