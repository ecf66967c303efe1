"""What other tools read of session records, and what is counted as left out."""

import json
from collections import Counter

import pytest
from view_runs import act, session, write_run

from verl_mas.errors import DataError
from verl_mas.formats.sessions import chats, preferences, records_of, write_table, write_trajectories
from verl_mas.sessions.run import open_run

CALL, BROKEN = ({"name": "press", "arguments": arguments} for arguments in ({"button": "red"}, "{cut"))
STEPS = [
    {"role": "assistant", "content": None, "tool_calls": [{"function": CALL}, {"function": BROKEN, "id": "b"}]},
    {"role": "tool", "content": "red is on"},
    {"role": "tool", "content": "no such call", "tool_call_id": "b"},
    {"role": "assistant", "content": "Done."},
]


def scored(score, **more):
    return act(**more) | {"reward": {"score": score}}


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


def test_chats_leave_out_what_a_model_should_not_learn_and_count_it():
    image = [{"role": "user", "content": [{"type": "image", "file": "images/a.png"}, {"type": "text", "text": "?"}]}]
    acts = [scored(1.0), scored(0.0), act(probe=True), act(text="ab... (9 characters)"), act(messages=image)]
    counts, dropped = Counter(), session(status="dropped", acts=[act()])
    (row,) = chats([session(acts=acts), dropped], counts, min_reward=0.5)
    assert [message["role"] for message in row["messages"]] == ["system", "user", "assistant"]
    assert (row["reward"], row["session"], row["task"], row["step"]) == (1.0, "1-0_0", "1-0", 1)
    assert set(counts.values()) == {1} and len(counts) == 5


def test_pairs_are_the_best_and_the_worst_of_one_prompt_within_a_task():
    sessions = [session(number=n, acts=[scored(n / 2, text=f"{n}"), scored(1.0, agent="checker")]) for n in range(3)]
    counts = Counter()
    (pair,) = preferences([*sessions, session(uid="1-1", acts=[scored(0.0)])], counts)
    assert (pair["chosen"][0]["content"], pair["rejected"][0]["content"], pair["agent"]) == ("2", "0", "solver")
    assert (pair["reward_chosen"], pair["reward_rejected"], sorted(counts.values())) == (1.0, 0.0, [1, 4])


def test_a_table_without_rows_says_why(tmp_path):
    with pytest.raises(DataError, match="'acts left out': 3"):
        write_table([], tmp_path / "sft.parquet", Counter({"acts left out": 3}))
    assert not (tmp_path / "sft.parquet").exists()


def test_records_are_those_of_the_steps_and_damaged_ones_are_counted(tmp_path):
    run, counts = open_run(write_run(tmp_path, [session(step, f"{step}-0") for step in (1, 2, 3)])), Counter()
    records = records_of(run, "train", (2, 3), counts)
    assert next(records)["step"] == 2
    next((run.trajectories / "train").glob("000003-*")).write_text("cut")
    assert list(records) == []
    assert +counts == {"sessions": 1, "sessions left out with a damaged record": 1}
