from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transfer_queue import KVBatchMeta

from verl_mas import data_plane
from verl_mas.config.schema import FaultSpec
from verl_mas.errors import SessionsFailed
from verl_mas.rollout.counts import SessionCounts
from verl_mas.trainer.validation import ScoredSession, Validation, ValidationHost, confusion, pass_rates, reported


def session(score, number=0, uid="val1-0-0", verdicts=None, **info):
    return ScoredSession(
        uid=uid, number=number, source="s", truth="t", turns=2, score=score, info=info, verdicts=verdicts or {}
    )


def test_accuracy_goes_before_the_score():
    assert session(0.2, acc=1.0).value == 1.0 and session(2.0, acc=0.0).value == 0.0
    assert session(0.99).value == 0.99


def test_verdicts_are_compared_with_the_truth():
    found = confusion(
        [
            session(1.0, verdicts={"verifier": [(False, False), (True, True)]}),
            session(0.0, verdicts={"verifier": [(True, False)]}),
            session(0.0, verdicts={"verifier": [(None, False)]}),
            session(0.0, verdicts={"verifier": []}),
            session(1.0),
        ]
    )
    assert found == {
        "val-agent/verifier/verdict/accepts_right": 0.25,
        "val-agent/verifier/verdict/accepts_wrong": 0.25,
        "val-agent/verifier/verdict/rejects_wrong": 0.25,
        "val-agent/verifier/verdict/malformed_wrong": 0.25,
    }


SESSIONS = [session(1.0, 0, reviews=2, notes=["a"]), session(0.0, 1, reviews=1)]
EXPECTED = {("s", "val1-0-0"): 3, ("s", "val1-0-1"): 3}


def test_verl_averages_only_numbers_and_text():
    assert reported(SESSIONS) == {"reward": [1.0, 0.0], "reviews": [2, 1]}


def test_sessions_that_failed_solved_nothing():
    found = pass_rates(SESSIONS, EXPECTED)
    assert found["val-core/s/pass@1"] == pytest.approx(1 / 6)
    assert found["val-core/s/pass@3"] == pytest.approx(1 / 2)
    assert found["val-core/s/mean@3"] == pytest.approx(1 / 6), "verl's mean reward leaves failed sessions out"
    assert not any("mean_of_sets" in name for name in found)


def test_several_sets_have_a_plain_mean():
    found = pass_rates([*SESSIONS, ScoredSession("val1-0-9", 0, "other", "t", 2, 1.0, {})], EXPECTED)
    assert found["val-core/mean_of_sets/pass@1"] == pytest.approx((1 / 6 + 1) / 2)


def test_a_session_is_shown_as_one_text():
    made = session(1.0)
    made.acts = [("solver", "2+2?", "5"), ("verifier", "is it 5?", "no")]
    assert made.prompt == "2+2?"
    assert made.text == "[solver] 5\n\n[verifier] no"


FIELDS = {
    "prompts": [[1], [2]],
    "responses": [[3], [4]],
    "response_mask": [[1], [1]],
    "rm_scores": [[0.0], [0.5]],
    "num_turns": [2, 4],
    "data_source": ["s", "s"],
    "reward_model": [{"ground_truth": "t"}] * 2,
    "extra_fields": [{"reward_extra_info": {"acc": 1.0, "verdicts": {"verifier": [(True, True)]}}}] * 2,
}


@pytest.fixture
def host(monkeypatch, tags):
    """A trainer with one task of two sessions, and what it saw; `counts` are those of the rollout."""

    own = [tags("solver", team_reward=0.5), tags("verifier", policy="other", team_reward=0.5)]
    rows = KVBatchMeta(partition_id="val", keys=["val3-0-0_0_0", "val3-0-0_0_1"], tags=[tag.as_dict() for tag in own])
    seen = []
    monkeypatch.setattr(data_plane, "announce", lambda *what: seen.append(what))
    monkeypatch.setattr(data_plane, "clear", lambda cleared: seen.append(cleared.keys))
    monkeypatch.setattr(data_plane, "read", lambda rows, names: {name: as_column(FIELDS[name]) for name in names})
    averaged, dumped = [], []
    made = SimpleNamespace(seen=seen, averaged=averaged, dumped=dumped, rows=rows, counts=SessionCounts(sessions=2))
    made.host = ValidationHost(
        step=3,
        batches=[{"raw_prompt": np.array(["q"], dtype=object), "data_source": np.array(["s"], dtype=object)}],
        sessions_per_task=2,
        dump_folder="folder",
        rollout=SimpleNamespace(
            generate_sequences=lambda prompts: seen.append(list(prompts["uid"])),
            pop_counts=lambda validate: made.counts if validate else None,
        ),
        replay_buffer=SimpleNamespace(sample=lambda **wanted: (rows, {})),
        read_text=lambda policy, ids: f"{policy}:{ids.tolist()}",
        log=lambda **table: None,
        dump=lambda **table: dumped.append(table),
        average=lambda *columns, expected_acc_counts: averaged.append((columns, expected_acc_counts)) or {"mean": 0.5},
        faults=FaultSpec(),
        sessions_at_once=16,
    )
    return made


def test_a_pass_over_the_data_reads_each_session_from_its_rows_and_clears_them(host):
    found = Validation(host.host).run()
    assert host.seen == [(["val3-0-0"], "val", 3), ["val3-0-0"], host.rows.keys]
    columns, expected = host.averaged[0]
    assert columns == (["s"], ["val3-0-0"], {"reward": [0.5], "acc": [1.0]}, [4]) and expected == {("s", "val3-0-0"): 2}
    dumped = host.dumped
    assert dumped[0]["outputs"] == ["[solver] main:[3]\n\n[verifier] other:[4]"] and dumped[0]["gts"] == ["t"]
    assert dumped[0]["reward_extra_infos_dict"]["uid"] == ["val3-0-0_0"]
    assert found["mean"] == 0.5 and found["val-core/s/pass@1"] == 0.5
    assert found["val-agent/verifier/verdict/accepts_right"] == 1.0
    assert found["val-agent/solver/acts"] == 1 and found["val-session/count"] == 2
    assert not any("mean@" in name for name in found), "verl averages the accuracy"


FAILED = SessionCounts(
    sessions=1, failed={"refused": 1}, first_faults={"refused": "session val3-0-0_1: no such setting"}
)


def test_a_validation_in_which_too_many_sessions_failed_is_an_error_and_has_no_score(host):
    host.counts = FAILED + FAILED
    with pytest.raises(SessionsFailed, match="all 2 sessions of the validation at step 3 failed: 2 refused") as raised:
        Validation(host.host).run()
    assert "no such setting" in str(raised.value) and host.averaged == host.dumped == []


def test_a_validation_in_which_more_than_one_in_a_hundred_sessions_timed_out_has_no_score(host):
    host.counts = SessionCounts(sessions=100, failed={"timeout": 2}, first_faults={"timeout": "val3-0-0_1: 600 s"})
    with pytest.raises(SessionsFailed, match="2 of 100 sessions of the validation at step 3 timed out"):
        Validation(host.host).run()
    assert host.averaged == host.dumped == []
    host.counts = SessionCounts(sessions=200, failed={"timeout": 2}, first_faults={"timeout": "val3-0-0_1: 600 s"})
    assert Validation(host.host).run()["val-session/dropped"] == 2


def test_a_few_failed_sessions_count_as_zero_and_the_log_says_so(host, caplog):
    host.counts = FAILED + SessionCounts(sessions=1)
    found = Validation(host.host).run()
    assert found["val-session/dropped"] == 1 and found["val-core/s/pass@1"] == 0.5
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "1 of 2 sessions of the validation at step 3 failed: 1 refused, and count as 0"
    )


def as_column(values):
    tensors = isinstance(values[0], list)
    return torch.nested.as_nested_tensor([torch.tensor(v) for v in values], layout=torch.jagged) if tensors else values
