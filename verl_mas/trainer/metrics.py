"""The metrics of a step. verl's reducers choose by name ("min" in `mini`), so prefixes are added last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from verl_mas.row import is_padding

if TYPE_CHECKING:
    import torch

    from verl_mas.trainer.step import Columns, PolicyRows

ROOT = "mas"


def named(owner: str, metrics: Mapping[str, float]) -> dict[str, float]:
    return {f"{ROOT}/{owner}/{key}": value for key, value in metrics.items()}


def prefixed(metrics: Mapping[str, float]) -> dict[str, float]:
    return {f"{ROOT}/{key}": value for key, value in metrics.items()}


def policy_metrics(parts: Mapping[str, PolicyRows], policies: Sequence[str]) -> dict[str, float]:
    """What verl logs for an actor, per policy; a team of one policy keeps verl's own names too."""
    found: dict[str, float] = {}
    for name in policies:
        part = parts.get(name)
        if part is None:
            found |= named(name, {"rows/real": 0, "rows/padding": 0, "updated": 0})
            continue
        padding = sum(is_padding(tag) for tag in part.batch.tags)
        own = {"rows/real": len(part.batch) - padding, "rows/padding": padding, "updated": 1, **part.metrics}
        found |= named(name, own)
        if len(policies) == 1:
            found |= {key: value for key, value in part.metrics.items() if not key.startswith(("rows/", "timing/"))}
    return found


def agent_metrics(
    columns: Columns, advantages: torch.Tensor | None = None, diagnostics: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Behaviour and rewards of every agent that acted."""
    tags = columns.tags
    agents = np.array([tag.agent for tag in tags], dtype=object)
    sessions = len({(key.uid, key.session) for key in columns.keys})
    lengths = np.array([tag.response_len for tag in tags], dtype=float)
    prompts = np.array([tag.prompt_len for tag in tags], dtype=float)
    malformed = np.array([tag.malformed for tag in tags], dtype=float)
    rewards = {
        "score": columns.scores.numpy(),
        "team": np.array([tag.team_reward for tag in tags], dtype=np.float32),
        "local": np.array([tag.local_reward for tag in tags], dtype=np.float32),
        "penalty": np.array([tag.penalty for tag in tags], dtype=np.float32),
    }
    found: dict[str, float] = {}
    for agent in dict.fromkeys(agents):
        of = agents == agent
        own = {f"reward/{part}": float(value[of].mean()) for part, value in rewards.items()}
        own |= {
            "acts": float(of.sum()),
            "acts_per_session": float(of.sum()) / sessions,
            "malformed": float(malformed[of].mean()),
            "length/response": float(lengths[of].mean()),
            "length/response_longest": float(lengths[of].max()),
            "length/prompt": float(prompts[of].mean()),
        }
        if advantages is not None:
            adv = advantages.numpy()[of]
            own |= {
                "advantage/mean": float(adv.mean()),
                "advantage/std": float(adv.std()),
                "advantage/zero": float((adv == 0).mean()),
            }
        found |= named(str(agent), own)
    for key, value in (diagnostics or {}).items():
        found[f"{ROOT}/{_agent_first(key)}"] = value
    return found


def _agent_first(key: str) -> str:
    """`advantage/<agent>/<name>` of the estimators, as `<agent>/group/<name>`."""
    kind, _, rest = key.partition("/")
    agent, _, name = rest.partition("/")
    return f"{agent}/group/{name}" if kind == "advantage" and name else key


def step_line(step: int, metrics: Mapping[str, float], timing: Mapping[str, float], policies: Sequence[str]) -> str:
    """A step in one line: seconds per phase, rows per policy, the team's score."""
    phases = {"gen": "rollout", "old_log_prob": "log-probs", "adv": "advantages", "update_actor": "update"}
    seconds = ", ".join(f"{word} {timing[key]:.1f}s" for key, word in phases.items() if key in timing)
    rows = ", ".join(_rows(metrics, name) for name in policies)
    score = metrics.get("critic/score/mean")
    result = f" | score {score:.3f}" if score is not None else ""
    return f"step {step} | {seconds} | {rows}{result}"


def _rows(metrics: Mapping[str, float], name: str) -> str:
    real, padding = metrics.get(f"{ROOT}/{name}/rows/real", 0), metrics.get(f"{ROOT}/{name}/rows/padding", 0)
    skipped = metrics.get(f"{ROOT}/{name}/rows/skipped", 0)
    notes = [f"{count:g} {word}" for count, word in ((padding, "padding"), (skipped, "skipped")) if count]
    return f"{name} {real:g} rows" + (f" ({', '.join(notes)})" if notes else "")
