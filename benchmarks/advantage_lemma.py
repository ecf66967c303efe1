"""Compare an agent's policy gradient under the team's and its own baseline with Lemma 4.2 of Dr. MAS (second moments).

    python benchmarks/advantage_lemma.py [--plot benchmarks/advantage_lemma.png]

A softmax policy acts for the agent `k`, which one in sixteen sessions calls. Rewards depend on the action, so the
covariance term Delta_k is not zero. Advantages come from `team_grpo` and `agent_grpo`, and gradients from autograd.
The gradients' second moments are compared with the lemma's formula for the population:

    E||g||^2 = E||z||^2 * (sigma_k^2 + (mu_k - mu)^2) / sigma^2 + Delta_k

The factor does not mean that second moments grow: over all acts, with the baseline's weights, the mean of A^2 is 1. It
says how a common baseline distributes them over agents. Its term (mu_k - mu)^2 is noise; its term sigma_k^2 is signal.
"""

from __future__ import annotations

import argparse
import itertools
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.func import grad, vmap

from verl_mas.advantage import AdvantageInput, compute_advantages

CALLED = 1 / 16
LUCK = math.sqrt(1 - 0.6**2)  # a reward is 0.6 times the action's merit plus LUCK times noise, so its variance is 1
DISTANCES = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
SPREADS = (0.25, 0.5, 1.0, 1.5, 2.0)


class Policy:
    """A softmax policy over four actions, whose logits are linear in the features of one of eight contexts."""

    def __init__(self, generator: torch.Generator):
        self.contexts = torch.randn(8, 3, generator=generator).double()
        self.weights = torch.randn(4, 3, generator=generator).double()
        self.probs = torch.softmax(self.contexts @ self.weights.T, -1)
        merit = torch.randn(8, 4, generator=generator).double()
        merit = merit - self.average(merit)
        self.merit = merit / self.average(merit**2).sqrt()
        context, action = (
            index.reshape(-1) for index in torch.meshgrid(torch.arange(8), torch.arange(4), indexing="ij")
        )
        self.score_square = self.scores(context, action).square().sum((1, 2)).reshape(8, 4)

    def average(self, values: Tensor) -> Tensor:
        """Return the expectation of an [8, 4] table over contexts and the policy's actions."""
        return (self.probs * values).sum() / 8

    def scores(self, context: Tensor, action: Tensor) -> Tensor:
        """Compute z = d log pi(action | context) / d weights for every row, by autograd."""

        def log_prob(weights: Tensor, x: Tensor, a: Tensor) -> Tensor:
            return torch.log_softmax(weights @ x, -1).gather(0, a.unsqueeze(0)).squeeze(0)

        return vmap(grad(log_prob), in_dims=(None, 0, 0))(self.weights, self.contexts[context], action)


@dataclass(frozen=True)
class Point:
    """The mean and deviation of the agent's rewards, in units in which the team's are 0 and 1."""

    mu: float
    sigma: float

    @property
    def factor(self) -> float:
        return self.sigma**2 + self.mu**2

    @property
    def others(self) -> tuple[float, float]:
        """Return the mean and deviation of the other sessions with which the team's mean is 0 and its deviation 1."""
        mean = -CALLED * self.mu / (1 - CALLED)
        return mean, math.sqrt((1 - CALLED * self.factor) / (1 - CALLED) - mean**2)


@dataclass(frozen=True)
class Measured:
    """A second moment: its mean over batches, the standard error of the mean, and the lemma's value."""

    mean: float
    error: float
    lemma: float

    @property
    def errors_off(self) -> float:
        return abs(self.mean - self.lemma) / self.error


def lemma(policy: Policy, point: Point, own_baseline: bool) -> float:
    """Compute the lemma's second moment, factor and Delta_k included, by enumerating contexts and actions."""
    mu, sigma = (point.mu, point.sigma) if own_baseline else (0.0, 1.0)
    factor = (point.sigma**2 + (point.mu - mu) ** 2) / sigma**2
    given_action = point.mu - mu + point.sigma * 0.6 * policy.merit
    advantage_square = (given_action**2 + (point.sigma * LUCK) ** 2) / sigma**2
    mean_square = policy.average(policy.score_square)
    delta = policy.average(policy.score_square * advantage_square) - mean_square * policy.average(advantage_square)
    return float(mean_square * factor + delta)


def measure(
    policy: Policy, point: Point, generator: torch.Generator, sessions: int = 32_768, batches: int = 64
) -> dict[str, Measured]:
    """Measure both baselines at one point, and the metric `inflation` that an estimator reports."""
    seen: dict[str, list[float]] = {"team_grpo": [], "agent_grpo": [], "inflation": []}
    for _ in range(batches):
        batch, z = draw(policy, point, generator, sessions)
        for name in ("team_grpo", "agent_grpo"):
            output = compute_advantages(name, batch)
            gradients = z * output.advantages[sessions:, None, None]
            seen[name].append(float(gradients.square().sum((1, 2)).mean()))
        seen["inflation"].append(output.metrics["advantage/k/inflation"])
    expected = {
        "team_grpo": lemma(policy, point, own_baseline=False),
        "agent_grpo": lemma(policy, point, own_baseline=True),
        "inflation": point.factor,
    }
    return {name: summary(values, expected[name]) for name, values in seen.items()}


def draw(policy: Policy, point: Point, generator: torch.Generator, sessions: int) -> tuple[AdvantageInput, Tensor]:
    """Sample one task: an act of `other` in every session, then the acts of `k` in the sessions that call `k`."""
    calls = int(sessions * CALLED)
    context = torch.randint(8, (calls,), generator=generator)
    action = torch.multinomial(policy.probs[context], 1, generator=generator).squeeze(1)
    luck = torch.randn(sessions, generator=generator).double()
    mean, deviation = point.others
    rewards = mean + deviation * luck
    rewards[:calls] = point.mu + point.sigma * (0.6 * policy.merit[context, action] + LUCK * luck[:calls])
    rows = sessions + calls
    batch = AdvantageInput(
        scores=torch.cat([rewards, rewards[:calls]]),
        task=torch.zeros(rows, dtype=torch.long),
        session=torch.cat([torch.arange(sessions), torch.arange(calls)]),
        agent=["other"] * sessions + ["k"] * calls,
        turn=torch.zeros(rows, dtype=torch.long),
        branch=torch.zeros(rows, dtype=torch.long),
    )
    return batch, policy.scores(context, action)


def summary(values: list[float], expected: float) -> Measured:
    found = torch.tensor(values, dtype=torch.float64)
    return Measured(float(found.mean()), float(found.std() / math.sqrt(len(values))), expected)


def plot(results: dict[Point, dict[str, Measured]], unit: float, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for spread in SPREADS:
        line = {point.mu: found for point, found in results.items() if point.sigma == spread}
        team = [found["team_grpo"] for found in line.values()]
        (curve,) = axes.plot(list(line), [m.lemma / unit for m in team], label=f"$\\sigma_k/\\sigma$ = {spread:g}")
        errors = [3 * m.error / unit for m in team]
        axes.errorbar(list(line), [m.mean / unit for m in team], errors, fmt="o", ms=4, color=curve.get_color())
    own = [found["agent_grpo"].mean / unit for found in results.values()]
    axes.plot([point.mu for point in results], own, "kx", ms=5, label="agent_grpo, all $\\sigma_k$")
    axes.set(
        xlabel="$(\\mu_k - \\mu)\\,/\\,\\sigma$",
        ylabel="$E\\|g_k\\|^2\\,/\\,E\\|z_k\\|^2$",
        yscale="log",
        title="team_grpo: Lemma 4.2 (lines), measured gradients (dots, 3 s.e.)",
    )
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    policy = Policy(generator)
    results = {
        Point(mu, sigma): measure(policy, Point(mu, sigma), generator)
        for sigma, mu in itertools.product(SPREADS, DISTANCES)
    }
    print("(mu_k-mu)/s  sigma_k/s   lemma   team_grpo  +- s.e.   lemma  agent_grpo  +- s.e.  ratio")
    for point, found in results.items():
        team, own = found["team_grpo"], found["agent_grpo"]
        print(
            f"{point.mu:11.2f}{point.sigma:11.2f}{team.lemma:9.3f}{team.mean:11.3f}{team.error:9.3f}"
            f"{own.lemma:8.3f}{own.mean:12.3f}{own.error:9.3f}{team.mean / own.mean:7.2f}"
        )
    for name in ("team_grpo", "agent_grpo", "inflation"):
        off = sorted(found[name].errors_off for found in results.values())
        within = sum(value < 2 for value in off)
        print(f"{name}: {within} of {len(off)} points within 2 standard errors of the formula, worst {off[-1]:.2f}")
    if arguments.plot:
        plot(results, float(policy.average(policy.score_square)), arguments.plot)


if __name__ == "__main__":
    main()
