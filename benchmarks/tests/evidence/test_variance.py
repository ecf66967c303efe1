"""The variance of scores is split into a part between histories and a part within histories."""

from __future__ import annotations

import random

import pytest

from benchmarks.evidence.variance import Variance, components, main, variance
from verl_mas.run_folder.records import packed


def record(uid, session, scores, *, agent="a", turn=0, probe=False, status="finished"):
    acts = [
        {"agent": agent, "instance": 0, "turn": turn, "probe": probe, "reward": {"score": score}} for score in scores
    ]
    return {"uid": uid, "session": session, "step": 1, "status": status, "acts": acts}


@pytest.mark.parametrize(("between", "within"), [(0.0, 1.0), (0.5, 0.5), (2.0, 0.1)])
def test_both_parts_are_recovered_from_many_groups_of_uneven_size(between, within):
    rng = random.Random(0)

    def drawn(uid):
        for session in range(4):
            history = rng.gauss(uid, between**0.5)
            yield record(str(uid), session, [rng.gauss(history, within**0.5) for _ in range(2 + session)])

    found = variance(session for uid in range(1500) for session in drawn(uid))
    assert found.groups == 1500
    assert (found.between, found.within) == (pytest.approx(between, abs=0.12), pytest.approx(within, abs=0.05))


def test_histories_that_decide_everything_have_the_whole_variance_and_equal_ones_none():
    assert components([[1.0, 1.0], [0.0, 0.0]]) == (0.5, 0.0)
    assert Variance(0.5, 0.0, 1).share == 1.0
    same = components([[1.0, 0.0], [0.0, 1.0]])
    assert same is not None and same[0] < 0 and same[1] == 0.5


@pytest.mark.parametrize("histories", [[], [[1.0, 0.0]], [[1.0], [0.0]]])
def test_without_two_histories_and_two_candidates_nothing_is_known(histories):
    assert components(histories) is None


def test_probes_dropped_sessions_and_other_agents_do_not_count():
    sessions = [
        record("t", 0, [1.0, 1.0]),
        record("t", 1, [0.0, 0.0]),
        record("t", 2, [9.0, 9.0], probe=True),
        record("t", 3, [9.0, 9.0], status="dropped"),
        record("t", 0, [5.0, 9.0], agent="b"),
    ]
    assert variance(sessions) == variance(sessions, "a") == Variance(0.5, 0.0, 1)
    assert variance(sessions, "b").share is None


def test_a_folder_of_records_is_summed_up_by_agent(tmp_path, capsys):
    (tmp_path / "train").mkdir()
    task = {"messages": [], "index": 0, "data_source": "test"}
    whole = {"partition": "train", "faults": [], "started": 0.0, "seconds": 0.0, "task": task}
    whole["outcome"] = {"answer": None, "reward": None}
    with (tmp_path / "train" / "000001-x-y.jsonl").open("wb") as file:
        for number in range(2):
            session = whole | record("t", number, [1.0 - number] * 2)
            for act in session["acts"]:
                act |= {"key": None, "policy": "main", "malformed": None, "messages": [], "steps": [], "tokens": None}
            file.write(packed(session))
    main(str(tmp_path))
    assert capsys.readouterr().out.splitlines()[1] == "a: 1.000 (between 0.5000, within 0.0000, 1 groups)"
