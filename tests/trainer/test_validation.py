from itertools import combinations
from math import comb
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transfer_queue import KVBatchMeta

from verl_mas.config.run import Run
from verl_mas.errors import SessionsFailed
from verl_mas.rollout.counts import SessionCounts
from verl_mas.trainer.pass_at_k import interval, ks, mean_of_sets, pass_at_k, report
from verl_mas.trainer.timeline import Timeline
from verl_mas.trainer.trainer import TeamTrainer
from verl_mas.trainer.validation import ScoredSession, confusion, pass_rates, reported
from verl_mas.verl_ import data_plane


def session(score, number=0, uid="val1-0-0", source="s", verdicts=None, **info):
    return ScoredSession(uid, number, source, "t", turns=2, score=score, info=info, verdicts=verdicts or {})


def test_verdicts_are_compared_with_the_truth():
    given = [[(False, False), (True, True)], [(True, False)], [(None, False)], []]
    found = confusion([session(1.0), *(session(0.0, verdicts={"verifier": verdicts}) for verdicts in given)])
    kinds = ("accepts_right", "accepts_wrong", "rejects_wrong", "malformed_wrong")
    assert found == {f"val-agent/verifier/verdict/{kind}": 0.25 for kind in kinds}


def test_verl_averages_numbers_and_text_and_a_session_that_failed_solved_nothing():
    sessions = [session(1.0, 0, reviews=2, notes=["a"]), session(0.0, 1, reviews=1)]
    assert reported(sessions) == {"reward": [1.0, 0.0], "reviews": [2, 1]}
    expected = {("s", "val1-0-0"): 3, ("s", "val1-0-1"): 3}
    found = pass_rates(sessions, expected)
    assert found["val-core/s/pass@1"] == pytest.approx(1 / 6)
    assert found["val-core/s/pass@3"] == pytest.approx(1 / 2)
    assert found["val-core/s/mean@3"] == pytest.approx(1 / 6), "verl's mean reward leaves failed sessions out"
    assert not any("mean_of_sets" in name for name in found)
    found = pass_rates([*sessions, session(1.0, uid="val1-0-9", source="other")], expected)
    assert found["val-core/mean_of_sets/pass@1"] == pytest.approx((1 / 6 + 1) / 2)


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
def host(monkeypatch, tags, make):
    """Make a trainer with one task of two sessions, whose calls are recorded. `counts`: the counts of the rollout."""
    own = [tags("solver", team_reward=0.5), tags("verifier", policy="other", team_reward=0.5)]
    rows = KVBatchMeta(partition_id="val", keys=["val3-0-0_0_0", "val3-0-0_0_1"], tags=[tag.as_dict() for tag in own])
    seen = []
    monkeypatch.setattr(data_plane, "announce", lambda *what: seen.append(what))
    monkeypatch.setattr(data_plane, "clear", lambda cleared: seen.append(cleared.keys))
    monkeypatch.setattr(data_plane, "read", lambda rows, names: {name: as_column(FIELDS[name]) for name in names})
    made = object.__new__(TeamTrainer)
    made.config = make(actor_rollout_ref__rollout__val_kwargs__n=2, trainer__validation_data_dir="folder")
    made.run, made.timeline, made.global_steps = Run.of(made.config), Timeline(), 3
    made.val_dataloader = [{"raw_prompt": np.array(["q"], dtype=object), "data_source": np.array(["s"], dtype=object)}]
    made.seen, made.averaged, made.dumped, made.rows = seen, [], [], rows
    made.counts = SessionCounts(sessions=2)
    made.agent_loop_manager = SimpleNamespace(
        generate_sequences=lambda prompts: seen.append(list(prompts["uid"])),
        pop_counts=lambda validate: made.counts if validate else None,
    )
    made.replay_buffer = SimpleNamespace(sample=lambda **wanted: (rows, {}))
    made.read_text = lambda policy, ids: f"{policy}:{ids.tolist()}"
    made._maybe_log_val_generations = lambda **table: None
    made._dump_generations = lambda **table: made.dumped.append(table)
    made._val_metrics_update = lambda *columns, expected_acc_counts: (
        made.averaged.append((columns, expected_acc_counts)) or {"mean": 0.5}
    )
    return made


def validated(host):
    return host._validate()  # noqa: SLF001


def test_a_pass_over_the_data_reads_each_session_from_its_rows_and_clears_them(host):
    found = validated(host)
    assert host.seen == [(["val3-0-0"], "val", 3), ["val3-0-0"], host.rows.keys]
    columns, expected = host.averaged[0]
    assert columns == (["s"], ["val3-0-0"], {"reward": [0.5], "acc": [1.0]}, [4]) and expected == {("s", "val3-0-0"): 2}
    (table,) = host.dumped
    assert (table["inputs"], table["outputs"]) == (["main:[1]"], ["[solver] main:[3]\n\n[verifier] other:[4]"])
    assert table["gts"] == ["t"] and table["reward_extra_infos_dict"]["uid"] == ["val3-0-0_0"]
    assert found["mean"] == 0.5 and found["val-core/s/pass@1"] == 0.5
    assert found["val-agent/verifier/verdict/accepts_right"] == 1.0
    assert found["val-agent/solver/acts"] == 1 and found["val-session/count"] == 2
    assert not any("mean@" in name for name in found), "verl averages the accuracy"


def failed(kind, cause, sessions=1, count=1):
    return SessionCounts(sessions=sessions, failed={kind: count}, first_faults={kind: f"session val3-0-0_1: {cause}"})


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (failed("refused", "no such setting", 2, 2), "all 2 sessions of the validation at step 3 failed: 2 refused"),
        (failed("timeout", "600 s", 100, 2), "2 of 100 sessions of the validation at step 3 timed out"),
    ],
)
def test_a_validation_in_which_too_many_sessions_failed_or_timed_out_is_an_error_and_has_no_score(host, counts, words):
    host.counts = counts
    with pytest.raises(SessionsFailed, match=words) as raised:
        validated(host)
    assert "val3-0-0_1: " in str(raised.value) and host.averaged == host.dumped == []


def test_a_few_failed_sessions_count_as_zero_and_the_log_says_so(host, caplog):
    host.counts = failed("timeout", "600 s", 200, 2)
    assert validated(host)["val-session/dropped"] == 2
    caplog.clear()
    host.counts = failed("refused", "no such setting", 2)
    found = validated(host)
    assert found["val-session/dropped"] == 1 and found["val-core/s/pass@1"] == 0.5
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "1 of 2 sessions of the validation at step 3 failed: 1 refused, and count as 0"
    )


def as_column(values):
    tensors = isinstance(values[0], list)
    return torch.nested.as_nested_tensor([torch.tensor(v) for v in values], layout=torch.jagged) if tensors else values


@given(st.integers(1, 8), st.data())
def test_pass_at_k_is_the_share_of_draws_with_a_solution(n, data):
    solved, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    outcomes = [1] * solved + [0] * (n - solved)
    draws = [max(draw) for draw in combinations(outcomes, k)]
    assert pass_at_k(n, solved, k) == pytest.approx(sum(draws) / comb(n, k))


def test_the_interval_covers_the_true_value_at_its_level():
    rng = np.random.default_rng(1)
    intervals = [interval(rng.random(60), seed=trial) for trial in range(200)]
    assert 0.88 <= np.mean([low <= 0.5 <= high for low, high in intervals]) <= 0.99


def test_k_goes_up_by_doubling():
    assert ks(1) == [1] and ks(8) == [1, 2, 4, 8] and ks(6) == [1, 2, 4, 6]


def test_the_report_takes_every_k_that_each_task_has_sessions_for():
    found = dict(report([[True, False, False, False], [False] * 5]))
    assert (found["pass@1"], found["pass@4"]) == pytest.approx((0.125, 0.5))
    assert found["pass@4/low"] <= 0.5 <= found["pass@4/high"] and "pass@5" not in found
    assert dict(report([])) == {}


def test_the_mean_of_a_graded_score_is_its_own_and_that_of_a_binary_score_is_pass_at_1():
    found = dict(report([[0.5, 0.7], [0.0, 0.2], [1.0, 0.6]]))
    names = ("mean@2", "mean@2/low", "mean@2/high", "pass@1")
    assert [found[name] for name in names] == pytest.approx([0.5, 0.1, 0.8, 1 / 6])
    found = dict(report([[True, False], [True, True], [False, False]]))
    assert all(found[f"mean@2{part}"] == found[f"pass@1{part}"] for part in ("", "/low", "/high"))


def test_the_mean_of_sets_counts_each_set_once_and_takes_what_all_have():
    sets = {"aime": dict(report([[1.0, 0.0]] * 9)), "amc": dict(report([[1.0, 1.0]]))}
    assert mean_of_sets(sets) == {"mean@2": 0.75, "pass@1": 0.75, "pass@2": 1.0}
    assert mean_of_sets({"aime": sets["aime"]}) == {}
    other = {"a": {"mean@2": 1.0, "pass@1": 1.0}, "b": {"mean@4": 0.0, "pass@1": 0.0}}
    assert mean_of_sets(other) == {"pass@1": 0.5}


@pytest.mark.parametrize("control", ["aime_shuffled", "aime_control"])
def test_a_control_is_in_no_mean_of_sets(control):
    scores = {"pass@1": 1.0}
    assert mean_of_sets({"aime": scores, control: {"pass@1": 0.0}}) == {}
    assert mean_of_sets({"aime": scores, "amc": scores, control: {"pass@1": 0.0}}) == scores
    # Without its original, a control counts as an ordinary set.
    assert mean_of_sets({"amc": scores, control: {"pass@1": 0.0}}) == {"pass@1": 0.5}
