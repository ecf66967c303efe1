from pathlib import Path

import pytest
import yaml

from verl_mas.run_folder.metrics.findings import STEPS, Findings, findings

CASES = yaml.safe_load((Path(__file__).parent / "findings.yaml").read_text())
OF_AGENTS = {"advantage/zero": 0.0, "group/groups_of_one": 0.0, "group/groups_uniform": 0.0, "malformed": 0.0}
OF_AGENTS |= {"reward/score": 0.5, "length/response": 5.0, "length/response_longest": 8.0}
SOUND = {"policy/p/rows/real": 8, "policy/p/updated": 1, "actor/grad_norm": 1.0, "actor/lr": 1e-6}
SOUND |= {"session/count": 16, "session/dropped": 0}
SOUND |= {f"agent/{name}/{key}": value for name in "ab" for key, value in OF_AGENTS.items()}
# Metrics of validation have the same names after another prefix.
SOUND |= {f"val-agent/{name}/malformed": 1.0 for name in "ab"}
IDLE = SOUND | {"agent/b/advantage/zero": 1.0, "agent/b/group/groups_of_one": 1.0}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.get("says", "nothing"))
def test_what_holds_in_every_step_is_found_with_its_cause_and_in_fewer_steps_is_not(case):
    wrong = SOUND | case["wrong"]
    found = findings([wrong] * STEPS)
    assert [[one.kind, one.name] for one in found] == ([case["found"]] if "found" in case else [])
    assert all(case["says"] in one.text and "for 3 steps" in one.text for one in found)
    assert findings([wrong, SOUND, wrong]) == []


def test_an_agent_that_is_not_trained_needs_no_advantage():
    assert findings([IDLE] * STEPS, agents=["a"]) == []
    assert [found.name for found in findings([IDLE] * STEPS, agents=["b"])] == ["team"]


def test_an_agent_that_did_not_act_in_a_step_is_left_out():
    without = {key: value for key, value in IDLE.items() if not key.startswith("agent/b/")}
    assert findings([IDLE, without, IDLE]) == []


def test_a_finding_is_returned_when_it_begins_and_at_most_once_in_as_many_steps_as_set():
    watch = Findings(again=10)
    # The finding holds from step 3 on, ends, and holds again from step 9 to the end.
    seen = [step for step, metrics in enumerate([IDLE] * 5 + [SOUND] + [IDLE] * 19, 1) if watch.add(metrics)]
    assert seen == [3, 13, 23]


def test_what_is_measured_now_and_then_holds_until_it_is_measured_again():
    apart = {"agent/a/log_probs/limit": 0.01, "actor/entropy": 0.001}
    measured = {1: 0.05, 2: 0.05, 10: 0.05, 20: 0.001}
    watch = Findings(again=5)
    kinds = [
        {
            one.kind
            for one in watch.add(SOUND | ({**apart, "agent/a/log_probs/mean": measured[n]} if n in measured else {}))
        }
        for n in range(1, 26)
    ]
    assert [n for n, found in enumerate(kinds, 1) if "disagreeing" in found] == [3, 8, 13, 18]
    assert [n for n, found in enumerate(kinds, 1) if "no_entropy" in found] == [3, 8, 13, 18, 23]


def test_a_finding_is_not_held_back_by_another():
    watch = Findings()
    found = [watch.add(metrics) for metrics in [IDLE] * 3 + [IDLE | {"actor/grad_norm": 0.0}] * 3]
    assert [[one.kind for one in step] for step in found] == [[], [], ["no_advantage"], [], [], ["unmoved"]]
