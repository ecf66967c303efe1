from __future__ import annotations

import pytest

from verl_mas.trainer.findings import STEPS, Findings, findings


def agent(name, *, zero=0.0, one=0.0, uniform=0.0, malformed=0.0, score=0.5, response=5.0, longest=8.0):
    return {
        f"mas/{name}/advantage/zero": zero,
        f"mas/{name}/group/groups_of_one": one,
        f"mas/{name}/group/groups_uniform": uniform,
        f"mas/{name}/malformed": malformed,
        f"mas/{name}/reward/score": score,
        f"mas/{name}/length/response": response,
        f"mas/{name}/length/response_longest": longest,
        # Validation has the same names, under another root.
        f"val-aux/mas/{name}/malformed": 1.0,
    }


def one_baseline(name, *, share, mean, std):
    return {
        f"mas/{name}/group/signal_share": share,
        f"mas/{name}/advantage/mean": mean,
        f"mas/{name}/advantage/std": std,
    }


def policy(name, *, updated=1, grad=1.0, lr=1e-6):
    return {f"mas/{name}/updated": updated, f"mas/{name}/actor/grad_norm": grad, f"mas/{name}/actor/lr": lr}


SOUND = agent("a") | agent("b") | policy("p") | {"mas/session/count": 16, "mas/session/dropped": 0}
IDLE = {"zero": 1.0, "one": 1.0}
UNIFORM = {"zero": 1.0, "uniform": 0.75, "one": 0.25, "score": 0.0}
FAULTS = {"mas/session/dropped": 2, "mas/session/faults/refused": 3, "mas/session/faults/timeout": 1}


@pytest.mark.parametrize(
    ("wrong", "kind", "name", "words"),
    [
        (agent("b", **IDLE), "no_advantage", "b", "each group has one row"),
        (agent("b", **UNIFORM), "no_advantage", "b", "the same score (mean 0)"),
        (agent("b", zero=1.0), "no_advantage", "b", "mas/b/group/*"),
        (agent("a", **UNIFORM) | agent("b", **IDLE), "no_advantage", "team", "the same score (mean 0). The tasks"),
        (one_baseline("b", share=0.1, mean=-1.0, std=0.3), "little_signal", "b", "10 times the samples. Choose"),
        (agent("a", malformed=1.0), "malformed", "a", "Read a session record"),
        (
            agent("a", malformed=1.0, response=8.0),
            "malformed",
            "a",
            "all replies have 8 tokens, so they are probably cut",
        ),
        (policy("p", updated=0), "unmoved", "p", "it has no rows"),
        (policy("p", grad=0.0), "unmoved", "p", "its gradient is 0"),
        (policy("p", lr=0.0), "unmoved", "p", "learning rate is 0"),
        (policy("p", grad=float("inf")), "unmoved", "p", "overflows in fp16"),
        (policy("p", grad=None), "unmoved", "p", "overflows in fp16"),
        (FAULTS, "dropping", "team", "6 of 48: most faults are of the kind refused"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_holds_in_every_step_is_found_with_its_cause_and_in_fewer_steps_is_not(wrong, kind, name, words):
    (found,) = findings([SOUND | wrong] * STEPS)
    assert (found.kind, found.name) == (kind, name) and words in found.text and "for 3 steps" in found.text
    assert findings([SOUND | wrong, SOUND, SOUND | wrong]) == []


@pytest.mark.parametrize(
    "sound",
    [
        one_baseline("b", share=0.1, mean=0.0, std=1.0),  # its own baseline takes the offset out
        one_baseline("b", share=0.5, mean=-0.7, std=0.6),
    ],
)
def test_an_offset_that_costs_little_or_that_the_baseline_takes_out_is_no_finding(sound):
    assert findings([SOUND | sound] * STEPS) == []


def test_a_sound_run_has_no_findings():
    assert findings([SOUND] * STEPS) == []


def test_an_agent_that_is_not_trained_needs_no_advantage():
    steps = [SOUND | agent("b", **IDLE)] * STEPS
    assert findings(steps, agents=["a"]) == []
    assert [found.name for found in findings(steps, agents=["b"])] == ["team"]


def test_an_agent_that_did_not_act_in_a_step_is_left_out():
    idle = SOUND | agent("b", **IDLE)
    without = {key: value for key, value in idle.items() if not key.startswith("mas/b/")}
    assert findings([idle, without, idle]) == []


def test_a_finding_is_returned_when_it_begins_and_at_most_once_in_as_many_steps_as_set():
    watch = Findings(again=10)
    idle = SOUND | agent("b", **IDLE)
    # It holds from step 3 on, ends, comes back at step 9 and lasts.
    seen = [step for step, metrics in enumerate([idle] * 5 + [SOUND] + [idle] * 19, 1) if watch.add(metrics)]
    assert seen == [3, 13, 23]


def test_a_finding_is_not_held_back_by_another():
    watch = Findings()
    idle = SOUND | agent("b", **IDLE)
    found = [watch.add(metrics) for metrics in [idle] * 3 + [idle | policy("p", grad=0.0)] * 3]
    assert [[one.kind for one in step] for step in found] == [[], [], ["no_advantage"], [], [], ["unmoved"]]
