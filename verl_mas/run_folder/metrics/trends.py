"""Findings over a whole run: metrics that rise, fall or stay flat when they should not."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import variance
from typing import TypeAlias

from verl_mas.run_folder.metrics.names import CORE, agent, names_in, policies_in

BLOCK = 5  # steps in a mean
# A fall of the reward is reported if it exceeds ERRORS standard errors and the share FALL of the best mean. In
# benchmarks/evidence, 14 of 738 recorded reward curves fall this far.
ERRORS, FALL = 5, 0.2
FLAT = 30  # steps without a change of the reward before a finding; with a small learning rate, sound runs change slowly
ENTROPY = 2.0, 0.3  # smallest rise of the entropy that is reported: a factor, and nats per token
MEMORY = 0.05, 1.0  # smallest growth of memory that is reported: a share, and GB
RISES = 0.8  # memory that grows in at least this share of steps is a finding; a cache stops growing when it is full
UNUSED = 0.1  # tools are reported as unused if calls fall to this share of the calls in the first steps
MARGIN = 0.02  # largest difference in success that counts as noise; the validation's interval can raise it
_SUCCESS = re.compile(rf"{CORE}(.+)/acc/mean@\d+")
_ENTROPY = re.compile(r"(?:policy/([^/]+)/)?actor/entropy")
_MEMORY = {"cpu_memory_used_gb": "the host", "max_memory_allocated_gb": "the GPUs"}
AGREEMENT = "session/agreement/mean"
# The metrics whose series are stored. Other series are not stored, because a run has hundreds of metrics, and each
# series grows until the run ends.
_KEPT = re.compile(
    r"critic/score/mean|session/agreement/mean|(.*/)?actor/(entropy|lr)|(.*/)?(cpu_memory_used_gb|max_memory_allocated_gb)"
    r"|agent/[^/]+/(tool_calls|acts)"
)
Series = Sequence[float]
# The values of a step, by name. None (`null` in a metrics file) counts as NaN.
Metrics: TypeAlias = Mapping[str, float | None]
EVERYONE = "team"


@dataclass(frozen=True)
class RunFinding:
    """A finding. `kind` and `name` identify it from step to step; `text` has the likely cause and a remedy."""

    kind: str
    name: str
    text: str


def mean(series: Series) -> float:
    return sum(series) / len(series) if series else math.nan


class Trends:
    """Finds trends in the metrics of all steps so far."""

    def __init__(self) -> None:
        self._series: dict[str, list[float]] = defaultdict(list)
        self._validated = Validations()

    def add(self, metrics: Metrics) -> list[RunFinding]:
        for key, value in metrics.items():
            if value is not None and math.isfinite(value) and _KEPT.fullmatch(key):
                self._series[key].append(value)
        rewards = self._series["critic/score/mean"]
        return [
            *_reward(rewards, self._series),
            *self._validated.add(metrics, rewards, self._series[AGREEMENT]),
            *_rising_entropy(metrics, self._series),
            *_growing_memory(metrics, self._series),
            *_unused_tools(metrics, self._series),
        ]


def _reward(rewards: Series, series: dict[str, list[float]]) -> Iterator[RunFinding]:
    blocks = [rewards[i : i + BLOCK] for i in range(len(rewards) - 2 * BLOCK + 1)]
    if len(blocks) <= BLOCK:
        return
    best, last = max(blocks, key=mean), rewards[-BLOCK:]
    high, now = mean(best), mean(last)
    if high - now > max(ERRORS * _error(best, last), FALL * abs(high)):
        text = (
            f"the reward has fallen from {high:.3g}, its best mean of {BLOCK} steps, to {now:.3g}. Resume from a "
            "checkpoint before the fall with a smaller optim.lr; look at actor/grad_norm, the entropy and the length "
            "of responses at the step at which it began"
        )
        yield RunFinding("reward_falls", EVERYONE, text)
    first = rewards[:BLOCK]
    if len(rewards) >= FLAT and max(map(mean, blocks)) - mean(first) <= 2 * _error(first, last) and high > now - MARGIN:
        rates = [values[-1] for key, values in series.items() if key.endswith("actor/lr")]
        rate = f" The learning rate is {', '.join(f'{value:g}' for value in rates)}." if rates else ""
        text = (
            f"the reward has not changed in {len(rewards)} steps: {mean(first):.3g} at first, {now:.3g} now.{rate} "
            "LoRA needs about ten times the learning rate of whole weights. If agent/*/advantage/zero is near 1, the "
            "tasks are too hard or too easy"
        )
        yield RunFinding("reward_stands", EVERYONE, text)


def _error(one: Series, other: Series) -> float:
    """Return the standard error of the difference of two means."""
    return math.sqrt((variance(one) + variance(other)) / len(other))


def _rising_entropy(metrics: Metrics, series: dict[str, list[float]]) -> Iterator[RunFinding]:
    for key in metrics:
        if not (named := _ENTROPY.fullmatch(key)) or len(series[key]) < 2 * BLOCK:
            continue
        first, now = mean(series[key][:BLOCK]), min(series[key][-BLOCK:])
        times, nats = ENTROPY
        if now >= times * first and now - first >= nats:
            name = named[1] or next(iter(policies_in(metrics)), EVERYONE)
            text = (
                f"the entropy of policy {name} has risen from {first:.2g} to {now:.2g} and more: its replies turn into "
                "random text. Resume from an earlier checkpoint with a smaller optim.lr, a smaller entropy_coeff or "
                "clip_ratio_high, and room for replies that are cut"
            )
            yield RunFinding("entropy_rises", name, text)


def _growing_memory(metrics: Metrics, series: dict[str, list[float]]) -> Iterator[RunFinding]:
    share, gigabytes = MEMORY
    for key in metrics:
        where = _MEMORY.get(key.rpartition("/")[2])
        # Skip the first steps, in which memory always grows.
        values = series[key][BLOCK:] if where else []
        if len(values) < 2 * BLOCK:
            continue
        grown = values[-1] - values[0]
        rises = sum(late > early for early, late in pairwise(values)) / (len(values) - 1)
        if rises >= RISES and grown >= max(gigabytes, share * values[0]):
            text = (
                f"the memory of {where} grows in nearly every step, by {grown:.1f} GB in {len(values)} steps ({key}): "
                "the run will end when it is used up. Save often, and look for what a workflow, a tool or a reward "
                "function keeps from session to session"
            )
            yield RunFinding("memory_grows", key, text)


def _unused_tools(metrics: Metrics, series: dict[str, list[float]]) -> Iterator[RunFinding]:
    # A step without tool calls does not log the metric, so missing values count as 0.
    for name in names_in(series, "agent", "tool_calls"):
        calls, steps = series[agent(name, "tool_calls")], len(series[agent(name, "acts")])
        missing = max(0, steps - len(calls))
        recent = [*calls, *[0.0] * missing][-BLOCK:]
        if steps >= 2 * BLOCK and mean(recent) <= UNUSED * mean(calls[:BLOCK]):
            text = (
                f"agent {name} hardly calls its tools any more: {mean(calls[:BLOCK]):.2g} calls per session at first, "
                f"{mean(recent):.2g} now. Read sessions of before and now; if calls cost it reward (errors, length, "
                "penalties), reward what they are for"
            )
            yield RunFinding("tools_unused", name, text)


class Validations:
    """Compares the success in validations with the reward and the agreement in training."""

    def __init__(self) -> None:
        self._success: list[float] = []
        self._margin = MARGIN
        self._changed = True  # whether a policy was updated since the last validation
        self._held: list[RunFinding] = []

    def add(self, metrics: Metrics, rewards: Series, agreement: Series) -> list[RunFinding]:
        """Return the findings as of the latest validation. `agreement`: the agreement of answers, step by step."""
        rates = [value for key, value in metrics.items() if key.endswith(("actor/grad_norm", "actor/lr"))]
        self._changed = self._changed or bool(rates and all(rates))
        # Success is verl's mean accuracy or, without it, the first metric of the validation.
        ours = [key for key in metrics if key.startswith(CORE)]
        key = next((key for key in ours if _SUCCESS.fullmatch(key)), ours[0] if ours else None)
        value = metrics.get(key) if key else None
        if key is None or value is None:
            return self._held
        if not self._success:
            self._margin = self._half_interval(metrics, key)
        before = self._success[-1:]
        self._success.append(value)
        collapsed = list(self._collapsed(key, agreement))
        self._held = [*(collapsed or self._without_success(key, rewards)), *self._of_equal_weights(key, before, value)]
        self._changed = False
        return self._held

    def _half_interval(self, metrics: Metrics, key: str) -> float:
        matched = _SUCCESS.fullmatch(key)
        ends = [metrics.get(f"{CORE}{matched[1]}/pass@1/{end}") for end in ("low", "high")] if matched else []
        low, high = ends or (None, None)
        return MARGIN if low is None or high is None else max(MARGIN, (high - low) / 2)

    def _without_success(self, key: str, rewards: Series) -> Iterator[RunFinding]:
        if not (rise := self._rise(rewards)) or max(self._success[-2:]) > self._success[0] + self._margin:
            return
        before, after = rise
        text = (
            f"the reward in training has risen from {before:.3g} to {after:.3g}, and {key} has not: "
            f"{self._success[0]:.3g} at first, {self._success[-1]:.3g} now. The reward may be earned by something "
            "else than success (compare agent/*/reward/local with reward/team, and read the sessions with the best "
            "rewards), or the tasks of training are too few for what is learned to carry over"
        )
        yield RunFinding("reward_without_success", EVERYONE, text)

    def _collapsed(self, key: str, agreement: Series) -> Iterator[RunFinding]:
        best, last = max(self._success), max(self._success[-2:])
        if (rise := self._rise(agreement)) and last < max(self._success[0] - self._margin, best - 2 * self._margin):
            before, after = rise
            text = (
                f"answers agree more, {after:.3g} in training and {before:.3g} at first, and are right less often: "
                f"{key} is {self._success[-1]:.3g}, and was {best:.3g} at best. Agreement teaches an error that most "
                "answers share. Read which answer the sessions agree on; resume from the checkpoint of the best "
                "validation, and train with peers whose errors differ, or with a ground truth"
            )
            yield RunFinding("agreement_without_success", EVERYONE, text)

    def _rise(self, series: Series) -> tuple[float, float] | None:
        """Return the means of the first and the last third if the rise exceeds the noise; else None."""
        third = len(series) // 3
        if min(third, len(self._success)) < 3:
            return None
        before, after = series[:third], series[-third:]
        noise = math.sqrt((variance(before) + variance(after)) / third)
        return (mean(before), mean(after)) if mean(after) - mean(before) > max(0, 2 * noise) else None

    def _of_equal_weights(self, key: str, before: Series, value: float) -> Iterator[RunFinding]:
        if before and not self._changed and value != before[0]:
            text = (
                f"two validations of the same weights gave {before[0]:.3g} and {value:.3g} for {key}: sampling, "
                "batches and kernels differ from one to the next, so a difference of this size means nothing. Compare "
                f"with the interval of a validation (about {self._margin:.2g} on either side), or validate more tasks"
            )
            yield RunFinding("validation_varies", EVERYONE, text)
