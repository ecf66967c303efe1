"""The end of a run whose engine and trainer disagree about log-probs."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_mas.errors import UpdateFailed
from verl_mas.run_folder.checkpoints import Checkpoint
from verl_mas.trainer.metrics import FIRST, Agreement

FLOAT32, BFLOAT16 = 1e-3, 0.1


def after(first: dict[str, float]) -> Checkpoint:
    return Checkpoint(Path(), 7, {FIRST: first})


def distances(agent: str, mean: float, limit: float, tokens: int = 64) -> dict[str, float]:
    values = {"mean": mean, "limit": limit, "tokens": tokens}
    return {f"agent/{agent}/log_probs/{key}": value for key, value in values.items()}


def ended(
    means: list[float],
    limit: float,
    first: dict[str, float] | None = None,
    *,
    corrected: bool = False,
    tokens: int = 64,
) -> int:
    """Return the step in which a run with these mean distances ends; 0 if it does not end."""
    agreement = Agreement(after(first) if first else None, corrected=corrected)
    for step, mean in enumerate(means, start=1):
        try:
            agreement.add(distances("solver", mean, limit, tokens), step)
        except UpdateFailed:
            return step
    return 0


def test_an_engine_that_keeps_the_first_weights_ends_the_run_at_step_2():
    assert ended([1e-7, 0.02, 0.04], FLOAT32) == 2
    assert ended([0.03, 0.2], BFLOAT16) == 2
    assert ended([0.03, 0.2], BFLOAT16, tokens=63) == 0, "a single token may be far apart in bfloat16"


def test_small_updates_are_found_when_they_have_added_up():
    """Rounding hides one update with a small learning rate. An engine with the first weights falls behind with each
    update."""
    assert ended([0.02 + 0.01 * step for step in range(20)], BFLOAT16) == 12


def test_after_a_resume_the_first_step_is_compared_with_the_first_of_the_run():
    assert ended([0.3], BFLOAT16, first={"solver": 0.02}) == 1
    assert ended([0.3], BFLOAT16) == 0, "nothing to compare with"


def test_one_step_in_a_long_run_does_not_end_it_and_neither_does_a_drift_that_is_corrected():
    assert ended([0.02, 0.02, 0.2, 0.2, 0.02, 0.2], BFLOAT16) == 0
    assert ended([0.02, 0.02, 0.2, 0.2, 0.2], BFLOAT16) == 5
    assert ended([0.02, 0.02, 0.2, 0.2, 0.2], BFLOAT16, corrected=True) == 0
    assert ended([0.02, 0.2], BFLOAT16, corrected=True) == 2


@given(st.lists(st.floats(0.0, BFLOAT16), min_size=1, max_size=9))
def test_rounding_never_ends_a_run(means):
    assert ended(means, BFLOAT16) == 0


@given(st.floats(0.0, 5.0), st.lists(st.floats(0.34, 3.0), min_size=1, max_size=9))
def test_what_sampling_parameters_change_in_every_step_never_ends_a_run(distance, factors):
    """A penalty, top_p, or weights that the engine quantises."""
    assert ended([distance, *(distance * min(factor, 2.99) for factor in factors)], FLOAT32) == 0


def test_the_error_names_step_agent_and_distances():
    agreement = Agreement(after({"solver": 0.02}))
    with pytest.raises(UpdateFailed, match=r"in step 8 .* differ by 0\.3 .* agent solver, and by 0\.02 at first"):
        agreement.add(distances("solver", 0.3, BFLOAT16), step=8)


def test_agents_are_compared_with_themselves():
    agreement = Agreement()
    for step in (1, 2, 3):
        for name, mean in (("greedy", 0.4), ("plain", 1e-7)):
            agreement.add(distances(name, mean, FLOAT32), step)
    assert agreement.first == {"greedy": 0.4, "plain": 1e-7}
