"""Rewards of copies and of folded contexts, compared with plain Python loops on random sessions.

The loops were written from the papers and the documentation, without reading the code that is tested.
"""

import json
import random
import re
from dataclasses import replace
from functools import partial

import pytest
from scripted_sessions import HALF, box, play

from verl_mas.testing.scripted_llm import calls
from verl_mas.workflow import Outcome, Workflow
from verl_mas.workflows.folded import Folding, FoldingRules
from verl_mas.workflows.recursive import Recursive

CASES = 150


class Solvable(Recursive):
    """A team in which the success of a copy is its answer divided by 4."""

    async def success(self, task, node, root):
        return float(node.answer or 0) / 4


def of_copies(acts, bonus, weight, last):
    """RAO, 2605.06639: reward a copy for its own success, plus `bonus` times the mean success of its children. PARL's
    term is added for copies that may delegate.

    `acts`: (copy, its first prompt, reply, whether it could be read), where a copy is its agent and number.
    """
    parts, named, success = {}, {}, {}
    for copy, prompt, reply, readable in acts:
        parts[copy] = prompt.splitlines()[0]
        named.setdefault(copy, []).append(re.findall(r"part \d+", reply) if readable else [])
        success[copy] = float((re.findall(r"boxed{(\d)}", reply) or [0])[0]) / 4
    rewards = {}
    for copy, rounds in named.items():
        own = success[copy] if copy[0] == last else (1 - weight) * success[copy] + weight * (max(map(len, rounds)) > 1)
        children = [success[child] for child in named if any(parts[child] in round_ for round_ in rounds)]
        rewards[copy] = own + bonus * sum(children) / max(1, len(children))
    return rewards


def test_a_copy_earns_what_rao_and_parl_say():
    rng = random.Random(3)
    for _ in range(CASES):
        depth, bonus, parallel, progress = rng.randint(1, 3), rng.random(), rng.random(), rng.choice([None, 0, 0.3, 1])
        new = iter(range(10, 99999))

        def reply(request, branch, new=new):
            if rng.random() < (0.55 if len(request.messages) < 4 else 0.1):
                return "".join(f"<subtask>part {next(new)}</subtask>" for _ in range(rng.randint(1, 3)))
            return rng.choice([box(rng.randint(0, 4)), "cannot say"])

        team = Solvable(score="em", max_depth=depth, max_acts=9999, bonus=bonus, parallel=parallel)
        session, _ = play(team, reply, replace(HALF, progress=progress))
        acts = [((o.agent, o.instance), o.messages[0]["content"], o.text, not o.malformed) for o in session.replies]
        expected = of_copies(acts, bonus, 0 if progress is None else parallel * (1 - progress), f"solver_{depth}")
        found = {(row.first.agent, row.first.instance): row.reward.score for row in session.rows()}
        assert found == pytest.approx(expected, abs=1e-6)


def look(what: str) -> str:
    """Look at something, which fails for a wall."""
    return {"gate": "a gate"}[what]


class Searcher(Workflow):
    agents = ("solver",)

    def __init__(self, rules, judge):
        self.folding = partial(Folding, tools=[look], rules=rules, judge=judge)

    async def run(self, task, team):
        await self.folding(team.solver).act(task.messages)
        return Outcome(reward=0.0)


def of_a_thread(steps, called, length, rules, branch, in_scope):
    """FoldGRPO, 2510.11967: the share of a thread's tokens in replies that failed, were not folded, or strayed.

    `called`: the thread's calls, in order. `length`: the number of the thread's tokens after its prompt.
    """
    paid, sizes = 0.0, 0
    for reply in (step for step in steps if step["role"] == "assistant"):
        asked = [(call["function"]["name"], call["function"]["arguments"]) for call in reply.get("tool_calls", [])]
        size = len(reply["content"] + "".join(f"<{name}>{json.dumps(arguments)}" for name, arguments in asked))
        failed = any([called.pop(0).error for _ in asked]) or (branch and not asked)
        unfolded = not branch and length > (rules.main_tokens or 10**9) and "branch" not in dict(asked)
        strayed = branch and bool(asked) and in_scope is False
        paid += size * max(failed * rules.failed, unfolded * rules.unfolded, strayed * rules.out_of_scope)
        sizes += size
    return -paid / sizes


def test_threads_pay_foldgrpos_penalties():
    rng = random.Random(4)
    for _ in range(CASES):
        chosen = {"unfolded": rng.random(), "out_of_scope": rng.random(), "failed": rng.random()}
        rules, said = FoldingRules(main_tokens=rng.choice([None, 50, 400]), **chosen), {}

        def reply(request, branch):
            if rng.random() < 0.2 or len(request.messages) > 14:
                return "I am done with it"
            looks = [("look", {"what": rng.choice(["gate", "wall"])}) for _ in range(rng.randint(1, 2))]
            branch = ("branch", {"description": "d", "prompt": f"do {rng.random()}"})
            back = ("return", {"message": rng.choice(["ok", "s" * 400])})
            return calls(*rng.choice([looks, [branch], [back], [*looks, back], [*looks, branch]]))

        async def judge(branch, said=said):
            return said.setdefault(branch.reply.instance, rng.choice([True, False, None]))

        session, _ = play(Searcher(rules, judge), reply, HALF)
        for row in session.rows():
            one, length = row.replies[-1], len(row.generation.response_ids)
            expected = of_a_thread(
                one.steps, list(one.tool_calls), length, rules, one.instance > 0, said.get(one.instance)
            )
            assert row.reward.score == pytest.approx(expected, abs=1e-6)
