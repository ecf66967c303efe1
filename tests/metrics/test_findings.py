from __future__ import annotations

import pytest

from verl_mas.metrics.findings import STEPS, Findings, findings


def agent(name, *, zero=0.0, one=0.0, uniform=0.0, malformed=0.0, score=0.5, response=5.0, longest=8.0):
    return {
        f"agent/{name}/advantage/zero": zero,
        f"agent/{name}/group/groups_of_one": one,
        f"agent/{name}/group/groups_uniform": uniform,
        f"agent/{name}/malformed": malformed,
        f"agent/{name}/reward/score": score,
        f"agent/{name}/length/response": response,
        f"agent/{name}/length/response_longest": longest,
        # Validation has the same names, under another root.
        f"val-agent/{name}/malformed": 1.0,
    }


def one_baseline(name, *, share, mean, std):
    return {
        f"agent/{name}/group/signal_share": share,
        f"agent/{name}/advantage/mean": mean,
        f"agent/{name}/advantage/std": std,
    }


def policy(name, *, updated=1, grad=1.0, lr=1e-6):
    """Of the only trained policy."""
    return {f"policy/{name}/rows/real": 8, f"policy/{name}/updated": updated, "actor/grad_norm": grad, "actor/lr": lr}


SOUND = agent("a") | agent("b") | policy("p") | {"session/count": 16, "session/dropped": 0}
IDLE = {"zero": 1.0, "one": 1.0}
UNIFORM = {"zero": 1.0, "uniform": 0.75, "one": 0.25, "score": 0.0}
FAULTS = {"session/dropped": 2, "session/faults/refused": 3, "session/faults/timeout": 1}


@pytest.mark.parametrize(
    ("wrong", "kind", "name", "words"),
    [
        (agent("b", **IDLE), "no_advantage", "b", "each group has one row"),
        (agent("b", **UNIFORM), "no_advantage", "b", "the same score (mean 0)"),
        (agent("b", zero=1.0), "no_advantage", "b", "agent/b/group/*"),
        (agent("a", **UNIFORM) | agent("b", **IDLE), "no_advantage", "team", "the same score (mean 0). The tasks"),
        (one_baseline("b", share=0.1, mean=-1.0, std=0.3), "little_signal", "b", "10 times the samples. Choose"),
        (agent("a", malformed=1.0), "malformed", "a", "Read a session record"),
        (
            agent("a", malformed=1.0, response=8.0),
            "malformed",
            "a",
            "all replies have 8 tokens, so they are probably cut",
        ),
        (agent("a", uniform=0.95, score=0.1), "uniform", "a", "95% of the groups of agent a have had equal scores"),
        ({"actor/entropy": 0.002}, "no_entropy", "p", "the entropy of policy p has been 0.002 for 3 steps"),
        (
            {"policy/p/staleness/mean": 5.0, "policy/p/staleness/4/rows": 0.3, "policy/p/staleness/8/rows": 0.4},
            "stale",
            "p",
            "70% of the rows of policy p were sampled 4 or more updates before",
        ),
        (policy("p", updated=0), "unmoved", "p", "it has no rows"),
        (policy("p", grad=0.0), "unmoved", "p", "its gradient is 0"),
        (policy("p", lr=0.0), "unmoved", "p", "learning rate is 0"),
        (policy("p", grad=None), "unmoved", "p", "overflows in fp16"),
        (FAULTS, "dropping", "team", "6 of 48: most faults are of the kind refused"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_holds_in_every_step_is_found_with_its_cause_and_in_fewer_steps_is_not(wrong, kind, name, words):
    (found,) = findings([SOUND | wrong] * STEPS)
    assert (found.kind, found.name) == (kind, name) and words in found.text and "for 3 steps" in found.text
    assert findings([SOUND | wrong, SOUND, SOUND | wrong]) == []


def test_an_offset_that_costs_little_or_that_its_own_baseline_takes_out_is_no_finding():
    for share, mean, std in ((0.1, 0.0, 1.0), (0.5, -0.7, 0.6)):
        assert findings([SOUND | one_baseline("b", share=share, mean=mean, std=std)] * STEPS) == []


def test_an_agent_that_is_not_trained_needs_no_advantage():
    steps = [SOUND | agent("b", **IDLE)] * STEPS
    assert findings(steps, agents=["a"]) == []
    assert [found.name for found in findings(steps, agents=["b"])] == ["team"]


def test_an_agent_that_did_not_act_in_a_step_is_left_out():
    idle = SOUND | agent("b", **IDLE)
    without = {key: value for key, value in idle.items() if not key.startswith("agent/b/")}
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


def validated(rewards, success):
    """What is found in a run that validates at every third step."""
    found, run = [], Findings()
    for step, reward in enumerate(rewards):
        metrics = SOUND | {"critic/score/mean": reward}
        if step % 3 == 0:
            metrics |= {
                "val-core/x/acc/mean@1": success[step // 3],
                "val-core/x/pass@1/low": success[step // 3] - 0.05,
                "val-core/x/pass@1/high": success[step // 3] + 0.05,
            }
        found += [one for one in run.add(metrics) if one.kind == "reward_without_success"]
    return found


RISES = [0.1 + 0.05 * step for step in range(12)]


def test_a_reward_that_rises_without_success_is_found_once():
    (found,) = validated(RISES, [0.4, 0.41, 0.42, 0.43])
    assert "risen from 0.15 to 0.5" in found.text and "val-core/x/acc/mean@1 has not: 0.4 at first" in found.text


@pytest.mark.parametrize(
    ("rewards", "success"), [(RISES, [0.4, 0.5, 0.6, 0.7]), ([0.5, 0.1, 0.3] * 4, [0.4] * 4), (RISES[:6], [0.4, 0.4])]
)
def test_success_that_rises_too_and_a_reward_that_does_not_are_no_finding(rewards, success):
    assert validated(rewards, success) == []
