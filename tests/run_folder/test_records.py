"""Records and their lines: nothing is lost, and each message is stored once."""

import json

import pyarrow
import pyarrow.parquet as pq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from view_runs import act, session

from verl_mas.run_folder.records import EXCERPT, left_out, listed, packed, unpacked
from verl_mas.run_folder.session_files import read_entries, read_lines, write_table

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
PART = st.fixed_dictionaries({"type": st.just("text"), "text": TEXT}) | st.just({"type": "image", "file": "x"})
CONTENT = st.none() | TEXT | st.lists(PART, max_size=2)
MESSAGE = st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "tool"]), "content": CONTENT})
MESSAGES = st.lists(MESSAGE, max_size=4)
LOG_PROB = st.none() | st.integers(-900, 0).map(lambda hundredths: hundredths / 100)
TOKENS = st.none() | st.lists(st.tuples(TEXT, LOG_PROB).map(list), max_size=5)
# Machines that run tests are loaded.
LOADED = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def records(draw):
    acts = []
    for agent in draw(st.lists(st.sampled_from(["solver", "verifier"]), max_size=4)):
        reward = {"team": 0.0, "local": 0.0, "penalty": 0.0, "score": draw(NUMBER), "parts": {}}
        malformed, probe = draw(st.sampled_from([None, "no answer"])), draw(st.booleans())
        lists = {"messages": draw(MESSAGES), "steps": draw(MESSAGES), "tokens": draw(TOKENS)}
        acts.append({**act(agent), **lists, "reward": reward, "malformed": malformed, "probe": probe})
    task = {"messages": draw(MESSAGES), "ground_truth": "4", "data_source": "sums", "index": 0}
    return {**session(uid=draw(TEXT), task=task), "acts": acts}


RECORD = records()


@given(RECORD)
@LOADED
def test_a_record_is_read_as_it_was_and_a_line_is_one_line(record):
    line = packed(record)
    assert unpacked(line) == record
    assert line.count(b"\n") == 1 and line.endswith(b"\n")


@given(st.lists(RECORD, min_size=1, max_size=3))
@LOADED
def test_a_table_has_the_lines_and_lists_of_each_record_what_the_record_says(tmp_path_factory, records):
    path, lines = tmp_path_factory.getbasetemp() / "table.parquet", [packed(record) for record in records]
    entries = [listed(record) for record in records]
    write_table(path, lines, entries)
    assert read_lines(path) == lines and read_entries(path) == entries
    for entry, record in zip(entries, records, strict=True):
        played = [act for act in record["acts"] if not act["probe"]]
        assert entry.agents == list(dict.fromkeys(act["agent"] for act in record["acts"]))
        scores = {name: [act["reward"]["score"] for act in played if act["agent"] == name] for name in entry.scores}
        assert entry.scores == {name: [min(values), max(values)] for name, values in scores.items()}
        assert entry.malformed == sum(act["malformed"] is not None for act in record["acts"])
        assert len(entry.question) <= EXCERPT


def record_with(*prompts):
    act = {"messages": [], "steps": [], "tokens": None, "reward": {}}
    return {"uid": "u", "session": 0, "task": {"messages": []}, "acts": [{**act, "messages": list(p)} for p in prompts]}


def test_candidates_and_later_turns_store_no_message_again():
    first, answer, second = ({"role": "user", "content": letter * 1000} for letter in "abc")
    # Equal messages are stored once, even if they are different objects.
    line = packed(record_with([first], [dict(first)], [first, answer, second]))
    assert len(line) < 3 * 1000 + 500
    stored = json.loads(line)
    assert [act["messages"] for act in stored["acts"]] == [[0, 1], [0, 1], [0, 3]]
    assert [message["content"][0] for message in stored["messages"]] == list("abc")


def test_an_entry_of_another_version_is_read_with_what_both_know_and_a_session_left_out_is_a_line(tmp_path):
    known = {"uid": "u", "session": 1, "step": 2, "partition": "val", "colour": "red"}
    pq.write_table(pyarrow.table({"session": [json.dumps(known)]}), tmp_path / "table.parquet")
    (entry,) = read_entries(tmp_path / "table.parquet")
    assert (entry.key, entry.step, entry.status, entry.faults) == ("u_1", 2, "", ())
    record = unpacked(packed(left_out("u", 3, 2, "train")))
    assert listed(record).left_out and listed(record).key == "u_3"
