"""Counts of sessions add up, whichever worker ran them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_mas.errors import FaultKind, SessionFault
from verl_mas.rollout.counts import SessionCounts

KINDS = st.sampled_from(list(FaultKind))


@st.composite
def sessions(draw):
    info = draw(st.dictionaries(st.sampled_from(["acc", "turns", "note"]), st.integers(0, 9) | st.just("text")))
    faults = [SessionFault(kind, "x") for kind in draw(st.lists(KINDS, max_size=3))]
    failed = bool(faults) and draw(st.booleans())
    replies = [None] * draw(st.integers(0, 5))
    session = SimpleNamespace(info=info, replies=replies, seconds=float(draw(st.integers(0, 9))))
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
    turns = [one.session.info["turns"] for one in whole if isinstance(one.session.info.get("turns"), int)]
    assert metrics.get("session/turns/mean") == (pytest.approx(sum(turns) / len(turns)) if turns else None)


def test_dropped_groups_are_counted_when_there_are_any():
    assert "session/groups_given_up" not in SessionCounts(sessions=1).metrics()
    assert (SessionCounts() + SessionCounts(groups_given_up=2)).metrics()["session/groups_given_up"] == 2
