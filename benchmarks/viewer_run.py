"""Generate a run with the sessions of an invented team, for the benchmark and the pictures of the viewer.

A generator proposes three candidates, a verifier reviews the committed candidate, a refiner answers with a calculator.
"""

# ruff: noqa: E501  # texts of the invented sessions

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from verl_mas.run_folder.records import packed

ITEMS = ["notebooks", "apples", "train tickets", "lamps", "seedlings", "bricks", "postcards", "jars of honey"]
NAMES = ["Mara", "Tomas", "Aiko", "Ravi", "Ines", "Kofi", "Lena", "Omar"]
SYSTEM = {
    "generator": "You solve word problems. Think step by step, write down every number that you use, and end with a line "
    "`Answer: <number>`. Do not repeat the question.",
    "verifier": "You review a solution that somebody else wrote. Check each step against the question. Write what is wrong, "
    "if anything is, and end with a line `Verdict: right` or `Verdict: wrong`.",
    "refiner": "You get a question, a solution and its review. Use the calculator for every product and sum. Give the final "
    "answer as a line `Answer: <number>`.",
}
POLICY = {"generator": "solver", "verifier": "judge", "refiner": "solver"}
GROUP = 8


def write_run(folder: Path, sessions: int, seed: int = 0, steps: int = 100, tokens: bool = False) -> Path:
    """Write a run with about `sessions` sessions, an eighth of them in validation. Return its folder."""
    tasks = max(1, sessions * 7 // 8 // steps // GROUP)
    every, validated = max(1, steps // 10), max(1, sessions // 8 // 10)
    made, lines = Maker(random.Random(seed), steps, tokens), []
    for step in range(1, steps + 1):
        found = [made.session(step, f"{step}-{task}", n) for task in range(tasks) for n in range(GROUP)]
        _write(folder, "train", step, found)
        checked = (
            [made.session(step, f"val{step}-{n}", 0, "val") for n in range(validated)] if step % every == 0 else []
        )
        if checked:
            _write(folder, "val", step, checked)
        lines.append(json.dumps({"step": step, "time": 1.79e9 + 60 * step, "metrics": metrics_of(found, checked)}))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def _write(folder: Path, partition: str, step: int, records: list[dict]) -> None:
    path = folder / "trajectories" / partition / f"{step:06d}-20261123T000000000000Z-00000000.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    advantages = {act["key"]: act.pop("drawn") for record in records for act in record["acts"]}
    path.write_bytes(b"".join(map(packed, records)))
    if partition == "train":
        path.with_name(path.name.replace("00000000.jsonl", "advantages.jsonl")).write_text(
            json.dumps(advantages) + "\n"
        )


class Maker:
    """Makes sessions whose success rises from step to step."""

    def __init__(self, rng: random.Random, steps: int, tokens: bool):
        self.rng, self.steps, self.tokens = rng, steps, tokens

    def session(self, step: int, uid: str, number: int, partition: str = "train") -> dict:
        question, truth, parts = self.question(uid)
        skill = 0.25 + 0.6 * step / self.steps
        right = self.rng.random() < skill
        malformed = self.rng.random() < 0.18 * (1 - step / self.steps)
        clock, acts = Clock(self.rng), []
        proposals = [self.solution(parts, self.rng.random() < skill) for _ in range(3)]
        chosen = self.rng.randrange(3)
        for branch, text in enumerate(proposals):
            prompt = [_system("generator"), _user(question)]
            acts.append(self.act("generator", 0, prompt, text, clock, branch=branch, committed=branch == chosen))
        clock.next()
        review = self.review(parts, right, malformed)
        prompt = [_system("verifier"), _user(f"Question: {question}\n\nSolution:\n{proposals[chosen]}")]
        acts.append(
            self.act("verifier", 0, prompt, review, clock, malformed="no line `Verdict:`" if malformed else None)
        )
        clock.next()
        answer = truth if right else truth + self.rng.choice([-10, -2, 3, 12])
        acts.append(self.refine(question, proposals[chosen], review, parts, answer, clock))
        for place, act in enumerate(acts):
            good = float(right) if act["committed"] else float(self.rng.random() < skill)
            penalty = -0.2 if act["malformed"] else 0.0
            act |= {"key": f"{uid}_{number}_{place}", "advantage": None}
            act["reward"] = {"team": good, "local": 0.0, "penalty": penalty, "score": good + penalty, "parts": {}}
            act["drawn"] = round(self.rng.gauss(1.0 if good else -0.9, 0.35) + penalty, 4)
        faults = [_fault()] if self.rng.random() < 0.01 else []
        return {
            "schema": 2,
            "uid": uid,
            "group": uid,
            "session": number,
            "step": step,
            "partition": partition,
            "status": "finished",
            "task": {
                "messages": [_user(question)],
                "ground_truth": str(truth),
                "data_source": "word_problems",
                "index": 0,
            },
            "acts": acts,
            "uniform": None,
            "boards": [],
            "outcome": {"answer": str(answer), "reward": float(right), "info": {"acc": float(right), "reviews": 1}},
            "faults": faults,
            "started": 1.79e9 + 60 * step + self.rng.random() * 20,
            "seconds": round(clock.now, 3),
        }

    def question(self, uid: str) -> tuple[str, int, tuple]:
        rng = random.Random(uid)
        name, item, boxes, each = rng.choice(NAMES), rng.choice(ITEMS), rng.randint(4, 28), rng.randint(6, 45)
        given, found = rng.randint(5, 60), rng.randint(2, 40)
        question = (
            f"{name} packs {item} into {boxes} boxes of {each}. {given} of them are sold in the morning, and {found} more "
            f"are found in the cellar at noon. How many {item} does {name} have in the evening?"
        )
        return question, boxes * each - given + found, (item, boxes, each, given, found)

    def solution(self, parts: tuple, right: bool) -> str:
        item, boxes, each, given, found = parts
        product = boxes * each if right else boxes * each + self.rng.choice([10, -10, each])
        ways = [
            f"There are {boxes} boxes with {each} {item} each, so {boxes} * {each} = {product} {item} at first.",
            f"First the boxes: {boxes} times {each} makes {product}.",
            f"Start with {product} {item}, since {boxes} * {each} = {product}.",
        ]
        return (
            f"{self.rng.choice(ways)}\n{given} are sold in the morning: {product} - {given} = {product - given}.\n"
            f"{found} more are found at noon: {product - given} + {found} = {product - given + found}.\n\n"
            f"Answer: {product - given + found}"
        )

    def review(self, parts: tuple, right: bool, malformed: bool) -> str:
        item, boxes, each, given, _ = parts
        if malformed:
            return f"I think that the {item} are counted, but I am not sure about the {given} that were sold. Perhaps"
        checked = f"The product {boxes} * {each} is {'' if right else 'not '}correct; it is {boxes * each}."
        return f"{checked}\nThe order of sale and find is that of the question.\n\nVerdict: {'right' if right else 'wrong'}"

    def refine(self, question: str, proposal: str, review: str, parts: tuple, answer: int, clock: Clock) -> dict:
        _, boxes, each, given, found = parts
        product = boxes * each
        calls = [_call(f"{boxes} * {each}", product), _call(f"{product} - {given} + {found}", product - given + found)]
        if self.rng.random() < 0.04:
            calls[1] |= {"result": None, "error": "SyntaxError: invalid syntax"}
        text = f"The calculator has {product} for the boxes and {product - given + found} for the rest.\n\nAnswer: {answer}"
        steps = [{"role": "assistant", "content": "", "tool_calls": [_called(call)]} for call in calls]
        results = [{"role": "tool", "content": str(call["result"])} for call in calls]
        every = [step for pair in zip(steps, results, strict=True) for step in pair]
        prompt = [_system("refiner"), _user(f"Question: {question}\n\nSolution:\n{proposal}\n\nReview:\n{review}")]
        act = self.act("refiner", 0, prompt, text, clock)
        return act | {"tool_calls": calls, "steps": [*every, {"role": "assistant", "content": text}]}

    def act(
        self,
        agent: str,
        turn: int,
        messages: list[dict],
        text: str,
        clock: Clock,
        branch: int = 0,
        committed: bool = True,
        malformed: str | None = None,
    ) -> dict:
        begun, seconds = clock.act(len(text))
        length = len(text) // 4
        return {
            "agent": agent,
            "role": agent,
            "policy": POLICY[agent],
            "instance": 0,
            "turn": turn,
            "branch": branch,
            "committed": committed,
            "trainable": True,
            "probe": False,
            "line": "",
            "messages": messages,
            "text": text,
            "steps": [],
            "tool_calls": [],
            "prompt_tokens": sum(len(message["content"]) for message in messages) // 4,
            "response_tokens": length,
            "sampled_tokens": length,
            "stop_reason": "stop",
            "temperature": 1.0,
            "versions": [],
            "aborts": 0,
            "parses": [],
            "malformed": malformed,
            "tokens": list(self.tokens_of(text)) if self.tokens else None,
            "started": begun,
            "seconds": seconds,
        }

    def tokens_of(self, text: str) -> Iterator[list]:
        for start in range(0, len(text), 4):
            yield [text[start : start + 4], round(-self.rng.expovariate(2.5), 3)]


class Clock:
    """The clock of a session, in seconds. Acts between two calls of `next` run at the same time."""

    def __init__(self, rng: random.Random):
        self.rng, self.begun, self.now = rng, 0.02, 0.02

    def act(self, length: int) -> tuple[float, float]:
        seconds = round(length / 260 * self.rng.uniform(0.8, 1.3), 3)
        self.now = max(self.now, self.begun + seconds)
        return round(self.begun, 3), seconds

    def next(self) -> None:
        self.begun = self.now = self.now + self.rng.uniform(0.01, 0.2)


def _system(agent: str) -> dict:
    return {"role": "system", "content": SYSTEM[agent]}


def _user(text: str) -> dict:
    return {"role": "user", "content": text}


def _call(arguments: str, result: int) -> dict:
    given = json.dumps({"expression": arguments})
    return {
        "name": "calculator",
        "arguments": given,
        "result": str(result),
        "error": None,
        "reward": None,
        "seconds": 0.004,
    }


def _called(call: dict) -> dict:
    return {"id": "0", "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}


def _fault() -> dict:
    return {
        "attempt": 0,
        "kind": "timeout",
        "agent": "verifier",
        "turn": 0,
        "cause": "TimeoutError: no reply within 120 s",
        "traceback": 'Traceback (most recent call last):\n  File "team.py", line 31, in run\nTimeoutError: no reply',
    }


def metrics_of(train: list[dict], val: list[dict]) -> dict[str, float]:
    """Return the metrics of a step, with the trainer's names."""
    found = {"session/acc/mean": _mean(record["outcome"]["reward"] for record in train)}
    for agent in SYSTEM:
        acts = [act for record in train for act in record["acts"] if act["agent"] == agent]
        found |= {
            f"agent/{agent}/reward/score": _mean(act["reward"]["score"] for act in acts),
            f"agent/{agent}/malformed": _mean(act["malformed"] is not None for act in acts),
            f"agent/{agent}/length/response": _mean(act["response_tokens"] for act in acts),
            f"agent/{agent}/group/groups_uniform": round(random.Random(train[0]["step"]).uniform(0.02, 0.1), 4),
        }
    for policy, scale in (("solver", 0.9), ("judge", 0.6)):
        found[f"policy/{policy}/actor/entropy"] = round(scale * (1 - 0.006 * train[0]["step"]), 4)
        found[f"policy/{policy}/actor/grad_norm"] = round(random.Random(train[0]["step"]).uniform(0.3, 0.5) * scale, 4)
    if val:
        found["val-core/word_problems/acc/mean@1"] = _mean(record["outcome"]["reward"] for record in val)
    return found


def _mean(values) -> float:
    values = [float(value) for value in values]
    return sum(values) / len(values)
