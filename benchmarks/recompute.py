"""Computes the advantages of a run again from its session records, with the second implementation in the tests.

    PYTHONPATH=tests/advantage python benchmarks/recompute.py RUN

RUN is the folder of a run with `mas.trajectories`. For each step, the script prints the number of rows and the largest
differences of advantages and of scores; it computes a score again from its parts. Acts without an advantage in the
record do not count: probes, and acts of failed sessions and excluded tasks.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from test_second_implementation import DEFAULTS, LABELS, OWN_DEFAULTS, PAPERS, PARTS, alike, as_agents, weigh

from verl_mas import read_sessions
from verl_mas.config.run import Run
from verl_mas.results.sessions.run import open_run

COLUMNS = (*LABELS, *PARTS, "tokens", "score", "advantage")


def rows_of(sessions: list[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield one row per key. The acts of a conversation share a key, so the conversation is one row."""
    for session in sessions:
        rows: dict[str, dict[str, Any]] = {}
        for act in session["acts"]:
            if act["key"] is None or act["advantage"] is None:
                continue
            if act["key"] in rows:
                rows[act["key"]]["tokens"] += act["sampled_tokens"]
                continue
            reward, seen = act["reward"], json.dumps(act["messages"], sort_keys=True)
            own = {"task": session["uid"], "session": session["session"], "source": session["task"]["data_source"]}
            own |= {"team_reward": reward["team"], "local_reward": reward["local"], "penalty": reward["penalty"]}
            own |= {"observation": seen, "tokens": act["sampled_tokens"], "score": reward["score"]}
            rows[act["key"]] = {**act, **own}
        yield from rows.values()


def fold_grpo(rows: Any, options: Any, past: object) -> Any:
    """Compute the advantage of arXiv:2510.11967: the score, clipped to 0 to 1, minus the mean outcome of the task's
    sessions, divided by the deviation of their outcomes."""
    outcome, found = rows.team_weight * rows.team_reward, np.zeros(len(rows.score))
    for row, score in enumerate(rows.score):
        mine = rows.task == rows.task[row]
        sessions = np.array(list(dict(zip(rows.session[mine], outcome[mine], strict=True)).values()))
        spread = 1.0 if len(set(sessions)) == 1 else sessions.std(ddof=1) + options.eps
        found[row] = (min(1.0, max(0.0, score)) - sessions.mean()) / spread
    return found


ESTIMATORS = {**PAPERS, "fold_grpo": fold_grpo}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    run = open_run(parser.parse_args().run)
    mas, name = OmegaConf.to_container(run.config.mas), run.config.algorithm.adv_estimator
    chosen = {key: value for key, value in (mas.get("advantage") or {}).items() if value is not None}
    options = SimpleNamespace(**DEFAULTS | OWN_DEFAULTS.get(name, {}) | chosen)
    weights = Run.of(run.config).mas.reward
    steps: dict[int, list[Mapping[str, Any]]] = {}
    for session in read_sessions(run.folder / "trajectories"):
        steps.setdefault(session["step"], []).append(session)
    past: list[Any] = []
    for step, sessions in sorted(steps.items()):
        if not (found := list(rows_of(sessions))):
            continue
        rows = SimpleNamespace(**{column: np.array([row[column] for row in found]) for column in COLUMNS})
        rows.team_weight, rows.local_weight = weights.team or 0.0, weights.local or 0.0
        score = rows.team_weight * rows.team_reward + rows.local_weight * rows.local_reward - rows.penalty
        expected = ESTIMATORS[name](as_agents(rows) if options.by == "role" else rows, options, past)
        past.append((rows, weigh(as_agents(rows), options, alike(rows, "role", "source"), ("task", "session"))[0]))
        apart = np.abs(expected - rows.advantage).max(), np.abs(score - rows.score).max()
        print(f"step {step}: {len(found)} rows; advantages {apart[0]:.1e} apart, scores {apart[1]:.1e}")


if __name__ == "__main__":
    main()
