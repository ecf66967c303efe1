"""Metrics of a step.

verl chooses a reducer by substrings of a metric's name ("min" matches `mini`), so names of agents and policies are
added after the reduction.

The weights after step v have version v, so step s updates version s - 1. The staleness of a token is the number of
updates since the version that sampled it. A row is as stale as its oldest token.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from verl_mas.advantage.kernel import per_token
from verl_mas.errors import UpdateFailed
from verl_mas.run_folder.checkpoints import Checkpoint
from verl_mas.run_folder.metrics import names as metric_names
from verl_mas.run_folder.metrics.findings import STEPS
from verl_mas.verl_ import data_plane, row
from verl_mas.verl_.row import RowKey, RowTags, TagValues, is_padding
from verl_mas.verl_.types import Fields

if TYPE_CHECKING:
    from verl_mas.trainer.step import Columns, PolicyRows
    from verl_mas.verl_.data_plane import Rows

# Prefixes of metrics that verl's actor does not have.
OURS = ("rows/", "updated")
# All rows with at least this staleness form one class, so that the number of metrics is bounded.
LAST = 8


def of_policy(name: str, metrics: Mapping[str, float]) -> dict[str, float]:
    return {metric_names.policy(name, key): value for key, value in metrics.items()}


def policy_metrics(parts: Mapping[str, PolicyRows], policies: Sequence[str]) -> dict[str, float]:
    """Return the number of rows and verl's actor metrics of each policy.

    If the run has a single policy, verl's metrics keep their names, and the policy's seconds are skipped, because verl
    logs the same seconds for the step.
    """
    values: dict[str, float] = {}
    for name in policies:
        part = parts.get(name)
        if part is None:
            values |= of_policy(name, {"rows/real": 0, "rows/padding": 0, "updated": 0})
            continue
        padding = sum(is_padding(tag) for tag in part.batch.tags)
        own = {"rows/real": len(part.batch) - padding, "rows/padding": padding, "updated": 1, **part.metrics}
        if len(policies) == 1:
            values |= {key: value for key, value in part.metrics.items() if not key.startswith((*OURS, "timing/"))}
            own = {key: value for key, value in own.items() if key.startswith(OURS)}
        values |= of_policy(name, own)
    return values


def agent_metrics(
    columns: Columns, advantages: torch.Tensor | None = None, diagnostics: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Metrics of the behaviour and the rewards of every agent that acted."""
    tags = columns.tags
    agents = np.array([tag.agent for tag in tags], dtype=object)
    sessions = len({(key.uid, key.session) for key in columns.keys})
    lengths = np.array([tag.response_len for tag in tags], dtype=float)
    averaged = {
        "reward/score": columns.scores.numpy(),
        "reward/team": np.array([tag.team_reward for tag in tags], dtype=np.float32),
        "reward/local": np.array([tag.local_reward for tag in tags], dtype=np.float32),
        "reward/penalty": np.array([tag.penalty for tag in tags], dtype=np.float32),
        "malformed": np.array([tag.malformed for tag in tags], dtype=float),
        "length/response": lengths,
        "length/prompt": np.array([tag.prompt_len for tag in tags], dtype=float),
    }
    values: dict[str, float] = {}
    for agent in dict.fromkeys(agents):
        of, acts = agents == agent, float((agents == agent).sum())
        own = {name: column[of].mean() for name, column in averaged.items()}
        own |= {"acts": acts, "acts_per_session": acts / sessions, "length/response_longest": lengths[of].max()}
        if advantages is not None:
            adv = advantages.numpy()[of]
            own |= {"advantage/mean": adv.mean(), "advantage/std": adv.std(), "advantage/zero": (adv == 0).mean()}
        values |= {metric_names.agent(str(agent), key): float(value) for key, value in own.items()}
    return values | {_agent_first(key): value for key, value in (diagnostics or {}).items()}


def log_prob_metrics(parts: Mapping[str, PolicyRows], limits: Mapping[str, float], step: int) -> dict[str, float]:
    """Distance between the log-probs of engine and trainer per agent, for tokens that the current weights sampled.

    Both use the same tokens, weights and temperature, so only rounding should differ. `limits`: policy -> the highest
    mean distance that rounding explains.
    """
    apart: dict[str, list[torch.Tensor]] = defaultdict(list)
    limit: dict[str, float] = {}
    for name, part in parts.items():
        if row.OLD_LOG_PROBS not in part.data:  # the trainer computed no log-probs
            continue
        new, old, mask = (part.data[column] for column in (row.OLD_LOG_PROBS, row.ROLLOUT_LOG_PROBS, row.LOSS_MASK))
        agents = [_sampled_by(tag, step) for tag in part.batch.tags]
        numbers = {agent: number for number, agent in enumerate(dict.fromkeys(agents))}
        # Process all rows at once, because a few calls of torch per row would take most of the driver's time here.
        of_token = per_token(torch.tensor([numbers[agent] for agent in agents]), mask)
        distance, counted = (new.values().double() - old.values().double()).abs(), mask.values().bool()
        for agent in filter(None, numbers):
            apart[agent].append(distance[counted & (of_token == numbers[agent])])
            limit[agent] = limits[name]
    values: dict[str, float] = {}
    for agent, rows in apart.items():
        found = np.concatenate([each.numpy() for each in rows])
        if found.size:
            own = {"mean": found.mean(), "max": found.max(), "tokens": found.size, "limit": limit[agent]}
            values |= {metric_names.agent(agent, f"log_probs/{key}"): float(value) for key, value in own.items()}
    return values


def _sampled_by(values: TagValues, step: int) -> str | None:
    """The agent of a row that the current weights sampled; None for other rows and for padding."""
    tag = RowTags.of(values)
    return tag.agent if not is_padding(values) and tag.min_global_steps in (None, step - 1) else None


def _agent_first(key: str) -> str:
    """Rename `advantage/<agent>/<name>` of the estimators to `agent/<agent>/group/<name>`."""
    kind, _, rest = key.partition("/")
    agent, _, name = rest.partition("/")
    return metric_names.agent(agent, f"group/{name}") if kind == "advantage" and name else key


def step_line(step: int, metrics: Mapping[str, float], timing: Mapping[str, float], policies: Sequence[str]) -> str:
    """Format a step as one line: seconds per phase, rows per policy, the team's score."""
    phases = {
        "gen": "rollout",
        "old_log_prob": "log-probs",
        "adv": "advantages",
        "update_actor": "update",
        "update_weights": "weights",
        "save_checkpoint": "checkpoint",
        "testing": "validation",
    }
    seconds = ", ".join(f"{word} {timing[key]:.1f}s" for key, word in phases.items() if key in timing)
    rows = ", ".join(_rows(metrics, name) for name in policies)
    score = metrics.get("critic/score/mean")
    result = f" | score {score:.3f}" if score is not None else ""
    return f"step {step} | {seconds} | {rows}{result}"


def result_of(metrics: Mapping[str, float]) -> str:
    """Format the mean success of a validation per source, and other measures of a world."""
    measured = re.compile(rf"(?:{metric_names.CORE}|val-aux/(?=.*/(?:{metric_names.MEASURES})/))(.*mean@\d+)$")
    found = {match[1]: value for key, value in metrics.items() if (match := measured.match(key))}
    return "".join(f" | {name} {value:.3f}" for name, value in found.items())


def _rows(metrics: Mapping[str, float], name: str) -> str:
    real, padding, skipped = (
        metrics.get(metric_names.policy(name, f"rows/{kind}"), 0) for kind in ("real", "padding", "skipped")
    )
    notes = [f"{count:g} {word}" for count, word in ((padding, "padding"), (skipped, "skipped")) if count]
    return f"{name} {real:g} rows" + (f" ({', '.join(notes)})" if notes else "")


def staleness_metrics(parts: Mapping[str, PolicyRows], step: int) -> dict[str, float]:
    """Return the staleness metrics per policy, and the share of sessions with mixed versions."""
    values: dict[str, float] = {}
    mixed: dict[tuple[str, int], bool] = {}
    for name, part in parts.items():
        rows = data_plane.select(part.batch, [i for i, tag in enumerate(part.batch.tags) if not is_padding(tag)])
        tags = [RowTags.of(tag) for tag in rows.tags]
        extras: list[Fields] = data_plane.read(rows, [row.EXTRA_FIELDS]).pop(row.EXTRA_FIELDS).tolist()
        values |= of_policy(name, row_metrics(tags, extras, step))
        for key, tag in zip(map(RowKey.parse, rows.keys), tags, strict=True):
            session = key.uid, key.session
            mixed[session] = mixed.get(session, False) or tag.min_global_steps != tag.max_global_steps
    return {**values, metric_names.session("mixed_versions"): sum(mixed.values()) / len(mixed)} if mixed else values


def row_metrics(tags: Sequence[RowTags], extras: Sequence[Fields], step: int) -> dict[str, float]:
    """Staleness of the rows from engines that count weight versions; empty for other engines."""
    ages = [step - 1 - tag.min_global_steps for tag in tags if tag.min_global_steps is not None]
    if not ages:
        return {}
    aborted = np.array([bool(extra.get(row.ABORTS, 0)) for extra in extras])
    mixed = np.array([tag.min_global_steps != tag.max_global_steps for tag in tags])
    classes = np.minimum(ages, LAST)
    return {
        "staleness/mean": float(np.mean(ages)),
        "staleness/max": float(np.max(ages)),
        **{f"staleness/{age}/rows": float(np.mean(classes == age)) for age in np.unique(classes)},
        "staleness/mixed_versions": float(mixed.mean()),
        "staleness/aborted": float(aborted.mean()),
        "staleness/continued": float((aborted & mixed).mean()),
    }


class TokenCount:
    """Counts of sampled tokens and of trained tokens since the process started."""

    def __init__(self) -> None:
        self.sampled = self.trained = 0

    def keep(self, tags: Iterable[TagValues]) -> None:
        """Count the tokens of a checkpoint's rows, which are not trained on yet, as sampled."""
        self.sampled += _trainable_tokens(tags)

    def add(
        self, sampled: int, parts: Mapping[str, PolicyRows], left: Mapping[str, TagValues], batch: Rows
    ) -> dict[str, float]:
        """Count the tokens of a step and return the metrics.

        `sampled`: number of tokens that trained policies sampled since the last call. `left`: the tags of the rows in
        the replay buffer.
        """
        self.sampled += sampled
        for part in parts.values():
            masks = part.data[row.RESPONSE_MASK].unbind()
            self.trained += sum(
                int(mask.sum()) for mask, tag in zip(masks, part.batch.tags, strict=True) if not is_padding(tag)
            )
        now = set(batch.keys)
        waiting = _trainable_tokens(tag for key, tag in left.items() if key not in now)
        return {
            "async/tokens/sampled": self.sampled,
            "async/tokens/trained": self.trained,
            "async/tokens/waiting": waiting,
            "async/tokens/lost": self.sampled - self.trained - waiting,
        }


def _trainable_tokens(tags: Iterable[TagValues]) -> int:
    return sum(tag[row.RESPONSE_LEN] for tag in tags if tag.get(row.TRAINABLE))


# Key of the first distances in the `run.json` of a checkpoint.
FIRST = "first distance of engine and trainer"
TIMES = 3  # limit as a multiple of the first distance; in healthy steps, the distance grows less
AT_ONCE = 2  # number of comparisons after a start; in these, one distance above the limit ends the run
FEWEST = 64  # minimum tokens of a comparison; in bfloat16, single tokens may differ by more than the limit


class Agreement:
    """Checks that engines sample with the weights that are trained, and ends the run if they do not.

    `log_prob_metrics` compares the log-probs of engine and trainer. At the first comparison, both have the initial
    weights of the run, so the distance comes from rounding and from sampling parameters such as a penalty. If new
    weights do not arrive, each update increases the distance.

    `resumed`: the checkpoint from which the run continues; it has the first distances of its agents.

    `corrected`: whether the loss corrects for probabilities that differ between engines and trainer. If it does, the
    distance may grow over time.
    """

    def __init__(self, resumed: Checkpoint | None = None, *, corrected: bool = False):
        self.first: dict[str, float] = dict(cast("Fields", resumed.run).get(FIRST, {})) if resumed else {}
        self._corrected = corrected
        self._compared: Counter[str] = Counter()
        self._apart: Counter[str] = Counter()  # consecutive comparisons above the limit

    def add(self, metrics: Mapping[str, float], step: int) -> None:
        """Raise UpdateFailed if an agent's engine seems to have other weights than the trainer.

        In the first comparisons after a start, one distance above the limit raises the error. Later, `STEPS`
        consecutive distances above the limit raise it; if `corrected` is true, later comparisons never raise it.
        """
        for name in metric_names.names_in(metrics, metric_names.AGENT, "log_probs/mean"):
            keys = (metric_names.agent(name, f"log_probs/{key}") for key in ("mean", "limit", "tokens"))
            mean, limit, tokens = (metrics[key] for key in keys)
            if tokens < FEWEST:
                continue
            first = self.first.setdefault(name, mean)
            self._compared[name] += 1
            self._apart[name] = self._apart[name] + 1 if mean > max(limit, TIMES * first) else 0
            most = 1 if self._compared[name] <= AT_ONCE else math.inf if self._corrected else STEPS
            if self._apart[name] >= most:
                raise UpdateFailed(
                    f"in step {step} the log-probs of engine and trainer differ by {mean:.2g} per token of agent "
                    f"{name}, and by {first:.2g} at first\n"
                    f"  rule: both have the weights of the same step, and rounding explains at most {limit:g}\n"
                    "  fix:  install the versions of versions/constraints.txt, and read in the engine's log whether it "
                    "takes the weights; if the policy itself has diverged, resume with a smaller optim.lr"
                )
