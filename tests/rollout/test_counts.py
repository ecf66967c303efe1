"""Counts of sessions add up to the same numbers, whichever worker ran the sessions."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_mas.config.schema import FaultSpec
from verl_mas.errors import FaultKind, SessionFault, SessionsFailed
from verl_mas.rollout.counts import SessionCounts

KINDS = st.sampled_from(list(FaultKind))


@st.composite
def sessions(draw):
    info = draw(st.dictionaries(st.sampled_from(["acc", "turns", "note"]), st.integers(0, 9) | st.just("text")))
    faults = [SessionFault(kind, "x") for kind in draw(st.lists(KINDS, max_size=3))]
    failed = bool(faults) and draw(st.booleans())
    errors = draw(st.lists(st.sampled_from([None, "Error"]), max_size=4))
    probes = draw(st.lists(st.booleans(), min_size=len(errors), max_size=len(errors)))
    replies = [
        SimpleNamespace(
            agent="a",
            started=float(draw(st.integers(0, 9))),
            seconds=float(draw(st.integers(0, 9))),
            tool_calls=[SimpleNamespace(error=error)],
            probe=probe,
            trainable=draw(st.booleans()),
            generation=SimpleNamespace(
                sampled=draw(st.integers(0, 5)),
                forged_tokens=draw(st.integers(0, 2)),
                stop_reason=draw(st.sampled_from(["stop", "length"])),
            ),
        )
        for error, probe in zip(errors, probes, strict=True)
    ]
    task = SimpleNamespace(key="u_0")
    session = SimpleNamespace(info=info, replies=replies, seconds=float(draw(st.integers(0, 9))), task=task)
    return SimpleNamespace(session=session, faults=faults, failed=failed)


@given(st.lists(sessions()), st.integers(0, 10))
def test_the_metrics_do_not_depend_on_which_worker_ran_a_session(finished, cut):
    counts = [SessionCounts.of(one) for one in finished]
    workers = [sum(part, SessionCounts()) for part in (counts[:cut], counts[cut:])]
    metrics = sum(workers, SessionCounts()).metrics()
    assert metrics == sum(counts, SessionCounts()).metrics()
    whole = [one for one in finished if not one.failed]
    assert metrics["session/count"] == len(finished)
    assert metrics["session/dropped"] == len(finished) - len(whole)
    assert metrics["session/retried"] == sum(bool(one.faults) for one in whole)
    for kind in FaultKind:
        of_kind = sum(fault.kind is kind for one in finished for fault in one.faults)
        assert metrics.get(f"session/faults/{kind.value}", 0) == of_kind
    replies = [reply for one in finished for reply in one.session.replies]
    probes = [reply for reply in replies if reply.probe]
    assert metrics["session/generated_tokens"] == sum(reply.generation.sampled for reply in replies)
    trained = sum(reply.generation.sampled for reply in replies if reply.trainable)
    assert sum(workers, SessionCounts()).trainable_tokens == trained
    assert metrics.get("session/probe_acts", 0) == len(probes)
    assert metrics.get("session/probe_tokens", 0) == sum(reply.generation.sampled for reply in probes)
    calls = [call.error for reply in replies if not reply.probe for call in reply.tool_calls]
    if calls:
        assert metrics["agent/a/tool_calls"] == len(calls) / len(finished)
        forged = sum(reply.generation.forged_tokens for reply in replies if not reply.probe)
        assert metrics.get("agent/a/forged_tokens", 0) == forged / len(finished)
        cut = [reply.generation.stop_reason == "length" for reply in replies if not reply.probe]
        assert metrics["agent/a/cut"] == sum(cut) / len(cut)
        assert metrics["agent/a/tool_errors"] == calls.count("Error") / len(calls)
    turns = [one.session.info["turns"] for one in whole if isinstance(one.session.info.get("turns"), int)]
    assert metrics.get("session/turns/mean") == (pytest.approx(sum(turns) / len(turns)) if turns else None)


def failing(kind, number, cause="bad"):
    fault = SessionFault(kind, cause, agent="solver", turn=1, traceback=f"Traceback of {number}")
    session = SimpleNamespace(info={}, replies=[], seconds=0.0, task=SimpleNamespace(key=f"u_{number}"))
    return SessionCounts.of(SimpleNamespace(session=session, faults=[fault], failed=True))


FINE = SessionCounts(sessions=1)


def test_a_step_that_loses_too_many_sessions_ends_with_counts_and_the_first_cause_of_each_kind():
    refused = [failing(FaultKind.REFUSED, number, f"no key {number}\nfix: set it") for number in range(3)]
    counts = sum([failing(FaultKind.TIMEOUT, 9), *refused, *[FINE] * 3], SessionCounts())
    with pytest.raises(SessionsFailed) as raised:
        counts.check(0.5, "step 3")
    text = str(raised.value)
    assert text.splitlines()[0] == "4 of 7 sessions of step 3 failed: 3 refused, 1 timeout"
    assert "the first refused: session u_0: refused: no key 0\n  fix: set it (agent solver, turn 1)" in text
    assert "Traceback of 0" in text and "Traceback of 9" in text and "Traceback of 1" not in text
    assert "mas.faults.max_dropped_share=0.5" in text


@pytest.mark.parametrize(
    ("failed", "fine", "limit", "ends"),
    [
        (1, 1, 0.5, False),
        (2, 1, 0.5, True),
        (1, 9, 0.0, True),
        (0, 1, 0.0, False),
        (0, 0, 0.5, False),
        (9, 1, 1.0, False),
        (2, 0, 1.0, True),  # nothing is left, whatever the limit
    ],
)
def test_the_limit_is_a_share_of_the_sessions_that_may_be_lost(failed, fine, limit, ends):
    counts = sum([*[failing(FaultKind.REFUSED, n) for n in range(failed)], *[FINE] * fine], SessionCounts())
    with pytest.raises(SessionsFailed) if ends else nullcontext():
        counts.check(limit, "step 1")


def test_where_a_session_takes_its_task_along_the_share_is_that_of_the_tasks():
    counts = failing(FaultKind.REFUSED, 0) + SessionCounts(sessions=7, tasks=4, groups_given_up=3)
    assert (counts + SessionCounts(lag=0.3) + SessionCounts(lag=0.2)).metrics()["session/loop_lag"] == 0.3
    assert counts.dropped_share == 0.75 and counts.metrics()["session/groups_given_up"] == 3
    assert "session/groups_given_up" not in SessionCounts(sessions=1).metrics()
    with pytest.raises(SessionsFailed, match="1 of 8 sessions of step 1 failed: 1 refused; 3 of 4 tasks dropped"):
        counts.check(0.5, "step 1")


def test_sessions_that_timed_out_are_counted_apart_from_those_that_failed_otherwise():
    kinds = [FaultKind.TIMEOUT, FaultKind.SESSION_TIMEOUT, FaultKind.REFUSED, FaultKind.LIMIT]
    counts = sum([*[failing(kind, 0) for kind in kinds], *[FINE] * 6], SessionCounts(seconds=4310))
    assert (counts.timed_out, counts.dropped) == (2, 4)
    counts.check_timeouts(FaultSpec(max_timeout_share=0.2), "the validation at step 3", 64)
    with pytest.raises(SessionsFailed) as raised:
        counts.check_timeouts(FaultSpec(), "the validation at step 3", 64)
    text = str(raised.value)
    assert text.splitlines()[0].endswith("timed out; failed: 1 timeout, 1 session_timeout, 1 refused, 1 limit")
    assert "a session took 431 s on average, and at most 64 ran at once" in text and "Traceback of 0" in text
    for fix in ("mas.max_sessions below 64", "mas.faults.act_timeout_s=600", "data.val_batch_size"):
        assert fix in text
    SessionCounts().check_timeouts(FaultSpec(max_timeout_share=0.0), "the validation at step 0", 64)
