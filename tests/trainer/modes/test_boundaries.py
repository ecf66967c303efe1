"""A run continues although its sessions raise every kind of exception that user code can raise."""

import re
from itertools import pairwise

import escapes
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
SEPARATE = "+mas/mode=separate_async ++mas.pools.engines={n_gpus_per_node:1} ++mas.policies.solver.engines=engines"
STEPS, LONGEST_SILENCE_S, FAULTS = 4, 30, "session/faults/"


@pytest.mark.parametrize("mode", ["", "+mas/mode=colocate_async", SEPARATE], ids=["sync", "colocate", "separate"])
def test_every_error_is_a_fault_of_its_session_and_the_run_is_never_silent(train_team, tmp_path, mode):
    done = train_team(
        tmp_path,
        "Raising",
        f"mas.workflow.path={escapes.__file__} mas.policies={{solver:{{}}}} {mode}",
        "mas.agents={writer:{policy:solver},copier:{policy:solver}} mas.faults={max_dropped_share:1.0,retries:0}",
        f"trainer.total_training_steps={STEPS}",
    )
    assert len(done.steps) == STEPS
    faults = (count for step in done.steps.values() for name, count in step.items() if name.startswith(FAULTS))
    assert sum(faults) >= STEPS * 8, "half of the sessions of a step raise"
    clocks = [[int(part) for part in found] for found in re.findall(r"^(\d\d):(\d\d):(\d\d) ", done.output, re.M)]
    seconds = [(hour * 60 + minute) * 60 + second for hour, minute, second in clocks]
    assert len(seconds) > STEPS and max((b - a) % 86_400 for a, b in pairwise(seconds)) < LONGEST_SILENCE_S
