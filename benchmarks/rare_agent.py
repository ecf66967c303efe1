"""Measure how well each estimator finds the direction in which a rarely called agent improves.

An agent is called in some of the eight sessions of a task. It chooses one of two actions with equal probability; the
better action raises the probability of success by 0.2. A step has 16 tasks. The signal is the mean over steps of the
gradient of the agent's only parameter, divided by the gradient's deviation. With a signal of 0, half of the steps have
the wrong sign.

python benchmarks/rare_agent.py [--steps 400]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from verl_mas.advantage import AdvantageInput, AdvantageOptions, RunningScores, compute_advantages

TASKS, SESSIONS, GAIN, WARM = 16, 8, 0.2, 10


@dataclass(frozen=True)
class Setting:
    """A case to measure.

    `called`: number of a task's sessions that call the agent, or their share if below 1. `spread`: deviation of the
    tasks' probability of success. `bonus`: the agent's own reward in addition to the team's reward.
    """

    name: str
    called: float
    spread: float = 0.05
    bonus: float = 0.0

    def steps(self, count: int) -> Iterator[tuple[AdvantageInput, np.ndarray]]:
        """Yield the rows of each step, and the derivative of each row's log-prob, which is 0 for the other agent."""
        rng = np.random.default_rng(0)
        for _ in range(count):
            order = rng.random((TASKS, SESSIONS)).argsort(axis=1)
            called = order < self.called if self.called >= 1 else rng.random(order.shape) < self.called
            action = rng.random(order.shape) < 0.5
            task = np.clip(0.4 + self.spread * rng.standard_normal(TASKS), 0.02, 0.78)
            success = rng.random(order.shape) < task[:, None] + GAIN * (called & action)
            of, session = np.nonzero(called)
            where = [*np.nonzero(np.ones_like(order)), of, session]
            tasks, sessions = np.concatenate(where[::2]), np.concatenate(where[1::2])
            rare = np.arange(len(tasks)) >= order.size
            scores = success[tasks, sessions] + self.bonus * rare
            agents = np.where(rare, "rare", "always")
            yield AdvantageInput(torch.tensor(scores), tasks, sessions, agents), rare * (action[tasks, sessions] - 0.5)


SETTINGS = (
    Setting("one call per task", 1),
    Setting("two calls per task", 2),
    Setting("called in 10 % of sessions", 0.1),
    Setting("the same, and a bonus of 1.5", 0.1, bonus=1.5),
    Setting("the same without bonus, tasks of unequal difficulty", 0.1, spread=0.3),
    Setting("called in every session", 8),
    Setting("the same, tasks of unequal difficulty", 8, spread=0.3),
)
ARMS: tuple[tuple[str, Mapping[str, float]], ...] = (
    ("team_grpo", {}),
    ("agent_grpo", {}),
    ("agent_rae", {}),
    *(("agent_grpo", {"shrinkage": float(count)}) for count in (1, 2, 4, 8)),
)


def signal(setting: Setting, name: str, options: AdvantageOptions, steps: int) -> tuple[float, float]:
    """Return the signal, and the share of steps whose gradient is 0 or has the wrong sign."""
    running, found = RunningScores(), []
    for batch, derivative in setting.steps(steps):
        found.append(float((compute_advantages(name, batch, options, running).advantages.numpy() * derivative).sum()))
    gradients = np.array(found[WARM:])
    spread = float(gradients.std())
    return float(gradients.mean()) / spread if spread else 0.0, float((gradients <= 0).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    for setting in SETTINGS:
        print(setting.name)
        for name, chosen in ARMS:
            mean, wrong = signal(setting, name, AdvantageOptions(**chosen), steps)  # type: ignore[arg-type]
            words = " ".join([name, *(f"{key}={value:g}" for key, value in chosen.items())])
            print(f"  {words:24s} signal {mean:5.2f}   wrong sign {wrong:.2f}")


if __name__ == "__main__":
    main()
