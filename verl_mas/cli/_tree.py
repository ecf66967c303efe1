"""Output of `verl-mas check` for a run that can start: a tree of its agents, policies, pools and numbers."""

from collections.abc import Iterator, Sequence
from textwrap import shorten

from rich.text import Text
from rich.tree import Tree

from verl_mas.checks.doctor import Aspect
from verl_mas.checks.report import Summary
from verl_mas.config.modes import COLOCATED, SEPARATE, SYNC

MODES = {
    SYNC.name: "all sessions of a step, then its updates",
    COLOCATED.name: "training and engines take turns, sessions continue",
    SEPARATE.name: "engines serve while others train",
}
SERVING = {"together": "engines awake together", "phases": "engines awake one policy at a time"}


def tree(found: Summary, machine: Sequence[Aspect]) -> Tree:
    root = Tree(found["workflow"] or f"no team: mas is not set, so verl's trainer `{found['trainer']}` runs")
    # Leave out aspects with a problem, because they are listed among the warnings.
    versions, others = ([f"{one.what}: {one.seen}" for one in machine if one.ok is ok] for ok in (True, None))
    start = "starts from the models" if found["resumes_at"] is None else f"resumes after step {found['resumes_at']}"
    saved = f"every {every} steps" if (every := found["saved_every"]) else "never, as trainer.save_freq is below 1"
    contexts = {name: policy["context"] for name, policy in found["policies"].items()}
    sections = {
        "agents": [_agent(name, agent) for name, agent in found["agents"].items()],
        "policies": [_policy(name, policy) for name, policy in found["policies"].items()],
        "training": [
            f"{name}: {policy['training']}" for name, policy in found["policies"].items() if policy["training"]
        ],
        "pools": [_pool(name, pool, found["on_cpu"]) for name, pool in found["pools"].items()],
        "training step": list(_step(found)),
        "lengths": [
            f"data: prompts of {found['prompt_tokens']} tokens, responses of {found['response_tokens']}",
            *(f"{name}: a context of {tokens} tokens" for name, tokens in contexts.items() if tokens is not None),
        ],
        "output": [f"checkpoints, {saved}: {found['folder']}", *([start] if found["workflow"] else [])],
        "this machine": [", ".join(part) for part in (versions, others) if part],
    }
    for title, lines in sections.items():
        branch = root.add(title) if lines else root
        for line in lines:
            branch.add(Text(line))
    return root


def _agent(name: str, agent: Summary) -> str:
    note = "" if agent["trained"] else " (its rows are left out of the loss)"
    short = {setting: shorten(str(value), 60, placeholder=" ...") for setting, value in agent["settings"].items()}
    settings = "".join(f", {setting}={value}" for setting, value in short.items())
    return f"{name} acts on {agent['policy']}{note}{settings}"


def _policy(name: str, policy: Summary) -> str:
    if policy["pool"] is None:
        return f"{name}: remote, {policy['model']} at {policy['engine']}"
    where = f"{policy['model']}, served by {policy['engine']} on pool {policy['pool']}"
    if policy["optimiser_steps"] is None:
        kind = f"a snapshot {policy['snapshot']}" if policy["snapshot"] else "frozen"
        shared = f", the base of {', '.join(policy['adapters'])}" if policy["adapters"] else ""
        return f"{name}: {kind}{shared}, {where}"
    if adapter := policy["adapter"]:
        where = f"an adapter of rank {adapter['rank']} (alpha {adapter['alpha']:g}) on {adapter['base']}"
    steps = _count(policy["optimiser_steps"], "optimiser step", "optimiser steps")
    corrected = f", rollout correction {policy['correction']}" if policy["correction"] else ""
    rate = f"learning rate {policy['learning_rate']:g}"
    return f"{name}: trained, {where}, {rate}, {steps} per training step{corrected}"


def _pool(name: str, pool: Summary, on_cpu: bool) -> str:
    units = ("worker process", "worker processes") if on_cpu else ("GPU", "GPUs")
    serving = f", {SERVING[pool['serving']]} ({pool['reason']})" if len(pool["policies"]) > 1 else ""
    nodes = f" on {pool['nodes']} nodes" if pool["nodes"] > 1 else ""
    return f"{name}: {_count(pool['processes'], *units)}{nodes}{serving}: {', '.join(pool['policies'])}"


def _step(found: Summary) -> Iterator[str]:
    step = found["step"]
    if mode := found["mode"]:
        stale = f"; W={mode['warmup']:g} T={mode['threshold']} {mode['strategy']}" if mode["warmup"] is not None else ""
        yield f"mode: {mode['name']}, {MODES[mode['name']]}{stale}"
    yield f"sessions: {step['tasks']} tasks x {step['sessions_per_task']} per task = {step['sessions']}"
    if step["at_once"]:
        yield f"sessions at once, also in validation: at most {step['at_once']}"
    if found["workflow"]:
        yield f"training rows: {step['sessions']} for each act of a session"
    if step["candidates"] > 1:
        rows = step["sessions"] * step["candidates"]
        yield f"rows where it branches: {step['sessions']} x {step['candidates']} candidates = {rows} per act"
        yield f"committed candidate: {step['commit']}"
    if step["reward"]:
        reward = step["reward"]
        parts = f"{reward['team']:g} x the team's reward + {reward['local']:g} x the act's own"
        penalty = f"the format penalty is subtracted from: {reward['penalty_on']}"
        yield f"score of a row: {parts} (mas.reward.preset={reward['preset']}); {penalty}"
    yield f"advantages: {step['estimator']}"


def _count(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"
